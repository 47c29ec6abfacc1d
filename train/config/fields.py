"""Settings with rules: what a setting is for, and the values that it may have."""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from ...storage.common.errors import SettingError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The purpose of a setting, and its allowed values."""

    help: str = ""
    """One line for ``--help``."""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Mapping[str, str] | None = None
    """{allowed value: what it means}; the meaning may be empty."""

    def problem(self, value: Any) -> str | None:
        """Return what was expected instead of ``value``, or None if it is allowed."""
        if self.choices is not None:
            return None if value in self.choices else f"expected one of {', '.join(self.choices)}"
        if self.least is not None and self.most is not None:
            return None if self.least <= value <= self.most else f"expected {self.least} to {self.most}"
        if self.least is not None and not value >= self.least:
            return f"expected {self.least} or more"
        if self.above is not None and not value > self.above:
            return f"expected more than {self.above}"
        if self.below is not None and not value < self.below:
            return f"expected less than {self.below}"
        return None

    @property
    def told(self) -> str:
        """The help text with all choices and what they mean."""
        choices = [f"{name}: {meaning}" if meaning else name for name, meaning in (self.choices or {}).items()]
        return ". ".join(filter(None, (self.help, "; ".join(choices))))


def setting(
    default: T,
    help: str = "",
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Mapping[str, str] | None = None,
) -> T:
    """Return a dataclass field with a default and a ``Rule`` for its values."""
    rule = Rule(help=help, least=least, most=most, above=above, below=below, choices=choices)
    return field(default=default, metadata={"rule": rule})


def rule_of(of: Field[Any]) -> Rule:
    """Return the rule of a settings field."""
    return of.metadata.get("rule", Rule())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: values are checked when they are made.

    A class checks what its fields' rules do not say in a method ``check``. Those of all its base classes are called
    too.
    """

    def __post_init__(self) -> None:
        for of in fields(self):
            if (problem := rule_of(of).problem(getattr(self, of.name))) is not None:
                raise SettingError(of.name, getattr(self, of.name), problem)
        for base in reversed(type(self).__mro__):
            if "check" in vars(base):
                vars(base)["check"](self)

    def check(self) -> None:
        """Raise ``SettingError`` for values that do not fit together."""


def types_of(settings: type[Settings]) -> dict[str, type]:
    """Return the type of each setting: {name: int, float, bool or str}."""
    hints = get_type_hints(settings)
    return {of.name: hints[of.name] for of in fields(settings)}
