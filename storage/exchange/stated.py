"""What the user states of features that other programs made: their profile, and how long the videos are."""

import csv
import json
import math
from dataclasses import fields
from pathlib import Path

from ..common.errors import UserError
from ..common.terminal import one_line
from ..profiles import ALIASES, PROFILES, find_profile
from ..records import Profile


def read_profile(text: str) -> Profile:
    """A profile of this package by its name, or all fields of ``Profile`` in a JSON file. Raises ``UserError`` for anything else."""
    if text in PROFILES or text in ALIASES:
        return find_profile(text)
    path = Path(text)
    if not path.is_file():
        raise UserError(
            f"profile {text!r}: neither known nor a file; expected {', '.join((*PROFILES, *ALIASES))}, or a JSON file"
        )
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__}")
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: no JSON object ({error}); expected one with the fields {', '.join(field.name for field in fields(Profile))}"
        ) from None
    if faults := Profile.faults(values):
        raise UserError(f"{path}: {one_line('; '.join(faults))}")
    values |= {name: tuple(map(float, values[name])) for name in ("mean", "std")}
    if isinstance(values["fps"], float) and values["fps"].is_integer():
        values["fps"] = int(values["fps"])  # 24.0 and 24 are the same profile, and must have the same hash
    return Profile(**values)


def read_durations(path: Path) -> dict[str, float]:
    """{video id: seconds} from a CSV file with the columns video_id and seconds. Raises ``UserError`` with the lines that are bad."""
    durations: dict[str, float] = {}
    bad = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            if not {"video_id", "seconds"} <= set(rows.fieldnames or ()):
                found = one_line(",".join(rows.fieldnames or ())) or "none"
                raise UserError(f"{path}: columns {found}; expected video_id,seconds in the first line")
            for row in rows:
                try:
                    seconds = float(row["seconds"])
                    good = (
                        row["video_id"]
                        and 0 < seconds < math.inf
                        and durations.get(row["video_id"], seconds) == seconds
                    )
                except (TypeError, ValueError):
                    good = False
                if good:
                    durations[row["video_id"]] = seconds
                else:
                    bad.append(f"{rows.line_num} ({one_line(','.join(map(str, row.values())))[:60]})")
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: no readable CSV ({error}); expected video_id,seconds in UTF-8") from None
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise UserError(
            f"{path}: line {', '.join(bad[:5])}{more}: expected a video's id, once, and its seconds above 0"
        )
    return durations
