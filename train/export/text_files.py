"""Moments as text: JSON, CSV, a playlist, chapters and subtitles.

.json         all facts about each moment
.csv          a row for each, for spreadsheets
.m3u8, .m3u   a playlist; VLC plays each moment from its start to its end, and other players the whole videos
.vtt          WebVTT chapters of a video: each moment is one (W3C, WebVTT: The Web Video Text Tracks Format, 6.1)
.srt          the same as SubRip subtitles
"""

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ..search.moments import moment_values
from .results import Result, safe_name
from .source_videos import SourceError, SourceVideos

COLUMNS = (
    "number",
    "video_id",
    "file",
    "start_seconds",
    "end_seconds",
    "best_seconds",
    "score",
    "percentile",
    "found_by",
    "caption",
)
FORMULA = re.compile(r'^(?=[\t\r\n])|(^|[;\t\r\n]"*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])')
"""Places at which a spreadsheet may find a formula (OWASP, CSV injection): the start of a text and, since a spreadsheet
may split at semicolons or tabs instead of commas and then ignores quotation marks, the text after these or a new line.
In some languages, full-width signs start a formula too."""
MIN_CUE_SECONDS = 0.001


def json_text(results: Sequence[Result], videos: SourceVideos, about: Mapping[str, Any]) -> str:
    """Return moments as one object of JSON.

    Args:
        results: The moments.
        videos: Their files.
        about: Facts about the search: the fields of the object before ``moments``.
    """
    moments = [
        {"number": each.number, "file": videos.file_name(each.moment.video_id) or None, **moment_values(each.moment)}
        for each in results
    ]
    return json.dumps({**about, "moments": moments}, indent=2, ensure_ascii=False) + "\n"


def csv_text(results: Sequence[Result], videos: SourceVideos) -> str:
    """Return moments as CSV rows; a byte order mark shows spreadsheets that they are UTF-8."""
    file = io.StringIO()
    rows = csv.writer(file)
    rows.writerow(COLUMNS)
    for each in results:
        known = {"number": each.number, "file": videos.file_name(each.moment.video_id)} | moment_values(each.moment)
        rows.writerow([_cell(known[name]) for name in COLUMNS])
    return "\ufeff" + file.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a cell; an apostrophe is put before text that a spreadsheet would execute.

    >>> _cell("=1+1"), _cell("a;=1+1"), _cell("4;5 - 3")
    ("'=1+1", "a;'=1+1", '4;5 - 3')
    """
    return FORMULA.sub(r"\1'", value) if isinstance(value, str) else value


def playlist_text(results: Sequence[Result], videos: SourceVideos) -> tuple[str, list[str]]:
    """Return a playlist of moments, and the reasons for missing moments."""
    lines, problems = ["#EXTM3U"], []
    for each in results:
        moment = each.moment
        try:
            address = videos.url(moment.video_id)
        except SourceError as error:
            problems.append(problem_of(each, error))
            continue
        lines += [
            f"#EXTINF:{moment.end_seconds - moment.start_seconds:.3f},{each.label}",
            f"#EXTVLCOPT:start-time={moment.start_seconds:.3f}",
            f"#EXTVLCOPT:stop-time={moment.end_seconds:.3f}",
            address,
        ]
    return "\n".join(lines) + "\n", problems


def problem_of(result: Result, error: Exception) -> str:
    """Return the line about a moment that is not in an export."""
    return f"moment {result.number}, {result.moment.video_id}: {error}"


def cue_texts(results: Sequence[Result], suffix: str) -> dict[str, str]:
    """Return chapters or subtitles, a file for each video: {text added to the file's name: content}.

    Args:
        results: The moments.
        suffix: ".vtt", or ".srt".

    Returns:
        The added text is empty if all moments are of one video.
    """
    by_video: dict[str, list[Result]] = defaultdict(list)
    for each in results:
        by_video[each.moment.video_id].append(each)
    texts = {}
    for number, (video_id, of_video) in enumerate(by_video.items(), start=1):
        of_video.sort(key=lambda each: (each.moment.start_seconds, each.moment.end_seconds))
        cues = [(each.moment.start_seconds, each.moment.end_seconds, each.label) for each in of_video]
        addition = "" if len(by_video) == 1 else f"-{number:03d}-{safe_name(video_id)}"
        texts[addition] = vtt_text(cues) if suffix == ".vtt" else srt_text(cues)
    return texts


Cue = tuple[float, float, str]
"""Start and end in seconds, and a text."""


def vtt_text(cues: Iterable[Cue]) -> str:
    """Return cues as WebVTT."""
    blocks = ["WEBVTT\n"]
    for number, (start, end, text) in enumerate(cues, start=1):
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{number}\n{_span(start, end, '.')}\n{escaped}\n")
    return "\n".join(blocks)


def srt_text(cues: Iterable[Cue]) -> str:
    """Return cues as SubRip subtitles. Their texts are in one line."""
    blocks = []
    for number, (start, end, text) in enumerate(cues, start=1):
        shown = re.sub("-{2,}>", "->", text).replace("<", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}")
        blocks.append(f"{number}\n{_span(start, end, ',')}\n{shown}\n")
    return "\n".join(blocks)


def _span(start: float, end: float, point: str) -> str:
    return f"{_clock(start, point)} --> {_clock(max(end, start + MIN_CUE_SECONDS), point)}"


def _clock(seconds: float, point: str) -> str:
    """Return a time, such as 01:02:03.004."""
    milliseconds = round(Fraction(seconds) * 1000)  # a product of floats may be infinite
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"
