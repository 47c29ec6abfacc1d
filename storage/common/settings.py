"""Settings as dataclasses: a field's metadata has the description of a setting and its allowed values.

Commands make options from these fields (``cli.parser.add_settings``). Values are checked when the dataclass is
created.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import SettingError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SettingInfo:
    """The metadata of a setting: its description and its allowed values."""

    description: str = ""
    """One line for ``--help``."""
    ge: float | None = None
    """Greater than or equal to this, as in pydantic; likewise the next three."""
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    choices: Mapping[str, str] | None = None
    """{allowed value: its description}; a description may be empty."""
    metavar: str | None = None
    """Placeholder of the value in ``--help``; None: its choices or its type."""

    def problem(self, value: Any) -> str | None:
        """Return the expected values if ``value`` is not allowed; otherwise None."""
        if self.choices is not None:
            return None if value in self.choices else f"expected one of {', '.join(self.choices)}"
        if self.ge is not None and self.le is not None:
            return None if self.ge <= value <= self.le else f"expected {self.ge} to {self.le}"
        if self.ge is not None and not value >= self.ge:
            return f"expected {self.ge} or more"
        if self.gt is not None and not value > self.gt:
            return f"expected more than {self.gt}"
        if self.lt is not None and not value < self.lt:
            return f"expected less than {self.lt}"
        return None

    def placeholder(self, kind: type) -> str:
        """Return the placeholder of a value of this type in ``--help``."""
        return self.metavar or (f"{{{','.join(self.choices)}}}" if self.choices else kind.__name__.upper())

    @property
    def help(self) -> str:
        """The description, followed by the descriptions of the choices."""
        choices = [f"{name}: {text}" for name, text in (self.choices or {}).items() if text]
        return ". ".join(filter(None, (self.description, "; ".join(choices))))


def setting(
    default: T,
    description: str = "",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Mapping[str, str] | None = None,
    metavar: str | None = None,
) -> T:
    """Return a dataclass field with a default, and a ``SettingInfo`` as its metadata."""
    info = SettingInfo(description=description, ge=ge, gt=gt, le=le, lt=lt, choices=choices, metavar=metavar)
    return dataclasses.field(default=default, metadata={"setting": info})


def info_of(field: Field[Any]) -> SettingInfo:
    """Return the metadata of a setting."""
    return field.metadata.get("setting", SettingInfo())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: values are checked at creation.

    A class checks other conditions in its method ``check``, which calls its base class's ``check``.
    """

    def __post_init__(self) -> None:
        self.check_lists()
        for field in fields(self):
            value = getattr(self, field.name)
            is_unset = value is None and field.default is None
            if not is_unset and (problem := info_of(field).problem(value)) is not None:
                raise SettingError(field.name, value, problem)
        self.check()

    def check_lists(self) -> None:
        """Raise ``SettingError`` for a single text where a list is expected: its letters would be taken as values."""
        for name, kind in types_of(type(self)).items():
            if kind is list and isinstance(value := getattr(self, name), str | Path):
                raise SettingError(name, value, f"expected a list, such as [{str(value)!r}]")

    def check(self) -> None:
        """Raise ``SettingError`` for values that do not fit together."""


@functools.cache
def types_of(settings: type[Settings]) -> dict[str, type]:
    """Return the type of each setting: {name: int, float, bool, str, Path or list}.

    ``int | None`` is an int. For other unions, the first type is the option's type. A sequence of texts is a list: its
    option may be given several times.
    """
    hints = get_type_hints(settings)
    return {field.name: _type(hints[field.name]) for field in fields(settings)}


def _type(hint: Any) -> type:
    if get_origin(hint) in (Union, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    return list if get_origin(hint) in (Sequence, Collection) else hint


def names_of_options(settings: type[Settings]) -> list[str]:
    """Return the names of the fields that are declared with ``setting``."""
    return [field.name for field in fields(settings) if "setting" in field.metadata]
