"""Moments cut out as files: copied at key frames, or encoded again and exact, with captions and facts beside them."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...storage.captions.files import TimedCaption, caption_parts, read_timed_captions
from ...storage.common.errors import UserError
from ...storage.common.files import write_json, write_text
from ...storage.common.progress import progress
from ...storage.common.terminal import one_line
from ...storage.common.writing import atomic_write, make_folder
from ..search.moments import Moment
from .results import Result, safe_name
from .source_videos import Part, SourceError, SourceVideos
from .text_files import problem_of, srt_text

if TYPE_CHECKING:
    from ...extract.decoding.clip_file import ClipWritten
    from ...extract.decoding.span import SpanProbed
    from ...extract.videos.spans import ClipKind

SUFFIXES = {"mp4": ".mp4", "mov": ".mov", "matroska": ".mkv"}
"""{FFmpeg's name of a container: suffix}"""


@dataclass(frozen=True)
class ExportedClip:
    """A moment that was cut out.

    Example:
        >>> from pathlib import Path
        >>> from vlalign.train import ExportedClip
        >>> ExportedClip(Path("cut/0001.mp4"), "exact", start_seconds=1.0, end_seconds=2.0).line()
        'cut/0001.mp4: 1.000 - 2.000 s of the video, encoded again, exact'
    """

    path: Path
    """The file."""
    kind: str
    """"copy" or "exact"."""
    start_seconds: float
    """Time of the clip's first frame in the video."""
    end_seconds: float
    """Time in the video at which the clip's last frame ends."""

    def line(self) -> str:
        """Return a description for messages."""
        how = "copied from the key frame before" if self.kind == "copy" else "encoded again, exact"
        return f"{self.path}: {self.start_seconds:.3f} - {self.end_seconds:.3f} s of the video, {how}"


def write_clips(
    results: Sequence[Result], videos: SourceVideos, folder: Path, kind: "ClipKind", about: dict[str, Any]
) -> tuple[list[ExportedClip], list[str]]:
    """Cut moments out; return the clips, and why some could not be cut.

    Args:
        results: The moments.
        videos: Their files.
        folder: Receives the files; made if it is missing. Existing files are not replaced.
        kind: How they are cut.
        about: Facts about the search, for the JSON file beside each clip.
    """
    make_folder(folder)
    captions = captions_of(videos, {each.moment.video_id for each in results})
    clips, problems = [], []
    for each in progress(results, total=len(results), what="cutting clips", unit="clips"):
        try:
            clips.append(_write_clip(each, videos, folder, kind, about, captions.get(each.moment.video_id, ())))
        except SourceError as error:
            problems.append(problem_of(each, error))
    return clips, problems


def captions_of(videos: SourceVideos, video_ids: Collection[str]) -> dict[str, list[TimedCaption]]:
    """Return {video: its captions}, each once, of all protocols. Search reads the same captions."""
    found: dict[str, dict[TimedCaption, None]] = defaultdict(dict)
    for part in caption_parts(videos.dataset):
        for caption in read_timed_captions(part):
            if caption.video_id in video_ids:
                found[caption.video_id][caption] = None
    return {video_id: [*captions] for video_id, captions in found.items()}


def _write_clip(
    result: Result,
    videos: SourceVideos,
    folder: Path,
    kind: "ClipKind",
    about: dict[str, Any],
    captions: Sequence[TimedCaption],
) -> ExportedClip:
    facts = videos.probe(result.moment)
    path = folder / clip_name(result.number, result.moment, kind, facts)
    sidecars = path.with_suffix(".json"), path.with_suffix(".srt")
    for each in (path, *sidecars):
        refuse_existing(each)
    written = cut(result.moment, videos, kind, path)
    clip = ExportedClip(path, kind, written.start_seconds, written.end_seconds)
    cues = cues_inside(captions, written)
    if cues:
        write_text(sidecars[1], srt_text(cues))
    asked = {"start_seconds": result.moment.start_seconds, "end_seconds": result.moment.end_seconds}
    got = {"start_seconds": written.start_seconds, "end_seconds": written.end_seconds, "num_frames": written.num_frames}
    whole = [caption.text for caption in captions if caption.start_seconds is None]
    facts_of_clip = {"number": result.number, "video_id": result.moment.video_id, "kind": kind}
    facts_of_clip |= {"asked": asked, "got": got, "label": result.label, "captions_of_video": whole}
    write_json(sidecars[0], {**about, **facts_of_clip, "score": result.moment.score})
    return clip


def clip_name(number: int, moment: Moment | Part, kind: str, facts: "SpanProbed") -> str:
    """Return the name of a clip's file: number, video, the second at which it really begins, and how it was cut.

    Raises:
        SourceError: It cannot be copied.
    """
    if kind == "copy" and not facts.copy_container:
        from ...extract.decoding.span import NOT_COPIED

        raise SourceError(NOT_COPIED)
    suffix = ".mp4" if kind == "exact" else SUFFIXES.get(facts.copy_container, ".mkv")
    start = facts.start_seconds if kind == "exact" else facts.key_seconds
    return f"{number:04d}-{safe_name(moment.video_id)}-{start:.3f}s-{kind}{suffix}"


def refuse_existing(path: Path) -> None:
    """Raise ``UserError`` if a path exists: nothing is replaced."""
    if path.is_symlink() or path.exists():
        raise UserError(f"{path}: already exists; remove it, or choose another name")


def cut(moment: Moment, videos: SourceVideos, kind: "ClipKind", path: Path) -> "ClipWritten":
    """Write a moment as a file, which gets its name only once it is complete.

    Raises:
        SourceError: It cannot be read, or not be cut.
    """
    with atomic_write(path) as unfinished, open(unfinished, "wb") as file:
        return videos.cut(moment, kind, file)


def cues_inside(captions: Sequence[TimedCaption], clip: "ClipWritten") -> list[tuple[float, float, str]]:
    """Return the captions that overlap a clip, sorted, with times from the start of the clip.

    caption 3 s to 6 s, clip of 4 s to 10 s  ->  0 s to 2 s
    """
    cues = []
    for caption in captions:
        if caption.start_seconds is None or caption.end_seconds is None:
            continue
        start, end = max(caption.start_seconds, clip.start_seconds), min(caption.end_seconds, clip.end_seconds)
        if start < end:
            text = one_line(" ".join(caption.text.split()))
            cues.append((start - clip.start_seconds, end - clip.start_seconds, text))
    return sorted(cues)
