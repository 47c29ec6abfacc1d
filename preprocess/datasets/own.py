"""Anybody's own captions: a CSV, JSONL or Parquet file with the columns video_id and caption, and, where wanted, start_seconds and
end_seconds, and split (train, validation or test).

Other usual names and ways of writing are understood, and each is said in one line. What may mean a time or a split and is not
understood is refused: captions would be of other clips than their author's.
"""

import difflib
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.terminal import say
from ...storage.files import IMAGE_SUFFIXES, SOUND_SUFFIXES, VIDEO_SUFFIXES
from ...storage.records import Caption, VideoRecord
from ..census import SPLITS
from .sources import seconds
from .table import SUFFIXES, Note, Table, read_table

__all__ = ["OPTIONAL", "REQUIRED", "SUFFIXES", "match_ids", "read", "split_videos"]

REQUIRED = ("video_id", "caption")
OPTIONAL = ("start_seconds", "end_seconds", "split")
EXPECTED = f"expected {', '.join(REQUIRED)}, and if wanted {', '.join(OPTIONAL)}"

UNITS = {"": 1.0} | dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0)
UNITS |= dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), 1e-3)
TIMES = {
    "start_seconds": "start starts start_time start_times starttime time_start start_timestamp begin begin_time from t_start tstart "
    "clip_start segment_start video_start",
    "end_seconds": "end ends end_time end_times endtime time_end end_timestamp stop stop_time to t_end tend clip_end segment_end video_end",
    "duration": "duration dur length clip_duration clip_length",
}
NAMES = {
    "video_id": "video_id videoid id video vid vid_id video_name video_file video_filename video_path video_key filename file_name file "
    "path clip_id youtube_id yt_id ytid youtubeid you_tube_id",
    "caption": "caption captions text sentence sentences description descriptions desc transcript transcription subtitle subtitles "
    "narration utterance query annotation",
    "split": "split splits subset set partition",
}
KNOWN = {name: (meaning, 1.0) for meaning, names in NAMES.items() for name in names.split()}
KNOWN |= {
    "_".join(filter(None, (name, unit))): (meaning, factor)
    for meaning, names in TIMES.items()
    for name in names.split()
    for unit, factor in UNITS.items()
}
"""{column: (what it means, what its numbers are in seconds)}"""
WEAK = ("id", "clip_id", "path")
"""Name the video only where no other column does: beside one they count rows."""
ABOUT_TIME = frozenset(
    [
        "start",
        "starts",
        "begin",
        "from",
        "end",
        "ends",
        "stop",
        "to",
        "time",
        "times",
        "timestamp",
        "timestamps",
        "timecode",
        "onset",
        "offset",
        "segment",
        "segments",
        "window",
        "windows",
        "interval",
        "span",
        "frame",
        "frames",
        "clip",
    ]
)
"""A column with one of these words in its name, and numbers or times in it, is not passed over where no column is known to hold times."""

SPLIT_NAMES = dict.fromkeys(("train", "training", "trn"), "train") | dict.fromkeys(("test", "testing", "tst"), "test")
SPLIT_NAMES |= dict.fromkeys(("validation", "val", "valid", "validate", "dev", "development"), "validation")
MEDIA_SUFFIXES = (*VIDEO_SUFFIXES, *SOUND_SUFFIXES, *IMAGE_SUFFIXES)
LONG_CLIP_SECONDS = 600
TIME_FORMS = "seconds, mm:ss or hh:mm:ss"

POINT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
COMMA = re.compile(r"[+-]?\d*,\d+", re.ASCII)
CLOCK = re.compile(r"(?:(?P<h>\d+):(?=\d+:))?(?P<m>\d+):(?P<s>\d{1,2})(?:[.,](?P<fraction>\d+))?", re.ASCII)


def read(
    annotations: Path | None, seed: int, problems: Problems, videos: Sequence[VideoRecord] | None = None
) -> Iterator[VideoRecord | Caption]:
    """Bad rows are reported with their number and left out; a file whose columns are not understood is refused.

    Without a column ``split``, 80 % of the videos go to train, 10 % to validation, 10 % to test, by a hash of seed and id.
    ``videos``: those that there are, whose ids the captions' are matched to; empty where none is known yet, None: no word about it.
    """
    assert annotations is not None

    def note(what: str) -> None:
        if not problems.quiet:
            say(f"note: {annotations}: {what}")

    table = read_table(annotations, lambda name: plain_name(name) in KNOWN, note)
    if not table.rows:
        raise UserError(f"{annotations}: no rows; expected columns {', '.join(REQUIRED)} and a row for each caption")
    columns = _columns(annotations, table, note)
    times = _Times(table, columns)
    rows = _Rows(columns, times, len(table.columns))
    captions = []
    for place, row in table.rows:
        try:
            captions.append(rows.caption(row))
        except ValueError as error:
            problems.add(f"{annotations}, {place}: {error}; left out")
    if not captions:
        return
    for line in (*times.notes(), *rows.notes(), *_clip_notes(captions, columns, times)):
        note(line)
    if videos is not None:
        captions = _matched(captions, videos, note)
    of_video: dict[str, list[Caption]] = {}
    for caption in captions:
        of_video.setdefault(caption.video_id, []).append(caption)
    splits = {} if "split" in columns else split_videos(sorted(of_video), seed)
    if splits:
        sizes = Counter(splits.values())
        shares = ", ".join(f"{sizes[split]:,} to {split}" for split in SPLITS)
        note(f"no column split: of {len(splits):,} videos {shares} (by --seed {seed})")
    for video_id, its_captions in of_video.items():
        yield from (replace(c, split=splits[video_id]) for c in its_captions) if splits else its_captions


def split_videos(video_ids: list[str], seed: int) -> dict[str, str]:
    """A tenth, and at least one of three videos or more, to each of test and validation; the rest to train."""
    order = sorted(video_ids, key=lambda video_id: hashlib.sha256(f"{seed}:{video_id}".encode()).digest())
    num_held = max(round(0.1 * len(order)), 1) if len(order) >= 3 else 0
    return {v: "test" if i < num_held else "validation" if i < 2 * num_held else "train" for i, v in enumerate(order)}


# Columns


@dataclass(frozen=True)
class _Column:
    name: str
    """As the file has it."""
    place: int
    factor: float = 1.0
    """What its numbers are in seconds."""


def plain_name(name: str) -> str:
    """``Start Time (s)``, ``startTime_s`` and ``START-TIME-S`` are all ``start_time_s``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name))
    return re.sub(r"[\W_]+", "_", words.casefold()).strip("_")


def _columns(path: Path, table: Table, note: Note) -> dict[str, _Column]:
    """{what it means: column}. Raises ``UserError`` for what is missing, there twice, or not understood and not to be passed over."""
    found: dict[str, list[_Column]] = defaultdict(list)
    others: list[_Column] = []
    for place, name in enumerate(table.columns):
        meaning, factor = KNOWN.get(plain_name(name), ("", 1.0))
        if meaning and (meaning in REQUIRED or not _is_blank(table, place)):
            found[meaning].append(_Column(name, place, factor))
        elif not _is_blank(table, place):
            others.append(_Column(name, place))
    weak = [column for column in found["video_id"] if plain_name(column.name) in WEAK]
    if len(weak) < len(found["video_id"]):
        others += weak
        found["video_id"] = [column for column in found["video_id"] if column not in weak]
    if found["end_seconds"] or not found["start_seconds"]:
        others += found.pop("duration", [])
    for meaning, same in found.items():
        if len(same) > 1:
            names = " and ".join(repr(column.name) for column in same)
            raise UserError(
                f"{path}: columns {names} both mean {meaning}; rename or remove {'one' if len(same) == 2 else 'all but one'}"
            )
    columns = {meaning: same[0] for meaning, same in found.items() if same}
    _check_required(path, table, columns)
    _check_others(path, table, columns, others)
    if "start_seconds" in columns and not columns.keys() & {"end_seconds", "duration"}:
        raise UserError(
            f"{path}: column {columns['start_seconds'].name!r} and none for the end; add end_seconds, or remove it"
        )
    if "end_seconds" in columns and "start_seconds" not in columns:
        raise UserError(
            f"{path}: column {columns['end_seconds'].name!r} and none for the start; add start_seconds, or remove it"
        )
    taken = [
        f"{column.name!r} as {_said(meaning, column)}"
        for meaning, column in columns.items()
        if column.name != meaning or meaning == "duration"
    ]
    if taken:
        note(f"columns are taken so: {', '.join(taken)}")
    for column in others:
        note(f"column {column.name!r} is passed over{_nearest(column.name, columns)}")
    return columns


def _said(meaning: str, column: _Column) -> str:
    if meaning == "duration":
        return "a clip's length, so that end is start + length"
    return meaning + (", in milliseconds" if column.factor != 1 else "")


def _is_blank(table: Table, place: int) -> bool:
    return all(row[place] is None or (isinstance(row[place], str) and not row[place].strip()) for _, row in table.rows)


def _nearest(name: str, columns: Mapping[str, _Column]) -> str:
    near = difflib.get_close_matches(plain_name(name), KNOWN, n=1, cutoff=0.7)
    if not near:
        return ""
    meaning = KNOWN[near[0]][0]
    given = f", which {columns[meaning].name!r} is" if meaning in columns and columns[meaning].name != meaning else ""
    return f" (nearest known: {meaning}{given})"


def _check_required(path: Path, table: Table, columns: Mapping[str, _Column]) -> None:
    missing = [name for name in REQUIRED if name not in columns]
    if not missing:
        return
    there = (
        ", ".join(repr(name) + ("" if name in KNOWN else _nearest(name, {})) for name in sorted(table.columns) if name)
        or "none with a name"
    )
    header = (
        "; is the first line a header?" if not columns and path.suffix.lower() not in (".jsonl", ".parquet") else ""
    )
    raise UserError(f"{path}: no column {' and no column '.join(missing)}; it has {there}; {EXPECTED}{header}")


def _check_others(path: Path, table: Table, columns: Mapping[str, _Column], others: Sequence[_Column]) -> None:
    """Refuses a column that may decide clips or splits and has no known name, where no other column decides that."""
    for column in others:
        name = plain_name(column.name)
        near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.7)
        meaning = KNOWN[near[0]][0] if near else ""
        values = [row[column.place] for _, row in table.rows]
        tells_time = bool(ABOUT_TIME & set(name.split("_")))
        is_near = meaning in TIMES and meaning != "duration"
        if "start_seconds" not in columns and (tells_time or is_near) and any(map(_may_be_time, values)):
            what = "does it say when clips start and end?" if tells_time else f"nearest: {meaning}"
            raise UserError(
                f"{path}: column {column.name!r} is not known ({what}); {EXPECTED}; rename it, or remove it"
            )
        if "split" not in columns and (meaning == "split" or any(isinstance(v, str) and len(v) > 2 for v in values)):
            named = {str(value).strip().casefold() for value in values}
            if named - {""} and named - {""} <= SPLIT_NAMES.keys():
                raise UserError(
                    f"{path}: column {column.name!r} is not known (nearest: split, of which it has {', '.join(sorted(named - {''}))}); "
                    f"{EXPECTED}; rename it, or remove it"
                )


def _may_be_time(value: Any) -> bool:
    """Numbers, times, ranges and lists of them."""
    if isinstance(value, list):
        return any(map(_may_be_time, value))
    return isinstance(value, (int, float)) or (
        isinstance(value, str) and bool(re.fullmatch(r"[\d\s:.,;>\[\]()-]*\d[\d\s:.,;>\[\]()-]*s?", value))
    )


# Times


class _Times:
    """Reads the times of one file, and knows how they were written."""

    def __init__(self, table: Table, columns: Mapping[str, _Column]) -> None:
        self.columns = {meaning: column for meaning, column in columns.items() if meaning in TIMES}
        texts = [
            row[c.place].strip()
            for _, row in table.rows
            for c in self.columns.values()
            if isinstance(row[c.place], str)
        ]
        self.has_points = any("." in text and POINT.fullmatch(text) for text in texts)
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.after_an_hour: list[bool] = []
        """Of times written with hours that are not 0: whether they are whole minutes."""

    def read(self, row: Sequence[Any], meaning: str) -> float | None:
        """Raises ``ValueError``."""
        if (column := self.columns.get(meaning)) is None:
            return None
        value = row[column.place]
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        try:
            return self._seconds(value.strip() if isinstance(value, str) else value, column.factor)
        except ValueError as error:
            said = str(error) if "comma" in str(error) else f"expected {TIME_FORMS}"
            raise ValueError(f"{column.name} is {value!r}, {said}") from None

    def _seconds(self, value: Any, factor: float) -> float:
        if not isinstance(value, str):
            if isinstance(value, bool):
                raise ValueError("no time")
            return seconds(value) * factor
        if POINT.fullmatch(value):
            self.counts["seconds"] += 1
            return seconds(value) * factor
        if COMMA.fullmatch(value):
            if self.has_points:
                raise ValueError("and other times have a point: is the comma one of decimals or of thousands?")
            return self._count("with a decimal comma", value, float(value.replace(",", ".")) * factor)
        if (parts := CLOCK.fullmatch(value)) and int(parts["s"]) < 60 and (parts["h"] is None or int(parts["m"]) < 60):
            whole = int(parts["h"] or 0) * 3600 + int(parts["m"]) * 60 + int(parts["s"])
            exact = float(f"{whole}.{parts['fraction'] or 0}")
            if whole >= 3600 and parts["h"] is not None:
                self.after_an_hour.append(exact % 60 == 0)
            return self._count("as mm:ss" if parts["h"] is None else "as hh:mm:ss", value, exact)
        raise ValueError("no time")

    def _count(self, form: str, value: str, number: float) -> float:
        self.counts[form] += 1
        self.first.setdefault(form, f"{value!r} as {number:g} s")
        return number

    def notes(self) -> Iterator[str]:
        for form, example in self.first.items():
            others = self.counts["seconds"]
            mixed = f"; the other {others:,} as seconds" if others and form == next(iter(self.first)) else ""
            yield f"{self.counts[form]:,} times are read {form}, such as {example}{mixed}"
        if self.after_an_hour and all(self.after_an_hour):
            yield "all times after the first hour are whole minutes: spreadsheets write mm:ss as hh:mm:00; if so, write seconds instead"


def _clip_notes(captions: Sequence[Caption], columns: Mapping[str, _Column], times: _Times) -> Iterator[str]:
    lengths = [c.end_seconds - c.start_seconds for c in captions if c.start_seconds is not None]
    if "start_seconds" not in columns:
        yield "no columns start_seconds and end_seconds: each caption is about its whole video"
    elif len(lengths) < len(captions):
        yield f"{len(captions) - len(lengths):,} of {len(captions):,} captions have no times: they are about their whole video"
    if (
        lengths
        and not times.first
        and all(c.factor == 1 for c in times.columns.values())
        and median(lengths) > LONG_CLIP_SECONDS
    ):
        yield (
            f"half of the clips last longer than {median(lengths):,.0f} s, taken as seconds; if these are milliseconds, name the columns "
            "start_ms and end_ms"
        )


# Rows


class _Rows:
    """Makes captions of rows, and counts what was understood of their splits."""

    def __init__(self, columns: Mapping[str, _Column], times: _Times, num_columns: int) -> None:
        self.columns, self.times, self.num_columns = columns, times, num_columns
        self.splits: Counter[tuple[str, str]] = Counter()
        self.without_split = 0

    def caption(self, row: Sequence[Any]) -> Caption:
        """Raises ``ValueError`` for a row that is none."""
        if more := [field for field in row[self.num_columns :] if field]:
            raise ValueError(f"{len(more)} more fields than columns, expected captions with commas in double quotes")
        (id_name, video_id), (name, text) = ((self.columns[m].name, row[self.columns[m].place]) for m in REQUIRED)
        if not isinstance(video_id, str) or not video_id.strip():
            raise ValueError(f"{id_name} is {video_id!r}, expected a name")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name} is {text!r}, expected a sentence")
        try:
            (video_id + text).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair, expected valid Unicode") from None
        start, end = (self.times.read(row, meaning) for meaning in ("start_seconds", "end_seconds"))
        if start is not None and (length := self.times.read(row, "duration")) is not None:
            end = start + length
        return Caption(
            video_id=video_id.strip(),
            caption=text.strip(),
            split=self._split(row),
            start_seconds=start,
            end_seconds=end,
        )

    def _split(self, row: Sequence[Any]) -> str:
        column = self.columns.get("split")
        value = row[column.place] if column else "train"
        if value is None or value == "":
            self.without_split += 1
            return "train"
        split = SPLIT_NAMES.get(value.strip().casefold()) if isinstance(value, str) else None
        if split is None:
            raise ValueError(f"{column.name if column else ''} is {value!r}, expected one of {', '.join(SPLITS)}")
        if split != value:
            self.splits[value, split] += 1
        return split

    def notes(self) -> Iterator[str]:
        if self.splits:
            yield "splits are taken so: " + ", ".join(
                f"{old!r} as {new} ({n:,})" for (old, new), n in self.splits.items()
            )
        if self.without_split:
            yield f"{self.without_split:,} captions name no split: they go to train"


# Videos


def _matched(captions: Sequence[Caption], videos: Sequence[VideoRecord], note: Note) -> list[Caption]:
    """With the ids of the videos that there are, where it is clear which is meant."""
    given = list(dict.fromkeys(caption.video_id for caption in captions))
    if not videos:
        like_files = [one for one in given if _without_suffix(one) != one or "\\" in one or one.startswith(("/", "./"))]
        if like_files:
            note(
                f"{len(like_files):,} of {len(given):,} ids are like {like_files[0]!r}, and no videos are known yet to match them to; run "
                "vlalign-extract --videos FOLDER, and then this again"
            )
        return list(captions)
    matched = match_ids(given, videos)
    if matched:
        example = next(iter(matched.items()))
        note(
            f"{len(matched):,} of {len(given):,} ids are matched to videos by their paths, such as {example[0]!r} to {example[1]!r}"
        )
    return [replace(c, video_id=matched[c.video_id]) if c.video_id in matched else c for c in captions]


def match_ids(given: Sequence[str], videos: Sequence[VideoRecord]) -> dict[str, str]:
    """{id as given: id of the video that it means}, of those that are not such an id themselves.

    An id may have a suffix, Windows' separators, ``./`` or folders before it, or lack folders that the video's has. It is matched
    where one video alone can be meant, and by no other path.
    """
    known = {video.video_id: video.path for video in videos}
    of_path = {path: video_id for video_id, path in known.items()}
    of_tail: dict[str, set[str]] = defaultdict(set)
    for video_id in known:
        for tail in _tails(video_id):
            of_tail[tail].add(video_id)
    matched: dict[str, str] = {}
    paths: dict[str, set[str]] = defaultdict(set)
    for one in given:
        if one in known:
            paths[one].add(one)
            continue
        path = _as_path(one)
        name = path if path in known else _without_suffix(path)
        if one in of_path:
            meant = {of_path[one]}
        elif name in known:
            meant = {name}
        else:
            meant = {tail for tail in _tails(name) if tail in known} or of_tail.get(name, set())
        if len(meant) == 1:
            matched[one] = min(meant)
            paths[matched[one]].add(name if matched[one] != of_path.get(one) else matched[one])
    return {one: video_id for one, video_id in matched.items() if len(paths[video_id]) == 1}


def _as_path(one: str) -> str:
    path = re.sub(r"^[A-Za-z]:", "", one.strip().replace("\\", "/"))
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _without_suffix(one: str) -> str:
    stem, point, suffix = one.rpartition(".")
    return stem if stem and point + suffix.lower() in MEDIA_SUFFIXES else one


def _tails(path: str) -> list[str]:
    """A path without its first folders, longest first; itself included."""
    parts = path.split("/")
    return ["/".join(parts[first:]) for first in range(len(parts))]
