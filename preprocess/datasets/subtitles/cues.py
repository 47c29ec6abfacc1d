"""Parse cues of SubRip (``.srt``) and WebVTT (``.vtt``) files: times, speaker and text.

This is a small parser of our own: libraries skip damaged cues silently or reject the whole file, and none reports the
line of a cue.
"""

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ARROW = "-->"
_TIME = r"(-?)(?:(\d+):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{1,3}))?"
TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?", re.ASCII)
"""Start and end, and then the settings of WebVTT or the coordinates of SubRip."""
TAG = re.compile(r"</?[A-Za-z][^<>]*>|</?>|<(?:\d+:)?\d+:\d+[.,]\d+>|\{\\[^{}]*\}", re.ASCII)
"""``<i>``, ``</c>``, ``<v Name>``, ``<00:00:01.000>`` and ``{\\an8}``. A ``<`` that begins none of these is text."""
LONG_NUMBER = re.compile(r"&#\d{8,};?", re.ASCII)
"""A character reference with too many digits for any character. With thousands of digits, Python raises an error."""
NOT_CUES = ("NOTE", "STYLE", "REGION")
"""The first words of WebVTT blocks that are not cues."""
INVISIBLE = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Writing-direction marks and other invisible characters, which only players use."""


@dataclass(frozen=True)
class Cue:
    """A shown or spoken text, with its start and end."""

    start_seconds: float
    end_seconds: float
    lines: tuple[str, ...]
    """Without tags; none of them is blank."""
    where: str
    """Place of the cue in its file, such as "line 12"."""

    @property
    def text(self) -> str:
        """All lines as one."""
        return " ".join(self.lines)


Drop = Callable[[str, str], None]
"""Reports a skipped cue: its place in the file, and the reason."""


def read_cues(text: str, drop: Drop) -> Iterator[Cue]:
    """Yield the cues of a file in SubRip or WebVTT, in its order. Cues may have no lines.

    Args:
        text: Content of the file.
        drop: Receives cues whose times cannot be read.
    """
    lines = re.split("\r\n|\r|\n", text)  # str.splitlines also splits at characters that occur inside sentences
    timings = [number for number, line in enumerate(lines) if ARROW in line and not _is_in_text(line)]
    is_vtt = text.lstrip("\ufeff").startswith("WEBVTT")
    for timing, following in zip(timings, [*timings[1:], None], strict=False):
        where = f"line {timing + 1}"
        match = TIMING.fullmatch(lines[timing])
        if match is None:
            drop(
                where, f"{lines[timing].strip()[:100]!r} is not a pair of times, expected 00:00:01,000 --> 00:00:02,000"
            )
            continue
        try:
            start, end = _seconds(match.groups()[:5]), _seconds(match.groups()[5:])
        except ValueError as error:
            drop(where, str(error))
            continue
        payload = _payload(lines[timing + 1 : following], is_vtt=is_vtt, is_last=following is None)
        yield Cue(start, end, tuple(filter(None, map(plain, payload))), where)


def _is_in_text(line: str) -> bool:
    """Return whether an arrow is part of the text, such as "a --> b"."""
    return not re.search(r"\d\s*-->|-->\s*-?\d", line, re.ASCII)


def _seconds(groups: tuple[str | None, ...]) -> float:
    """Return the time of (sign, hours, minutes, seconds, fraction)."""
    sign, hours, minutes, seconds, fraction = groups
    if int(minutes or 0) > 59 or int(seconds or 0) > 59:
        raise ValueError(f"a time with {minutes} minutes and {seconds} seconds, expected both under 60")
    whole = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return float(f"{sign}{whole}.{fraction or 0}")


def _payload(lines: list[str], *, is_vtt: bool, is_last: bool) -> list[str]:
    """Return the lines of a cue, from all lines up to the next times or the end of the file.

    A cue of WebVTT ends at an empty line; YouTube begins cues with a line of one blank. In SubRip, some programs write
    blank lines inside cues; the last line before the next times is the number of the next cue.
    """
    if is_vtt:
        return lines[: lines.index("")] if "" in lines else lines
    if not is_last:
        last = max((index for index, line in enumerate(lines) if line.strip()), default=-1)
        if last >= 0 and lines[last].strip().isdecimal():
            lines = lines[:last]
    return lines


def plain(line: str) -> str:
    """Return a line without tags, entities and invisible marks, with single blanks.

    >>> plain("<i>put</i> it &amp; wait {\\\\an8}")
    'put it & wait'
    """
    return " ".join(INVISIBLE.sub("", html.unescape(LONG_NUMBER.sub("", TAG.sub("", line)))).split())
