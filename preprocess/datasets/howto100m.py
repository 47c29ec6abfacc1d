"""HowTo100M (Miech et al. 2019): 1.2 million narrated videos, 136 million captions of what is said, by speech recognition.

Protocols: ``captions`` (SSML, section 5.1) has a clip for each caption, of 5 s at least; ``merged`` (TACo, section 4.3) joins adjacent
captions until there are 10 words at least. Both read ``caption.json``, which has no stop words; ``raw-captions`` and ``raw-merged``
read ``raw_caption.json``, which has all words, and captions that repeat those before. All is train.

Clips overlap, and may end after the video. The files have texts that are empty or NaN: left out, and counted.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ...storage.common.errors import UserError
from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, seconds, text

FILES = {"": "caption.json", "raw-": "raw_caption.json"}
LEAST_SECONDS = 5.0
LEAST_WORDS = 10
CHUNK = 1 << 20
LONGEST = 1 << 24
"""Characters of a video's captions. What goes on for longer is no file of captions, and would fill the memory."""


class Clip(NamedTuple):
    start_seconds: float
    end_seconds: float
    text: str


def extend(clips: Iterable[Clip], least_seconds: float = LEAST_SECONDS) -> list[Clip]:
    """A shorter clip grows alike at both ends; where it would begin before 0, it begins at 0 and is as long (as in MIL-NCE's code)."""
    extended = []
    for start, end, words in clips:
        if (missing := least_seconds - (end - start)) > 0:
            start = max(0.0, start - missing / 2)
            end = start + least_seconds
        extended.append(Clip(start, end, words))
    return extended


def merge(clips: Iterable[Clip], least_words: int = LEAST_WORDS) -> list[Clip]:
    """Clips in time order, joined until each has enough words; what is left at the end joins the one before, if there is one."""
    merged: list[Clip] = []
    open_clips: list[Clip] = []
    for clip in sorted(clips, key=lambda clip: clip.start_seconds):
        open_clips.append(clip)
        if sum(len(clip.text.split()) for clip in open_clips) >= least_words:
            merged.append(_join(open_clips))
            open_clips = []
    if open_clips:
        before = [merged.pop()] if merged else []
        merged.append(_join(before + open_clips))
    return merged


def _join(clips: list[Clip]) -> Clip:
    return Clip(clips[0].start_seconds, max(clip.end_seconds for clip in clips), " ".join(clip.text for clip in clips))


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    (path,) = annotations.find(FILES["raw-" if protocol.startswith("raw-") else ""])
    shape = merge if protocol.endswith("merged") else extend
    seen = set()
    for video_id, video in stream_object(path):
        if video_id in seen:
            annotations.drop(path, f"video {video_id!r}", "its second entry")
            continue
        seen.add(video_id)
        for start, end, words in shape(_clips(annotations, path, video_id, video)):
            try:
                yield Caption(video_id=video_id, caption=words, split="train", start_seconds=start, end_seconds=end)
            except ValueError as error:
                annotations.drop(path, f"video {video_id!r}", str(error))


def _clips(annotations: Annotations, path: Path, video_id: str, video: Any) -> list[Clip]:
    with as_published(path, f"video {video_id!r}"):
        rows = list(zip(video["start"], video["end"], video["text"], strict=True))
    clips = []
    for number, (start, end, words) in enumerate(rows, start=1):
        try:
            clip = Clip(seconds(start), seconds(end), text(words))
            if not 0 <= clip.start_seconds <= clip.end_seconds:  # some have no length: they are extended or merged
                raise ValueError(f"from {start} to {end} seconds, expected 0 <= start <= end")
            clips.append(clip)
        except ValueError as error:
            annotations.drop(path, f"video {video_id!r}, caption {number}", str(error))
    return clips


def stream_object(path: Path) -> Iterator[tuple[str, Any]]:
    """(name, value) of each entry of a JSON object of any size, one in memory at a time. Raises ``UserError`` where it is none.

    By Python's own parser, since the published files have NaN, which is no JSON: ijson refuses it.
    """
    buffer, at, before, name = "", 0, "{", None
    with path.open(encoding="utf-8-sig") as file:
        while True:
            try:
                name, value, at = _next_entry(buffer, at, before)
            except (ValueError, RecursionError) as error:  # no JSON, or more of it is to be read
                buffer, at = buffer[at:], 0
                more = _read(file, path, max(CHUNK, len(buffer))) if len(buffer) < LONGEST else ""
                if not more:
                    where = f"after {name!r}" if name is not None else "at its start"
                    what = getattr(error, "msg", error)  # without a place, which would be one in the buffer
                    raise UserError(
                        f"{path}: no JSON {where} ({what}); expected the file as its authors publish it"
                    ) from None
                buffer += more
                continue
            if name is None:
                break
            before = ","
            yield name, value
        if (buffer[at:] + _read(file, path, CHUNK)).strip():
            raise UserError(f"{path}: more after the JSON's end; expected the file as its authors publish it")


def _read(file: TextIO, path: Path, size: int) -> str:
    try:
        return file.read(size)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: no JSON in UTF-8 ({error}); expected the file as its authors publish it") from None


PARSE = json.JSONDecoder().raw_decode
BLANKS = re.compile(r"[ \t\r\n]*")


def _next_entry(buffer: str, at: int, before: str) -> tuple[str | None, Any, int]:
    """Name, value and end of ``before "name": value``; None for the name at the object's end. Raises where neither is (all) there."""

    def after(character: str, at: int) -> int:
        at = BLANKS.match(buffer, at).end()
        if (there := buffer[at : at + 1]) != character:
            raise ValueError(f"{there!r}, expected {character!r}")
        return BLANKS.match(buffer, at + 1).end()

    at = BLANKS.match(buffer, at).end()
    if before == "{" or buffer[at : at + 1] != "}":
        at = after(before, at)
    if buffer[at : at + 1] == "}":
        return None, None, at + 1
    name, at = PARSE(buffer, at)
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no name")
    value, at = PARSE(buffer, after(":", at))
    return name, value, at


DATASET = Dataset(
    read,
    {
        FILES[""]: "https://www.di.ens.fr/willow/research/howto100m, 'annotations'",
        FILES["raw-"]: "https://www.rocq.inria.fr/cluster-willow/amiech/howto100m/raw_caption.zip",
    },
    protocols=("captions", "merged", "raw-captions", "raw-merged"),
)
