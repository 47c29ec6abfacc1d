"""HowTo100M (Miech et al. 2019): 1.2 million narrated videos with 136 million captions from speech recognition.

Protocols:

- ``captions`` (SSML, section 5.1): one clip per caption, extended to at least 5 s.
- ``merged`` (TACo, section 4.3): adjacent captions are joined until they have at least 10 words.
- ``raw-captions`` and ``raw-merged``: the same from ``raw_caption.json``, which has all words, and captions that repeat
  earlier ones. The first two protocols read ``caption.json``, which has no stop words.

All captions are train. Clips overlap and can end after their video. Texts that are empty or NaN are skipped and
counted.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.records import Caption
from .sources import EXPECTED, Annotations, Chunk, ChunkedReader, Dataset, Record, as_published, seconds, text

FILES = {"": "caption.json", "raw-": "raw_caption.json"}
MIN_CLIP_SECONDS = 5.0
MIN_CLIP_WORDS = 10
READ_CHARACTERS = 1 << 20
CHUNK_CHARACTERS = 1 << 17
"""A chunk of the file ends after the video that brings it to this many characters, about 2,500 captions."""
MAX_ENTRY_CHARACTERS = 1 << 24
"""Maximum number of characters of one video's captions. A file with a longer entry is not a file of captions, and
reading on would fill the memory."""


class VideoEntry(NamedTuple):
    """A video of the file."""

    video_id: str
    content: str
    """JSON text; empty if the video has an earlier entry."""


class TimedText(NamedTuple):
    """A caption with its times, before it is extended or merged."""

    start_seconds: float
    end_seconds: float
    text: str


def extend(clips: Iterable[TimedText], min_seconds: float = MIN_CLIP_SECONDS) -> list[TimedText]:
    """Return the clips, with each shorter one extended to ``min_seconds``.

    A clip grows equally at both ends. If it would start before 0, it starts at 0 and keeps its length.

    Source: the code of MIL-NCE.
    """
    extended = []
    for start, end, words in clips:
        if (missing := min_seconds - (end - start)) > 0:
            start = max(0.0, start - missing / 2)
            end = start + min_seconds
        extended.append(TimedText(start, end, words))
    return extended


def merge(clips: Iterable[TimedText], min_words: int = MIN_CLIP_WORDS) -> list[TimedText]:
    """Return the clips in time order, joined until each has at least ``min_words`` words.

    Remaining clips at the end join the last merged one, if there is one.
    """
    merged: list[TimedText] = []
    pending: list[TimedText] = []
    for clip in sorted(clips, key=lambda clip: clip.start_seconds):
        pending.append(clip)
        if sum(len(clip.text.split()) for clip in pending) >= min_words:
            merged.append(_join(pending))
            pending = []
    if pending:
        before = [merged.pop()] if merged else []
        merged.append(_join(before + pending))
    return merged


def _join(clips: list[TimedText]) -> TimedText:
    return TimedText(
        clips[0].start_seconds, max(clip.end_seconds for clip in clips), " ".join(clip.text for clip in clips)
    )


def find(annotations: Annotations, protocol: str) -> Path:
    """Return the file of a protocol."""
    (path,) = annotations.find(FILES["raw-" if protocol.startswith("raw-") else ""])
    return path


def split(path: Path) -> Iterator[Chunk]:
    """Yield the videos of the file in chunks; the file is never in memory as a whole."""
    seen = set()
    entries: list[VideoEntry] = []
    size, num_bytes_left = 0, path.stat().st_size
    for video_id, content in stream_object(path):
        if size >= CHUNK_CHARACTERS:
            yield Chunk(entries, size)
            num_bytes_left -= size
            entries, size = [], 0
        is_second = video_id in seen
        entries.append(VideoEntry(video_id, "" if is_second else content))
        seen.add(video_id)
        size += len(content)
    if entries:
        yield Chunk(entries, num_bytes_left)  # including the bytes between all videos


def read_chunk(path: Path, protocol: str, chunk: Iterable[VideoEntry], problems: Problems) -> Iterator[Record]:
    """Yield the captions of a chunk's videos, without opening the file."""
    annotations = Annotations(path.parent, {}, problems)
    shape = merge if protocol.endswith("merged") else extend
    for video_id, content in chunk:
        if not content:
            annotations.drop(path, f"video {video_id!r}", "its second entry")
            continue
        for start, end, words in shape(_clips(annotations, path, video_id, content)):
            try:
                yield Caption(video_id=video_id, caption=words, split="train", start_seconds=start, end_seconds=end)
            except ValueError as error:
                annotations.drop(path, f"video {video_id!r}", str(error))


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of one video after the other."""
    path = find(annotations, protocol)
    for chunk in split(path):
        yield from read_chunk(path, protocol, chunk.content, annotations.problems)


def _clips(annotations: Annotations, path: Path, video_id: str, content: str) -> list[TimedText]:
    with as_published(path, f"video {video_id!r}"):
        video = json.loads(content)
        rows = list(zip(video["start"], video["end"], video["text"], strict=True))
    clips = []
    for number, (start, end, words) in enumerate(rows, start=1):
        try:
            clip = TimedText(seconds(start), seconds(end), text(words))
            if not 0 <= clip.start_seconds <= clip.end_seconds:  # clips of length 0 will be extended or merged
                raise ValueError(f"from {start} to {end} seconds, expected 0 <= start <= end")
            clips.append(clip)
        except ValueError as error:
            annotations.drop(path, f"video {video_id!r}, caption {number}", str(error))
    return clips


def stream_object(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the key and the JSON text of each entry of a JSON object of any size, with one entry in memory at a time.

    Uses Python's parser, because the published files contain NaN, which ijson rejects.

    Raises:
        UserError: The file is not a JSON object in UTF-8.
    """
    buffer, position, separator, key = "", 0, "{", None
    with path.open(encoding="utf-8-sig") as file:
        while True:
            try:
                key, start, position = _next_entry(buffer, position, separator)
            except (ValueError, RecursionError) as error:  # not JSON, or the entry continues in the next chunk
                buffer, position = buffer[position:], 0
                more = (
                    _read(file, path, max(READ_CHARACTERS, len(buffer))) if len(buffer) < MAX_ENTRY_CHARACTERS else ""
                )
                if not more:
                    where = f"after {key!r}" if key is not None else "at its start"
                    reason = getattr(error, "msg", error)  # without the position, which refers to the buffer
                    raise UserError(f"{path}: not valid JSON {where} ({reason}); {EXPECTED}") from None
                buffer += more
                continue
            if key is None:
                break
            separator = ","
            yield key, buffer[start:position]
        if rest := (buffer[position:] + _read(file, path, READ_CHARACTERS)).strip():
            raise UserError(f"{path}: text after the end of the JSON object: {rest[:20]!r}; {EXPECTED}")


def _read(file: TextIO, path: Path, size: int) -> str:
    try:
        return file.read(size)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid JSON in UTF-8 ({error}); {EXPECTED}") from None


PARSE = json.JSONDecoder().raw_decode
NOT_BLANK = re.compile(r"[^ \t\r\n]")


def _skip_blanks(buffer: str, position: int) -> int:
    match = NOT_BLANK.search(buffer, position)
    return match.start() if match else len(buffer)


def _skip(character: str, buffer: str, position: int) -> int:
    """Return the position after ``character`` and the blanks around it."""
    position = _skip_blanks(buffer, position)
    if (actual := buffer[position : position + 1]) != character:
        raise ValueError(f"{actual!r}, expected {character!r}")
    return _skip_blanks(buffer, position + 1)


def _next_entry(buffer: str, position: int, separator: str) -> tuple[str | None, int, int]:
    """Return the key of ``separator "key": value``, and where the value starts and ends; None at the end of the object.

    Raises:
        ValueError: The buffer does not contain a whole entry at ``position``.
    """
    position = _skip_blanks(buffer, position)
    if separator == "{" or buffer[position : position + 1] != "}":
        position = _skip(separator, buffer, position)
    if buffer[position : position + 1] == "}":
        return None, position, position + 1
    key, position = PARSE(buffer, position)
    if not isinstance(key, str):
        raise ValueError(f"{key!r} is not a key")
    start = _skip(":", buffer, position)
    return key, start, PARSE(buffer, start)[1]


DATASET = Dataset(
    read,
    {
        FILES[""]: "https://www.di.ens.fr/willow/research/howto100m, 'annotations'",
        FILES["raw-"]: "https://www.rocq.inria.fr/cluster-willow/amiech/howto100m/raw_caption.zip",
    },
    protocols=("captions", "merged", "raw-captions", "raw-merged"),
    speech=True,
    chunked_reader=ChunkedReader(find, split, read_chunk),
)
