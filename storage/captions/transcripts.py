"""Transcripts of a data set's videos: speech or text in frames, with times.

``transcripts/`` (speech) and ``text_in_frames/`` contain logs that one process at a time appends to. A million videos
need only a few files:

- ``part-00000.jsonl``, ...: a transcript on each line, in the form of Whisper's JSON with more fields.
- ``index.jsonl``: the place of each video's transcript. A line is written after the transcript is on disk: unfinished
  transcripts of a killed process are not listed. Later lines replace earlier ones.
- ``models/KEY.json``: the model and settings of the transcripts whose ``model`` is KEY.
"""

import json
import math
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..common.errors import UserError, refuse_unreadable
from ..common.files import MAX_LINE_BYTES, write_json, write_jsonl
from ..common.validation import check_text
from ..common.writing import atomic_write, errors_naming, make_folder, open_to_read, open_to_write, remove_file

INDEX_NAME = "index.jsonl"
LOCK_NAME = "transcribe.lock"
PART_NAME = re.compile(r"part-(\d{5,9})\.jsonl", re.ASCII)
MAX_PART = 999_999_999
MAX_PART_BYTES = 1 << 30
"""A part that is larger is not appended to."""
MAX_TRANSCRIPT_BYTES = 64 << 20
"""The transcript of the longest video, with speech throughout, has 15 MB."""
MAX_MODEL_BYTES = 1 << 20
KEY = re.compile(r"[0-9a-f]{16}")
REMEDY = "remove that line and run vlalign-transcribe again"


@dataclass(frozen=True)
class TimedWord:
    """A word as it was recognised, with punctuation, and when it is spoken."""

    word: str
    start_seconds: float
    end_seconds: float
    probability: float


@dataclass(frozen=True)
class TranscriptSegment:
    """A few seconds of speech, or a line of text in frames while it is shown."""

    start_seconds: float
    end_seconds: float
    text: str
    confidence: float
    """Mean probability of the words, or of the text read in frames."""
    words: Sequence[TimedWord] = ()
    """Spoken words; empty for text in frames."""


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """The speech of a video or the text in its frames. If there is none, there are no segments."""

    video_id: str
    source: str
    """Identity of the file (``common.files.file_identity``)."""
    model: str
    """Key of the model and settings (``TranscriptStore.describe_model``)."""
    duration_seconds: float
    """End of the sound, or of the video if its frames were read; 0 if it has neither."""
    languages: Mapping[str, float] = field(default_factory=dict)
    """{language, such as "en": seconds of speech}, most seconds first; empty for text in frames."""
    language_probability: float | None = None
    """Mean probability that the model gives to ``languages``; None without speech, or if it supports only one."""
    left_out: Mapping[str, float] = field(default_factory=dict)
    """{reason why speech was dropped: seconds}"""
    partial: str = ""
    """The parts of the sound or video that are missing or damaged; empty if none are."""
    segments: Sequence[TranscriptSegment] = ()

    @property
    def language(self) -> str:
        """The language with the most speech; empty if there is no speech."""
        return next(iter(self.languages), "")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values. Segments are as in Whisper's JSON; a word is [word, start, end, probability]."""
        about = {name: value for name, value in vars(self).items() if name != "segments"}
        segments = [
            {
                "start": segment.start_seconds,
                "end": segment.end_seconds,
                "text": segment.text,
                "confidence": segment.confidence,
                "words": [[w.word, w.start_seconds, w.end_seconds, w.probability] for w in segment.words],
            }
            for segment in self.segments
        ]
        return {**about, "language": self.language, "segments": segments}

    def to_line(self) -> bytes:
        """Return the transcript as a line of a part. At most ``MAX_TRANSCRIPT_BYTES`` can be stored."""
        return json.dumps(self.to_json(), ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Transcript":
        """Parse the result of ``to_json``.

        Raises:
            ValueError, TypeError, KeyError: A value is missing or not valid.
        """
        segments = [
            TranscriptSegment(
                *_times(row["start"], row["end"]),
                _text(row["text"]),
                _share(row["confidence"]),
                tuple(
                    TimedWord(_text(word), *_times(start, end), _share(probability))
                    for word, start, end, probability in row["words"]
                ),
            )
            for row in values["segments"]
        ]
        for name in ("video_id", "source", "model", "partial"):
            check_text(values[name])
        probability = values["language_probability"]
        return cls(
            video_id=values["video_id"],
            source=values["source"],
            model=values["model"],
            duration_seconds=_seconds(values["duration_seconds"]),
            languages={_text(name): _seconds(value) for name, value in values["languages"].items()},
            language_probability=None if probability is None else _share(probability),
            left_out={_text(name): _seconds(value) for name, value in values["left_out"].items()},
            partial=values["partial"],
            segments=segments,
        )


@dataclass(frozen=True, kw_only=True)
class TranscriptPlace:
    """A line of the index: the place of a transcript, and its source."""

    video_id: str
    source: str
    model: str
    part: int
    offset: int
    num_bytes: int
    num_segments: int
    written_ns: int

    def __post_init__(self) -> None:
        for text in (self.video_id, self.source, self.model):
            check_text(text)
        for number in (self.part, self.offset, self.num_bytes, self.num_segments, self.written_ns):
            if type(number) is not int or not 0 <= number < 1 << 63:
                raise ValueError(f"{number!r}: expected a whole number")
        if self.num_bytes > MAX_TRANSCRIPT_BYTES or self.part > MAX_PART or not KEY.fullmatch(self.model):
            raise ValueError("a size, part or model out of range")


class TranscriptStore:
    """The transcripts of a data set.

    Example:
        >>> store = TranscriptStore(Path("vlalign_data/mine/transcripts"))
        >>> [segment.text for segment in store.read("onion").segments]  # doctest: +SKIP
        ['First we cut the onion.', 'Now add two spoons of olive oil.']
    """

    def __init__(self, folder: Path) -> None:
        """Read the index; a folder that is missing has no transcripts.

        Raises:
            UserError: The index is damaged.
        """
        self.folder = folder
        self.places: dict[str, TranscriptPlace] = {}
        """{video id: place of its transcript}"""
        self._read_index()
        self._refuse_shared_bytes()

    def _read_index(self) -> None:
        path = self.folder / INDEX_NAME
        try:
            file = open_to_read(path, "rb")
        except FileNotFoundError:
            return
        with file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
                try:
                    values = json.loads(line)
                except (ValueError, RecursionError):
                    if line.startswith(b"{"):
                        continue  # a process was killed while it wrote; the video is transcribed again
                    values = {}
                with refuse_unreadable(f"{path}, line {number}", "not an entry of the transcript index", REMEDY):
                    place = TranscriptPlace(**values)
                self.places.pop(place.video_id, None)
                self.places[place.video_id] = place

    def _refuse_shared_bytes(self) -> None:
        """Raise ``UserError`` if transcripts share bytes of a part: together they could be far larger than the part."""
        ends: dict[int, int] = {}
        for place in sorted(self.places.values(), key=lambda place: (place.part, place.offset)):
            if place.offset < ends.get(place.part, 0):
                where = f"{self.folder / INDEX_NAME}, video {place.video_id!r}"
                raise UserError(
                    f"{where}: its transcript shares bytes with another one; remove {self.folder} and run "
                    "vlalign-transcribe again"
                )
            ends[place.part] = place.offset + place.num_bytes

    def models(self) -> dict[str, int]:
        """Return {key of the model: number of transcripts}."""
        counts: dict[str, int] = {}
        for place in self.places.values():
            counts[place.model] = counts.get(place.model, 0) + 1
        return counts

    def model_file(self, key: str) -> Path:
        """Return the file that describes the model with this key."""
        return self.folder / "models" / f"{key}.json"

    def describe_model(self, key: str) -> dict[str, Any]:
        """Return the model and settings with this key; empty if they are no longer known.

        Raises:
            UserError: The file is damaged, or a link.
        """
        path = self.model_file(key)
        if not os.path.lexists(path):
            return {}
        todo = "remove it and run vlalign-transcribe again"
        with (
            refuse_unreadable(path, "not a description of a transcription model", todo),
            open_to_read(path, "rb") as file,
        ):
            content = file.read(MAX_MODEL_BYTES + 1)
            if len(content) > MAX_MODEL_BYTES:
                raise ValueError(f"it has more than {MAX_MODEL_BYTES >> 20} MiB")
            about = json.loads(content)
            if not isinstance(about, dict):
                raise ValueError(f"a {type(about).__name__}, expected an object")
        return about

    def write_model(self, key: str, about: Mapping[str, Any]) -> None:
        """Write the description of the model with this key, unless it exists."""
        if not self.model_file(key).exists():
            write_json(self.model_file(key), about)

    def add(self, transcript: Transcript) -> None:
        """Append a transcript, replacing an earlier transcript of the video, and flush it to disk.

        Raises:
            UserError: The store's folder must not be changed.
            OSError: The transcript cannot be written.
        """
        make_folder(self.folder)
        line = transcript.to_line()
        part = self._open_part()
        offset = _append(self._part_path(part), line)
        place = TranscriptPlace(
            video_id=transcript.video_id,
            source=transcript.source,
            model=transcript.model,
            part=part,
            offset=offset,
            num_bytes=len(line),
            num_segments=len(transcript.segments),
            written_ns=time.time_ns(),
        )
        index_line = json.dumps(asdict(place), ensure_ascii=False).encode() + b"\n"
        _append(self.folder / INDEX_NAME, index_line)
        self.places.pop(place.video_id, None)
        self.places[place.video_id] = place

    def read(self, video_id: str) -> Transcript:
        """Return the transcript of a video.

        Raises:
            KeyError: The video has no transcript.
            UserError: The file is damaged or missing.
        """
        place = self.places[video_id]
        path = self._part_path(place.part)
        where, todo = f"{path}, byte {place.offset}", f"remove {self.folder} and run vlalign-transcribe again"
        with refuse_unreadable(where, "not a readable transcript", todo), open_to_read(path, "rb") as file:
            file.seek(place.offset)
            transcript = Transcript.from_json(json.loads(file.read(place.num_bytes)))
            if transcript.video_id != video_id:
                raise ValueError(f"it belongs to video {transcript.video_id!r}")
            return transcript

    def __iter__(self) -> Iterator[Transcript]:
        """Yield all transcripts, sorted by video id."""
        for video_id in sorted(self.places):
            yield self.read(video_id)

    def remove(self, video_ids: Collection[str]) -> None:
        """Remove the transcripts of some videos.

        Each part that contains one is rewritten under another name, without replaced transcripts; then the index is
        rewritten; then the old parts are removed.
        """
        gone = {video_id for video_id in video_ids if video_id in self.places}
        if not gone:
            return
        changed = {self.places[video_id].part for video_id in gone}
        kept = {video_id: place for video_id, place in self.places.items() if video_id not in gone}
        number = self._last_part()
        for part in sorted(changed):
            places = [place for place in kept.values() if place.part == part]
            if not places:
                continue
            number = self._part_after(number)
            with (
                atomic_write(self._part_path(number)) as partial,
                partial.open("wb") as new,
                open_to_read(self._part_path(part), "rb") as old,
            ):
                for place in places:
                    old.seek(place.offset)
                    kept[place.video_id] = replace(place, part=number, offset=new.tell())
                    new.write(old.read(place.num_bytes))
        write_jsonl(self.folder / INDEX_NAME, map(asdict, kept.values()))
        self.places = kept
        for part in changed:
            remove_file(self._part_path(part), missing_ok=True)

    def _part_path(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.jsonl"

    def _numbers_of_parts(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(match[1]) for name in os.listdir(self.folder) if (match := PART_NAME.fullmatch(name))]

    def _last_part(self) -> int:
        """Return the highest number of a part that exists or that the index names; 0 if there is none."""
        return max([0, *self._numbers_of_parts(), *(place.part for place in self.places.values())])

    def _part_after(self, number: int) -> int:
        if number >= MAX_PART:
            raise UserError(
                f"{self._part_path(number)}: has the highest possible number, so no file can follow it; remove "
                f"{self.folder} and run vlalign-transcribe again"
            )
        return number + 1

    def _open_part(self) -> int:
        """Return the number of the part to append to."""
        number = self._last_part()
        path = self._part_path(number)
        is_full = path.exists() and path.stat().st_size > MAX_PART_BYTES
        return self._part_after(number) if is_full else number


def _append(path: Path, line: bytes) -> int:
    """Append a line to a file, flush it and return its offset. End an unfinished line of a killed process first."""
    with open_to_write(path, "ab") as file, errors_naming(path):
        offset = os.fstat(file.fileno()).st_size
        if offset and not _ends_with_newline(path):
            file.write(b"\n")
            offset += 1
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return offset


def _ends_with_newline(path: Path) -> bool:
    with open_to_read(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _text(value: Any) -> str:
    check_text(value)
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{str(value)[:40]} is not a time")
    return float(value)


def _times(start: Any, end: Any) -> tuple[float, float]:
    if _seconds(start) > _seconds(end):
        raise ValueError(f"from {start:g} to {end:g} s, expected start <= end")
    return float(start), float(end)


def _share(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError(f"{str(value)[:40]} is not a probability")
    return float(value)
