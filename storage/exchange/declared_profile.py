"""The user's statements about imported features: known facts of their profile, durations of the videos, and times."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import SettingError, UserError, refuse_unreadable, unreadable
from ..common.files import read_small
from ..common.terminal import one_line
from ..common.validation import is_number
from ..profiles import ALIASES, PROFILES, find_profile
from ..records import UNKNOWN, UNKNOWN_VALUES, Profile

MAX_PROFILE_BYTES = 1 << 20
MAX_BAD_LINES = 5
"""Bad lines that a message names."""


@dataclass(frozen=True, kw_only=True)
class DeclaredFeatures:
    """The known facts about features of another program, and where to find the features in its files."""

    facts: Mapping[str, Any]
    """{field of ``Profile``: value}. Missing facts are unknown; a missing dimension is taken from the first video."""
    pattern: str | None = None
    key: str | None = None
    times: str | None = None
    """Name of the array of times, as in ``readers.source_videos``."""
    source: str = ""
    """Source of the facts."""

    @property
    def name(self) -> str:
        """Name of the features, and of the folder of their store."""
        return self.facts["name"]

    def profile(self, dimension: int) -> Profile:
        """Return the profile. ``dimension`` is used if the facts have none."""
        unknown = tuple(name for name in UNKNOWN_VALUES if name not in self.facts)
        if unknown == ("decoding",):  # profiles do not state it for exact frames
            unknown = ()
        values: dict[str, Any] = {"dimension": dimension, **UNKNOWN_VALUES, **self.facts}
        return Profile(**values, unknown=unknown)


def declare(
    declared: DeclaredFeatures, *, rate: float | None = None, spread: bool = False, times: str | None = None
) -> DeclaredFeatures:
    """Add the user's statement about the times of feature vectors to the known facts.

    Args:
        declared: The known facts.
        rate: Feature vectors per second.
        spread: All vectors of a video cover equal parts of it.
        times: Name of the array of times in the files, or a CSV file of times (``read_times``).

    Raises:
        UserError: The times are stated twice, or not at all.
    """
    statements = [
        *(["its fps"] if "fps" in declared.facts else []),
        *(["--rate"] if rate is not None else []),
        *(["--spread"] if spread else []),
        *(["--times"] if times is not None else []),
    ]
    if not statements and declared.times is None:
        raise UserError(
            f"features {declared.name!r}: the times of the rows are not known; pass --rate with the rows per second, "
            "--spread if the rows of a video are spread evenly over it, or --times"
        )
    if len(statements) > 1:
        raise UserError(
            f"features {declared.name!r}: {' and '.join(statements)} state the times of the rows; expected one of them"
        )
    facts = dict(declared.facts)
    if rate is not None:
        if not (is_number(rate) and rate > 0):
            raise SettingError("rate", rate, "expected a number above 0, the rows per second")
        facts["fps"] = rate * facts.get("stride", 1)
        if float(facts["fps"]).is_integer():
            facts["fps"] = int(facts["fps"])  # 24.0 and 24 are the same profile and need the same hash
    elif spread:
        facts["fps"] = None
    return replace(declared, facts=facts, times=None if rate is not None or spread else declared.times)


def read_declared(text: str, published: Mapping[str, DeclaredFeatures]) -> DeclaredFeatures:
    """Return the known facts about the features that the user names.

    Args:
        text: A name or alias of a profile of this package, one of ``published``, or a JSON file with the known fields
            of ``Profile``, at least its name.
        published: {name: facts} of public feature files.

    Raises:
        UserError: The text is none of these, or fields are wrong.
    """
    if text in PROFILES or text in ALIASES:
        return known_profile(find_profile(text))
    if text in published:
        return published[text]
    path = Path(text)
    if not path.is_file():
        raise UserError(
            f"profile {text!r}: neither a known name nor a file; expected "
            f"{', '.join((*PROFILES, *ALIASES, *published))}, or a JSON file; if little is known about the features, "
            "pass --name instead"
        )
    todo = f"expected the known fields among {', '.join(field.name for field in fields(Profile))}"
    with refuse_unreadable(path, "not a JSON object", todo, (ValueError, RecursionError)):
        values = json.loads(read_small(path, MAX_PROFILE_BYTES))
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__}")
    return declared_in(values, path)


def known_profile(profile: Profile) -> DeclaredFeatures:
    """Return the known facts of a profile."""
    return DeclaredFeatures(
        facts={f.name: getattr(profile, f.name) for f in fields(profile) if f.name not in ("unknown", *profile.unknown)}
    )


def declared_in(values: dict[str, Any], path: Path | str) -> DeclaredFeatures:
    """Parse the known facts in a file's fields. Raises ``UserError`` if fields have wrong names or values."""
    listed = values.get("unknown", ())
    unknown = {
        name: value
        for name, value in UNKNOWN_VALUES.items()
        if values.get(name, UNKNOWN) == UNKNOWN or (isinstance(listed, list | tuple) and name in listed)
    }
    complete = {"dimension": 1} | values | unknown
    if faults := Profile.faults(complete):
        raise UserError(f"{path}: {one_line('; '.join(faults))}")
    profile = profile_in(complete | {"unknown": ()}, path)
    known = set(values) - set(unknown) - {"unknown"}
    return DeclaredFeatures(facts={name: getattr(profile, name) for name in vars(profile) if name in known})


def profile_in(values: dict[str, Any], path: Path | str) -> Profile:
    """Parse the profile in a file's fields. Raises ``UserError`` if some are missing, unknown or wrong."""
    if faults := Profile.faults(values):
        raise UserError(f"{path}: {one_line('; '.join(faults))}")
    values |= {name: tuple(map(float, values[name])) for name in ("mean", "std")}
    if "unknown" in values:
        values["unknown"] = tuple(values["unknown"])
    if isinstance(values["fps"], float) and values["fps"].is_integer():
        values["fps"] = int(values["fps"])  # 24.0 and 24 are the same profile and need the same hash
    try:
        return Profile(**values)
    except ValueError as error:
        raise UserError(f"{path}: {one_line(str(error))}") from None


def read_times(path: Path) -> dict[str, np.ndarray]:
    """Read times of feature vectors from a CSV file with the columns video_id, start_seconds and end_seconds.

    Returns:
        [T, 2] by video id: the first and last second of each vector, in the order of the file.

    Raises:
        UserError: The file is not valid CSV, or has invalid lines, which the message names.
    """
    times: dict[str, list[tuple[float, float]]] = {}
    bad_lines = []
    for line, row in _csv_rows(path, ("video_id", "start_seconds", "end_seconds")):
        start, end = _number(row["start_seconds"]), _number(row["end_seconds"])
        if row["video_id"] and start is not None and end is not None and 0 <= start <= end:
            times.setdefault(row["video_id"], []).append((start, end))
        else:
            bad_lines.append(f"{line} ({one_line(','.join(map(str, row.values())))[:60]})")
    _refuse_lines(path, bad_lines, "a video's id, and 0 <= start <= end in seconds")
    return {video_id: np.array(rows) for video_id, rows in times.items()}


def read_durations(path: Path) -> dict[str, float]:
    """Return seconds by video id from a CSV file with the columns video_id and seconds.

    Raises:
        UserError: The file is not valid CSV, or lines are wrong, which the message names.
    """
    durations: dict[str, float] = {}
    bad_lines = []
    for line, row in _csv_rows(path, ("video_id", "seconds")):
        video_id, seconds = row["video_id"], _number(row["seconds"])
        if video_id and seconds is not None and seconds > 0 and durations.get(video_id, seconds) == seconds:
            durations[video_id] = seconds
        else:
            bad_lines.append(f"{line} ({one_line(','.join(map(str, row.values())))[:60]})")
    _refuse_lines(path, bad_lines, "each video's id once, and its seconds above 0")
    return durations


def _csv_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of the line, values) of each row. Raises ``UserError`` for an invalid CSV file."""
    expected = ",".join(columns)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            if not set(columns) <= set(rows.fieldnames or ()):
                found = one_line(",".join(rows.fieldnames or ())) or "none"
                raise UserError(f"{path}: columns {found}; expected {expected} in the first line")
            for row in rows:
                yield rows.line_num, row
    except (OSError, ValueError, csv.Error) as error:
        raise unreadable(path, "not readable CSV", error, f"expected {expected} in UTF-8") from None


def _refuse_lines(path: Path, bad_lines: list[str], expected: str) -> None:
    if bad_lines:
        num_more = len(bad_lines) - MAX_BAD_LINES
        more = f" and {num_more} more" if num_more > 0 else ""
        raise UserError(f"{path}: line {', '.join(bad_lines[:MAX_BAD_LINES])}{more}: expected {expected}")


def _number(text: str | None) -> float | None:
    """Parse a finite number; return None for any other text."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
