"""The models in RapidOCR's package, which read text in frames."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.files import sha256_of
from ...storage.common.packages import EXTRAS, install_command

RULES_VERSION = 1
"""Part of ``TextModel.key``: increase it when other frames are read or lines are merged differently."""
LIBRARIES = ("rapidocr", "onnxruntime", "opencv-python", "av")


@dataclass(frozen=True)
class TextModel:
    """The models that read text, and their identity."""

    name: str
    """"RapidOCR" and its version."""
    files: Mapping[str, str]
    """{name of a model's file: SHA-256}"""

    @property
    def sha256(self) -> str:
        """SHA-256 of the names and hashes of all files."""
        return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in self.files.items()).encode()).hexdigest()

    @property
    def key(self) -> str:
        """16 hexadecimal digits that depend on the models and the rules."""
        return hashlib.sha256(f"{self.sha256} {RULES_VERSION}".encode()).hexdigest()[:16]

    def about(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model and settings that make transcripts, to be stored with them."""
        return {
            "model": self.name,
            "sha256": self.sha256,
            "files": dict(self.files),
            "rules_version": RULES_VERSION,
            "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
            **settings,
        }


def check_installed() -> None:
    """Raise ``UserError`` if RapidOCR is not installed."""
    if any(find_spec(name) is None for name in ("rapidocr", "onnxruntime")):
        todo = install_command(*EXTRAS["ocr"])
        raise UserError(f"text in frames: RapidOCR is not installed; install it with: {todo}")


def find_text_model() -> TextModel:
    """Return the models in RapidOCR's package.

    Raises:
        UserError: RapidOCR is not installed, or its package has no models.
    """
    check_installed()
    package = distribution("rapidocr")
    paths = sorted(Path(str(file.locate())) for file in package.files or () if file.suffix == ".onnx")
    if not paths:
        raise UserError(f"RapidOCR {package.version}: its package has no models; expected models/*.onnx; reinstall it")
    return TextModel(f"RapidOCR {package.version}", {path.name: sha256_of(path) for path in paths})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # OpenCV has packages of several names
        return ""
