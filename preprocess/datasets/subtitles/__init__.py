"""Subtitles of a user's own videos, beside the videos or in a folder, read as captions.

Transcripts that ``vlalign-transcribe`` made are read in the same way. Text in frames (``--what text``) has its own
protocol, ``text``: a caption for each line, with the time during which it is shown.

SubRip (``.srt``), WebVTT (``.vtt``), TTML (``.ttml``, ``.dfxp``) and the JSON of Whisper and WhisperX are known. A file
is named after its video, with or without a language: ``kitchen/onion.srt``, ``kitchen/onion.en.vtt`` or
``onion.mp4.json``.

Protocols:

- ``cues``: a caption for each cue, with its own times.
- ``extended``: the same, with clips extended to at least 5 s, as usual for HowTo100M (MIL-NCE; SSML, section 5.1).
- ``merged``: neighbouring cues are joined until they have at least 10 words (TACo, section 4.3).
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ....storage.captions.transcripts import TranscriptStore
from ....storage.common.errors import UserError
from ....storage.common.files import check_regular
from ....storage.common.problems import Problems
from ....storage.common.terminal import number_of, say
from ....storage.dataset.folder import DatasetFolder
from ....storage.dataset.trusted_folders import AllowedFolders
from ....storage.records import Caption, VideoRecord
from ..custom import draw_splits
from ..encodings import Note, decode
from ..howto100m import TimedText, extend, merge
from .cues import Cue, plain, read_cues
from .files import SUFFIXES, SubtitleFile, find_beside, find_files
from .rolling import without_repeats
from .ttml import TTML_SUFFIXES, declared_text, read_ttml
from .whisper import NothingSpoken, NoTranscript, read_segments

__all__ = [
    "PROTOCOLS",
    "SUFFIXES",
    "TEXT_PROTOCOL",
    "SubtitleFile",
    "find_beside",
    "read",
    "read_beside",
    "read_text",
    "transcribed_videos",
]

PROTOCOLS = ("cues", "extended", "merged")
"""The first is the default."""
TEXT_PROTOCOL = "text"
"""The protocol of text in frames."""
MAX_BYTES = 64 << 20
"""Largest file that is read. A day of speech has about 2 MB; with the times of all words, 20 MB."""
SHOWN = 3
"""Maximum number of examples in a line about many files."""


def read(
    annotations: Path,
    protocol: str,
    seed: int,
    problems: Problems,
    videos: Sequence[VideoRecord] = (),
    language: str | None = None,
) -> Iterator[Caption]:
    """Yield the captions in subtitle files, grouped by video.

    Cues and files that cannot be used are reported and skipped.

    Args:
        annotations: A file, or a folder with files.
        protocol: One of ``PROTOCOLS``.
        seed: Decides the splits.
        problems: Receives skipped cues and files. If it is quiet, nothing else is logged either.
        videos: Known videos, empty if none is known yet. The names of the files are matched to their ids.
        language: If a video has several files, a file whose name has this language is preferred.

    Raises:
        UserError: There are no subtitles, or a single file holds something else.
    """

    def note(message: str) -> None:
        if not problems.quiet:
            say(f"note: {annotations}: {message}")

    of_video = find_files(annotations, videos, language, problems, note)
    reader = _FileReader(problems, note, is_only_one=not annotations.is_dir())
    yield from _captions(of_video, protocol, seed, reader, None, ())


def read_beside(
    dataset: DatasetFolder, protocol: str, seed: int, problems: Problems, language: str | None = None
) -> Iterator[Caption]:
    """Yield the captions in the subtitle files beside the videos of a data set, as ``read`` does.

    A video without such a file has the captions of its transcript, if there is one.

    Args:
        dataset: A data set that lists its videos.
        protocol: One of ``PROTOCOLS``.
        seed: Decides the splits.
        problems: Receives skipped cues and files, except for those that ``find_beside`` reports. If it is quiet,
            nothing else is logged either.
        language: If a video has several files, a file whose name has this language is preferred.
    """

    def note(message: str) -> None:
        if not problems.quiet:
            say(f"note: {dataset.name}: {message}")

    of_video = find_beside(dataset, dataset.read_videos(), language, Problems(quiet=True))
    reader = _FileReader(problems, note, allowed=AllowedFolders.of(dataset))
    store = TranscriptStore(dataset.transcripts)
    yield from _captions(of_video, protocol, seed, reader, store, transcribed_videos(dataset, store))


def read_text(dataset: DatasetFolder, seed: int, problems: Problems) -> Iterator[Caption]:
    """Yield the text in the frames of a data set's videos as captions, grouped by video.

    Args:
        dataset: A data set that lists its videos.
        seed: Decides the splits.
        problems: Receives skipped lines. If it is quiet, nothing else is logged either.
    """

    def note(message: str) -> None:
        if not problems.quiet:
            say(f"note: {dataset.name}: {message}")

    store = TranscriptStore(dataset.text_in_frames)
    splits = draw_splits(transcribed_videos(dataset, store), seed, note, "text in frames has no split")
    for video_id, split in splits.items():
        try:
            segments = store.read(video_id).segments
        except UserError as error:
            problems.add(f"{error}; skipped")
            continue
        for number, segment in enumerate(segments, start=1):
            start, end = segment.start_seconds, segment.end_seconds
            if start == end or not segment.text.strip():
                where = f"{store.folder / video_id}, segment {number}"
                problems.add(
                    f"{where}: {segment.text!r} from {start:g} to {end:g} s, expected a text and a time; skipped"
                )
                continue
            yield Caption(video_id=video_id, caption=segment.text, split=split, start_seconds=start, end_seconds=end)


def transcribed_videos(dataset: DatasetFolder, store: TranscriptStore) -> list[str]:
    """Return the ids of the listed videos whose transcript has segments, sorted."""
    if not store.places:
        return []
    listed = {video.video_id for video in dataset.read_videos()}
    return sorted(video_id for video_id, place in store.places.items() if place.num_segments and video_id in listed)


def _captions(
    of_video: list[list[SubtitleFile]],
    protocol: str,
    seed: int,
    reader: "_FileReader",
    transcripts: TranscriptStore | None,
    transcribed: Sequence[str],
) -> Iterator[Caption]:
    """Yield the captions from the files of each video, and from the transcripts of other videos."""
    clips_of = {files[0].video_id: clips for files in of_video if (clips := reader.first_readable(files))}
    others = [video_id for video_id in transcribed if video_id not in clips_of and video_id not in reader.silent]
    reader.report()
    if not clips_of and not others:
        return
    splits = draw_splits([*clips_of, *others], seed, reader.note, "subtitles have no split")
    for video_id, clips in chain(clips_of.items(), ((each, reader.transcribed(transcripts, each)) for each in others)):
        for start, end, text in _shaped(clips, protocol):
            yield Caption(video_id=video_id, caption=text, split=splits[video_id], start_seconds=start, end_seconds=end)


def _shaped(clips: list[TimedText], protocol: str) -> list[TimedText]:
    return extend(clips) if protocol == "extended" else merge(clips) if protocol == "merged" else clips


class _FileReader:
    """Reads subtitle files, and counts how their cues were changed."""

    def __init__(
        self, problems: Problems, note: Note, *, is_only_one: bool = False, allowed: AllowedFolders | None = None
    ) -> None:
        self.problems, self.note, self.is_only_one, self.allowed = problems, note, is_only_one, allowed
        self.changes: Counter[str] = Counter()
        """Number of cues by change."""
        self.several: list[list[SubtitleFile]] = []
        """The files of each video that has more than one."""
        self.other_json: list[Path] = []
        self.silent: set[str] = set()
        """Videos in which nothing is spoken, according to a file beside them."""

    def first_readable(self, files: list[SubtitleFile]) -> list[TimedText]:
        """Return the cues of a video's first file with cues."""
        for index, file in enumerate(files):
            try:
                clips = self.clips(file.path)
            except NothingSpoken:
                self.note(f"{file.path.name}: no segments in it, so nothing is spoken")
                self.silent.add(file.video_id)
                continue
            if clips:
                if len(files) > index + 1:
                    self.several.append(files[index:])
                return clips
        return []

    def clips(self, path: Path) -> list[TimedText]:
        """Return the cues of a file in time order. If it cannot be used, report it and return no cues.

        Raises:
            NothingSpoken: The file is a transcript without segments.
        """
        try:
            cues = self._cues(path)
        except NoTranscript as error:
            if self.is_only_one:
                advice = "for captions of your own, write one object per line into a .jsonl file"
                raise UserError(f"{path}: {error}; {advice}") from None
            self.other_json.append(path)
            return []
        except (UserError, OSError) as error:
            if self.is_only_one:
                raise
            reason = error if isinstance(error, UserError) else f"{path}: {error.strerror}"
            self.problems.add(f"{reason}; skipped")
            return []
        if not cues:
            self.problems.add(f"{path}: no cue in it, expected lines such as 00:00:01,000 --> 00:00:02,500; skipped")
            return []
        return self._in_order(path, cues)

    def transcribed(self, transcripts: TranscriptStore | None, video_id: str) -> list[TimedText]:
        """Return the cues of a transcript in time order. If it cannot be read, report it and return no cues."""
        if transcripts is None:
            return []
        try:
            transcript = transcripts.read(video_id)
        except UserError as error:
            self.problems.add(f"{error}; skipped")
            return []
        cues = [
            Cue(segment.start_seconds, segment.end_seconds, tuple(filter(None, [plain(segment.text)])), f"segment {n}")
            for n, segment in enumerate(transcript.segments, start=1)
        ]
        return self._in_order(transcripts.folder / video_id, cues)

    def _in_order(self, path: Path, cues: list[Cue]) -> list[TimedText]:
        """Return the usable cues in time order, without repeats."""
        usable = sorted(self._usable(path, cues), key=lambda cue: cue.start_seconds)
        kept = without_repeats(usable)
        self.changes["repeat the previous cue, as rolling captions do: skipped"] += len(usable) - len(kept)
        unique = dict.fromkeys(TimedText(cue.start_seconds, cue.end_seconds, cue.text) for cue in kept)
        self.changes["occur twice in their file: one is skipped"] += len(kept) - len(unique)
        return list(unique)

    def _cues(self, path: Path) -> list[Cue]:
        check_regular(path)
        with open(path if self.allowed is None else self.allowed.open(path)[0], "rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise UserError(f"{path}: has {size >> 20:,} MB; expected subtitles of at most {MAX_BYTES >> 20} MB")
            data, suffix = file.read(), path.suffix.lower()
        content = declared_text(data) if suffix in TTML_SUFFIXES else None
        if content is None:
            content = decode(data, path, lambda text: self.note(f"{path.name}: {text}"), save_as="save it as UTF-8")

        def drop(where: str, reason: str) -> None:
            self.problems.add(f"{path}, {where}: {reason}; skipped")

        if suffix in TTML_SUFFIXES:
            return list(read_ttml(content, path, drop))
        return list((read_segments if suffix == ".json" else read_cues)(content, drop))

    def _usable(self, path: Path, cues: list[Cue]) -> Iterator[Cue]:
        for cue in cues:
            if not cue.lines:
                self.changes["are empty: skipped"] += 1
                continue
            if cue.start_seconds < 0 < cue.end_seconds:
                self.changes["begin before the video: cut at 0"] += 1
                cue = replace(cue, start_seconds=0.0)
            reason = ""
            if cue.end_seconds <= cue.start_seconds or cue.start_seconds < 0:
                times = f"from {cue.start_seconds:g} to {cue.end_seconds:g} s"
                reason = f"{times}, expected 0 <= start < end"
            elif any("\ud800" <= character <= "\udfff" for character in cue.text):
                reason = "half of a surrogate pair, expected valid Unicode"
            if reason:
                self.problems.add(f"{path}, {cue.where}: {reason}; skipped")
            else:
                yield cue

    def report(self) -> None:
        """Report the changes of cues, and the unread files."""
        for change, count in self.changes.items():
            if count:
                self.note(f"{count:,} cues {change}")
        if self.several:
            first = self.several[0]
            others = ", ".join(file.path.name for file in first[1 : 1 + SHOWN])
            read = f"such as {first[0].path.name} and not {others}"
            number = number_of(len(self.several), "videos")
            self.note(f"{number} have several files; only one of each is read, {read}")
        if self.other_json:
            names = ", ".join(path.name for path in self.other_json[:SHOWN])
            number = number_of(len(self.other_json), ".json files")
            self.note(f"ignored: {number} without a transcript of Whisper or WhisperX: {names}")
