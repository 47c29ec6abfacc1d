"""Import custom modules, from the import path or another folder, such as the current one.

The folder is not added to ``sys.path``, since it may be a stranger's: libraries try to import optional modules, such as
``pynvml``, or read entry points from each folder of the path. Only the module that the user named, and its own imports,
are searched there. The source is always compiled: a file in ``__pycache__`` may have other code.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

IMPORT_SYSTEM = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
_contents: dict[str, bytes] = {}
"""{path of a source: its content when compiled}: a later edit does not change the code that runs."""


def import_own(name: str, folder: str | Path | None) -> ModuleType:
    """Import a custom module.

    Args:
        name: The module, such as "my_module" or "my_package.losses".
        folder: Folder to search after the import path; empty for the current folder, None for no folder.
    """
    importlib.invalidate_caches()  # the module may be new
    _modules.folders[_top(name)] = None if folder is None else os.path.abspath(folder)
    if _modules not in sys.meta_path:
        sys.meta_path.insert(0, _modules)  # pyright: ignore[reportArgumentType]: it has the method
    return importlib.import_module(name)


def content_of(path: Path) -> bytes:
    """Return the content that a custom module's file had when compiled, or has now if it was not compiled."""
    content = _contents.get(str(path))
    return path.read_bytes() if content is None else content


class _FromSource(SourceFileLoader):
    """Always compiles the source, without ``__pycache__``."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        content = self.get_data(path)
        _contents[path] = content
        return self.source_to_code(content, path)


class _OwnModules:
    """Finds custom modules, and modules beside them that they import."""

    def __init__(self) -> None:
        self.folders: dict[str, str | None] = {}
        """{top-level module that the user named: folder to search after the import path}"""
        self.beside: dict[str, str] = {}
        """{top-level module found in such a folder: that folder}"""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a custom module; None for other modules."""
        top = _top(name)
        folders = [] if path is not None else [self.folders.get(name), self.beside.get(_importer())]
        folders = [folder for folder in folders if folder is not None]
        if not folders and top not in self.folders and top not in self.beside:
            return None
        spec = self._installed(name, path, target)
        for folder in dict.fromkeys(folders):
            if spec is not None and spec.loader is not None:
                break
            here = PathFinder.find_spec(name, [folder], target)
            if here is not None and (spec is None or here.loader is not None):  # None: a package without __init__.py
                spec, self.beside[name] = here, folder
        if spec is not None and type(spec.loader) is SourceFileLoader and (top in self.folders or top in self.beside):
            spec.loader = _FromSource(spec.loader.name, spec.loader.path)
        return spec

    def _installed(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        """Return the spec that all other finders would return."""
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                return spec
        return None


_modules = _OwnModules()


def _top(name: str) -> str:
    return name.partition(".")[0]


def _importer() -> str:
    """Return the top-level module whose code is importing."""
    frame = sys._getframe(1)
    while frame is not None:
        top = _top(str(frame.f_globals.get("__name__")))
        if frame.f_globals is not globals() and top not in IMPORT_SYSTEM:
            return top
        frame = frame.f_back
    return ""
