"""Start programs and other Pythons without using the current folder, which may be a stranger's."""

import atexit
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .errors import UserError
from .system import IS_WINDOWS

SEARCH_PATHS = "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"
"""Variables with folders that programs, modules and libraries are taken from."""
COMPILED_CODE = "TORCHINDUCTOR_CACHE_DIR"
"""Variable with the folder in which torch.compile stores compiled code, and from which it loads that code."""


def python_command(program: str) -> list[str]:
    """Return the beginning of a command line that runs a program in another Python.

    Nothing is imported from the current folder: ``python -c`` alone would run a ``signal.py`` there. Python 3.13
    imports modules before the program's first statement, so only ``-P`` helps; Python 3.10 lacks it. PYTHONPATH and
    installed packages work as usual. Pass the environment through ``without_current_folder``: an empty entry of
    PYTHONPATH is also the current folder.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-c", program]
    return [sys.executable, "-c", f"import sys; sys.path[:] = filter(None, sys.path); {program}"]


def without_current_folder(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another program, without paths relative to the current folder.

    An empty entry, as in ``PATH=$PATH:``, means the current folder; a relative entry is resolved from it.
    """
    cleaned = dict(environment)
    for name in SEARCH_PATHS:
        if cleaned.get(name):
            cleaned[name] = os.pathsep.join(_absolute(cleaned[name]))
            # an empty PATH finds nothing; without PATH, systems search default folders
            if not cleaned[name] and name != "PATH":
                del cleaned[name]
    return cleaned


def start_programs_without_current_folder() -> None:
    """Change this process's variables as ``without_current_folder`` does: libraries also start programs."""
    after = without_current_folder(os.environ)
    for name in SEARCH_PATHS:
        if name not in after:
            os.environ.pop(name, None)
        elif after[name] != os.environ[name]:
            os.environ[name] = after[name]


def refuse_planted_libraries() -> None:
    """Raise ``UserError`` if PyTorch would load a library from the current folder.

    NVIDIA's libcusparseLt has an empty entry in its search path, which means the current folder, and searches CUDA's
    driver there first.
    """
    for name in ("libcuda.so.1", "libcuda.so"):
        if not IS_WINDOWS and os.path.lexists(name):
            raise UserError(
                f"{os.path.abspath(name)}: PyTorch would load this library, because it is in the current folder; "
                "run the command in another folder"
            )


def find_program(name: str) -> str | None:
    """Return the path of a program in an absolute folder of PATH; None if there is none.

    ``shutil.which`` also looks in the current folder: on Windows always, elsewhere for an empty entry.
    """
    file_name = f"{name}.exe" if IS_WINDOWS else name
    for folder in _absolute(os.environ.get("PATH", os.defpath)):
        path = os.path.join(folder, file_name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def keep_compiled_code_private() -> None:
    """Store torch.compile's compiled code in a folder of the user.

    Its default is a predictable folder in /tmp, from which it loads code, whoever created the folder. Without a home
    folder, compiled code is deleted when this process ends.
    """
    if os.environ.get(COMPILED_CODE):
        return
    try:
        folder = Path(os.environ.get("VLALIGN_CACHE") or Path.home() / ".cache" / "vlalign").absolute() / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # fails if it belongs to another user
    except (OSError, RuntimeError):
        made = tempfile.TemporaryDirectory(prefix="vlalign-compiled-")
        atexit.register(made.cleanup)
        folder = Path(made.name)
    os.environ[COMPILED_CODE] = str(folder)


def _absolute(entries: str) -> list[str]:
    return [entry for entry in entries.split(os.pathsep) if os.path.isabs(entry)]
