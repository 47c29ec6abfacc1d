"""The user's statements about features of other programs: their profile, and the durations of the videos."""

import csv
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..common.errors import UserError, refuse_unreadable, unreadable
from ..common.files import read_small
from ..common.terminal import one_line
from ..profiles import ALIASES, PROFILES, find_profile
from ..records import Profile

MAX_PROFILE_BYTES = 1 << 20
MAX_BAD_LINES = 5
"""Bad lines that a message names."""


def read_profile(text: str) -> Profile:
    """Return the profile that the user names.

    Args:
        text: A name or alias of a profile of this package, or a JSON file with all fields of ``Profile``.

    Raises:
        UserError: It is neither, or fields are missing or wrong.
    """
    if text in PROFILES or text in ALIASES:
        return find_profile(text)
    path = Path(text)
    if not path.is_file():
        raise UserError(
            f"profile {text!r}: neither a known name nor a file; expected {', '.join((*PROFILES, *ALIASES))}, or a "
            "JSON file"
        )
    todo = f"expected one with the fields {', '.join(field.name for field in fields(Profile))}"
    with refuse_unreadable(path, "not a JSON object", todo, (ValueError, RecursionError)):
        values = json.loads(read_small(path, MAX_PROFILE_BYTES))
        if not isinstance(values, dict):
            raise ValueError(f"it holds a {type(values).__name__}")
    return profile_in(values, path)


def profile_in(values: dict[str, Any], path: Path) -> Profile:
    """Return the profile whose fields a file has. Raises ``UserError`` if some are missing, unknown or wrong."""
    if faults := Profile.faults(values):
        raise UserError(f"{path}: {one_line('; '.join(faults))}")
    values |= {name: tuple(map(float, values[name])) for name in ("mean", "std")}
    if isinstance(values["fps"], float) and values["fps"].is_integer():
        values["fps"] = int(values["fps"])  # 24.0 and 24 are the same profile and need the same hash
    return Profile(**values)


def read_durations(path: Path) -> dict[str, float]:
    """Return seconds by video id from a CSV file with the columns video_id and seconds.

    Raises:
        UserError: The file is not valid CSV, or lines are wrong, which the message names.
    """
    durations: dict[str, float] = {}
    bad_lines = []
    expected = "video_id,seconds"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            if not {"video_id", "seconds"} <= set(rows.fieldnames or ()):
                columns = one_line(",".join(rows.fieldnames or ())) or "none"
                raise UserError(f"{path}: columns {columns}; expected {expected} in the first line")
            for row in rows:
                video_id, seconds = row["video_id"], _seconds(row["seconds"])
                if video_id and seconds is not None and durations.get(video_id, seconds) == seconds:
                    durations[video_id] = seconds
                else:
                    bad_lines.append(f"{rows.line_num} ({one_line(','.join(map(str, row.values())))[:60]})")
    except (OSError, ValueError, csv.Error) as error:
        raise unreadable(path, "not readable CSV", error, f"expected {expected} in UTF-8") from None
    if bad_lines:
        num_more = len(bad_lines) - MAX_BAD_LINES
        more = f" and {num_more} more" if num_more > 0 else ""
        raise UserError(
            f"{path}: line {', '.join(bad_lines[:MAX_BAD_LINES])}{more}: expected a video's id, once, and its "
            "seconds above 0"
        )
    return durations


def _seconds(text: str | None) -> float | None:
    """Return a duration; None if it is not a finite number above 0."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 < seconds < math.inf else None
