"""Public names of a package that are imported at their first use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_from(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose public names lie in its modules.

    Args:
        package: The package's ``__name__``.
        modules: {public name: its module below the package}
    """

    def load(name: str) -> Any:
        if name in modules:
            try:
                return getattr(import_module(f"{package}.{modules[name]}"), name)
            except ModuleNotFoundError as error:
                from .packages import what_is_missing  # slow to import

                if missing := what_is_missing(error):
                    raise ModuleNotFoundError(missing, name=error.name) from None
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
