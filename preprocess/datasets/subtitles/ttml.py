"""Cues of TTML files (``.ttml``, ``.dfxp``; W3C, Timed Text Markup Language 2): subtitles in XML.

Documents with a DOCTYPE are refused: TTML needs none, and a DOCTYPE may declare entities that grow without bounds.
"""

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ....storage.common.errors import UserError
from .cues import Cue, Drop, plain

TTML_SUFFIXES = (".ttml", ".dfxp")
DECLARED = re.compile(rb"<\?xml[^>]*\bencoding\s*=\s*[\"']([A-Za-z][\w.-]*)[\"']")
CLOCK = re.compile(r"(\d{2,}):(\d\d):(\d\d)(?:\.(\d+)|:(\d{2,})(?:\.\d+)?)?", re.ASCII)
OFFSET = re.compile(r"(\d+(?:\.\d+)?)(h|m|s|ms|f|t)", re.ASCII)
PARAMETER = "{http://www.w3.org/ns/ttml#parameter}"
MAX_DEPTH = 50


def declared_text(data: bytes) -> str | None:
    """Return the text of an XML file in the encoding that it declares; None if it declares none, or a wrong one."""
    match = DECLARED.match(data)
    try:
        return data.decode(match[1].decode()) if match else None
    except (UnicodeDecodeError, LookupError):
        return None


def read_ttml(text: str, path: Path, drop: Drop) -> Iterator[Cue]:
    """Yield a cue for each paragraph of a file, in order, or for each of its spans if they have times of their own.

    Args:
        text: Content of the file.
        path: Its path, for messages.
        drop: Receives paragraphs whose times cannot be read.

    Raises:
        UserError: The content is not XML, or has a DOCTYPE.
    """
    if "<!DOCTYPE" in text:
        raise UserError(f"{path}: has a DOCTYPE; expected TTML without one; remove it")
    try:
        root = ElementTree.fromstring(text.lstrip("\ufeff"))
    except (ElementTree.ParseError, ValueError) as error:
        raise UserError(f"{path}: not valid XML ({error}); expected TTML; fix it or remove it") from None
    rate, multiplier = _parameter(root, "frameRate", "30"), root.get(f"{PARAMETER}frameRateMultiplier", "1 1").split()
    try:
        frame_rate = rate * float(multiplier[0]) / float(multiplier[-1])
    except (ValueError, ZeroDivisionError, IndexError):
        frame_rate = rate
    clock = _Clock(frame_rate, _parameter(root, "tickRate", "1"))
    yield from _CueReader(clock, drop).cues(root, 0.0, None)


def _parameter(root: Element, name: str, default: str) -> float:
    try:
        return float(root.get(PARAMETER + name, default)) or float(default)
    except ValueError:
        return float(default)


class _Clock:
    def __init__(self, frame_rate: float, tick_rate: float) -> None:
        self.seconds_of = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "f": 1 / frame_rate, "t": 1 / tick_rate}

    def seconds(self, time: str) -> float:
        """Return the seconds of a time expression. Raises ``ValueError`` for anything else."""
        if match := CLOCK.fullmatch(time.strip()):
            hours, minutes, seconds, fraction, frames = match.groups()
            whole = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
            return float(f"{whole}.{fraction or 0}") + int(frames or 0) * self.seconds_of["f"]
        if match := OFFSET.fullmatch(time.strip()):
            return float(match[1]) * self.seconds_of[match[2]]
        raise ValueError(f"{time[:100]!r} is not a time, expected 00:00:01.000 or 1.5s")

    def span(self, element: Element, begin: float, end: float | None) -> tuple[float, float | None]:
        """Return when an element is shown. Its times are relative to the start of the element around it."""
        start = begin + self.seconds(element.get("begin", "0s"))
        ends = [end] if end is not None else []
        if "end" in element.attrib:
            ends.append(begin + self.seconds(element.attrib["end"]))
        if "dur" in element.attrib:
            ends.append(start + self.seconds(element.attrib["dur"]))
        return start, min(ends, default=None)


class _CueReader:
    def __init__(self, clock: _Clock, drop: Drop) -> None:
        self._clock, self._drop = clock, drop
        self._numbers = count(1)
        """Numbers of the elements with text, for messages."""

    def cues(self, element: Element, begin: float, end: float | None, depth: int = 0) -> Iterator[Cue]:
        """Yield the cues of an element inside one that is shown from ``begin`` to ``end``."""
        name = element.tag.rpartition("}")[2]
        has_text = name in ("p", "span")
        where = f"paragraph {next(self._numbers)}" if has_text else name
        try:
            begin, end = self._clock.span(element, begin, end)
        except ValueError as error:
            self._drop(where, str(error))
            return
        if depth > MAX_DEPTH:
            self._drop(where, f"more than {MAX_DEPTH} elements around it")
        elif has_text and not any("begin" in inner.attrib for inner in element.iter() if inner is not element):
            if end is None:
                self._drop(where, "has no end, expected begin and end, or dur")
            else:
                lines = "".join(_text(element)).split("\n")
                yield Cue(begin, end, tuple(filter(None, map(plain, lines))), where)
        elif name != "head":
            for inner in element:
                yield from self.cues(inner, begin, end, depth + 1)


def _text(element: Element, depth: int = 0) -> Iterator[str]:
    """Yield the text of an element, with a line break for each ``br``. Other line breaks become blanks.

    Text with more than ``MAX_DEPTH`` elements around it is skipped.
    """
    yield " ".join((element.text or "").split("\n"))
    for inner in element if depth < MAX_DEPTH else ():
        name = inner.tag.rpartition("}")[2]
        if name == "br":
            yield "\n"
        elif name != "metadata":
            yield from _text(inner, depth + 1)
        yield " ".join((inner.tail or "").split("\n"))
