"""Public names of a package that are imported at their first use."""

from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any


def lazy_names(package: str, names: Collection[str], public: Callable[[], ModuleType]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which imports the public names when one is first used.

    Args:
        package: The package's ``__name__``.
        names: The public names.
        public: Imports the module that has them.
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(public(), name)
        except ModuleNotFoundError as error:
            from .packages import missing_package_message  # slow to import

            if missing := missing_package_message(error):
                raise ModuleNotFoundError(missing, name=error.name) from None
            raise

    return load
