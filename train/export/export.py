"""Exports the moments of a search as lists, chapters, timelines for video editors, contact sheets and clips."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.packages import package_version
from ...storage.common.terminal import one_line
from ...storage.common.writing import atomic_write, check_folders
from ..search.moments import Moment
from ..search.search import Search
from . import text_files, timelines
from .clips import ExportedClip, refuse_existing, write_clips
from .results import MAX_LABEL_CHARACTERS, Result, results_of
from .source_videos import SourceVideos

TEXT_FORMS = (".json", ".csv", ".m3u8", ".m3u", ".vtt", ".srt")
EDITOR_FORMS: dict[str, Callable[[Sequence[timelines.EditClip], str], dict[str, str]]] = {
    ".otio": lambda clips, name: {"": timelines.otio_text(clips, name)},
    ".edl": timelines.edl_texts,
    ".fcpxml": lambda clips, name: {"": timelines.fcpxml_text(clips, name)},
}
SHEET_FORMS = (".jpg", ".jpeg", ".png", ".webp")
FORMS = (*TEXT_FORMS, *EDITOR_FORMS, *SHEET_FORMS)
"""Suffixes of files that moments can be exported to."""
NOTHING = "no moments to export"


@dataclass(frozen=True)
class Content:
    """Moments as files that are not written yet."""

    files: dict[str, bytes]
    """{text added to the file's name before the suffix: content of the file}"""
    problems: list[str] = field(default_factory=list)
    """Reasons why some moments are missing."""
    notes: list[str] = field(default_factory=list)
    """Notes on other moments."""


@dataclass(frozen=True)
class ExportedMoments:
    """Files that moments were exported to.

    Example:
        >>> from pathlib import Path
        >>> from vlalign.train import ExportedMoments
        >>> ExportedMoments([Path("onion.csv")], num_moments=3, problems=[], notes=[]).num_moments
        3
    """

    paths: list[Path]
    """One file; for chapters and subtitles, one for each video; for EDLs, one per frame rate, and drop-frame or not."""
    num_moments: int
    """Number of moments in the files."""
    problems: list[str]
    """A line for each moment that is not in the files, for example because its video cannot be read."""
    notes: list[str]
    """For video editors: a line for each video with a variable frame rate, one unknown to editors, or an impossible
    timecode, and a line if several EDLs were written."""


@dataclass(frozen=True)
class ExportedClips:
    """Moments that were cut out.

    Example:
        >>> from pathlib import Path
        >>> from vlalign.train import ExportedClip, ExportedClips
        >>> cut = ExportedClips([ExportedClip(Path("cut/0001.mp4"), "copy", 1.0, 2.0)], problems=[])
        >>> [clip.path.name for clip in cut.clips]
        ['0001.mp4']
    """

    clips: list[ExportedClip]
    """The files."""
    problems: list[str]
    """A line for each moment that could not be cut."""


def form_of(path: Path | str) -> str:
    """Return the form of a file by its suffix.

    Raises:
        UserError: There is no such form, or a package for it is missing.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMS:
        raise UserError(f"{path}: cannot export to a file with this suffix; expected one of {', '.join(FORMS)}")
    if suffix in EDITOR_FORMS:
        timelines.require_editors()
    return suffix


def content_of(form: str, results: Sequence[Result], videos: SourceVideos, about: dict[str, Any]) -> Content:
    """Return moments in a form.

    Args:
        form: One of ``FORMS``.
        results: The moments.
        videos: Their files, which are read for editors' timelines and contact sheets.
        about: What ``about_search`` returned.

    Raises:
        UserError: They cannot be in this form, or none of their videos can be read.
    """
    if not results:
        raise UserError(NOTHING)
    problems: list[str] = []
    notes: list[str] = []
    if form in EDITOR_FORMS:
        clips, problems, notes = timelines.edit_clips(results, videos)
        if not clips:
            raise UserError(f"none of the moments can be exported: {problems[0]}")
        texts = EDITOR_FORMS[form](clips, one_line(about["query"][:MAX_LABEL_CHARACTERS]) or "moments")
        if len(texts) > 1:
            notes.append(f"an EDL has one frame rate, and is drop-frame or not: {len(texts)} EDLs were written")
    elif form in SHEET_FORMS:
        from .contact_sheet import contact_sheet

        image, problems = contact_sheet(results, videos, form)
        return Content({"": image}, problems)
    elif form == ".json":
        texts = {"": text_files.json_text(results, videos, about)}
    elif form == ".csv":
        texts = {"": text_files.csv_text(results, videos)}
    elif form in (".vtt", ".srt"):
        texts = text_files.cue_texts(results, form)
    else:
        text, problems = text_files.playlist_text(results, videos)
        texts = {"": text}
    return Content({addition: text.encode() for addition, text in texts.items()}, problems, notes)


def about_search(search: Search, query: str) -> dict[str, Any]:
    """Return the facts about the search that an export records."""
    encoder = search.encoder
    return {
        "made_by": f"vlalign {package_version()}",
        "query": query,
        "dataset": encoder.dataset.name,
        "model": encoder.name,
    }


def export_moments(search: Search, moments: Sequence[Moment], path: Path | str, *, query: str = "") -> ExportedMoments:
    """Write moments to a file. The suffix of its name decides the format.

    ``.json`` and ``.csv`` are lists, ``.m3u8`` a playlist for VLC; ``.vtt`` has WebVTT chapters and ``.srt`` subtitles:
    a file for each video, numbered if there are several. ``.otio`` (OpenTimelineIO), ``.edl`` (CMX3600) and
    ``.fcpxml`` are for video editors and need the extra ``editors``: a clip for each moment, from the frame shown at
    its start up to, but without, the frame shown at its end; there is an EDL for each frame rate. ``.jpg``, ``.png``
    and ``.webp`` are contact sheets.

    Args:
        search: The search that found the moments. Its data set has their files.
        moments: What the search found. If it is grouped by video, all occurrences are exported.
        path: The file, which must not exist yet.
        query: What was searched for. It is the label of moments that have no matching caption.

    Returns:
        The files, and a line for each moment that is not in them.

    Raises:
        UserError: The suffix is unknown, a package is missing, a file exists, there are no moments, or they cannot be
            in this form, such as more than 999 in an EDL.

    Example:
        >>> from vlalign.train import export_moments, open_search
        >>> search = open_search("vlalign_data/demo", run="words-s3d-seed0", device="cpu")
        >>> moments = search("cut the onion", num_results=3)
        >>> exported = export_moments(search, moments, "onion.csv", query="cut the onion")
        >>> [path.name for path in exported.paths]
        ['onion.csv']
    """
    path = Path(path)
    form = form_of(path)
    results = results_of(moments, query)
    refuse_existing(path)
    with SourceVideos.of(search.encoder.dataset) as videos:
        content = content_of(form, results, videos, about_search(search, query))
    paths = [path.with_name(f"{path.stem}{addition}{path.suffix}") for addition in content.files]
    for each in paths:
        refuse_existing(each)
    check_folders(path.parent)
    for each, written in zip(paths, content.files.values(), strict=True):
        with atomic_write(each) as unfinished:
            unfinished.write_bytes(written)
    return ExportedMoments(paths, len(results) - len(content.problems), content.problems, content.notes)


def export_clips(
    search: Search, moments: Sequence[Moment], folder: Path | str, *, exact: bool = False, query: str = ""
) -> ExportedClips:
    """Cut moments out of their videos, as files in a folder.

    A file is named by a number, its video and the second of the video at which it begins. Beside it are a ``.json``
    with facts about it, and an ``.srt`` with its captions, with times from the start of the clip.

    Args:
        search: The search that found the moments.
        moments: What the search found. If it is grouped by video, all occurrences are cut out.
        folder: Receives the files; made if it is missing. Existing files are not replaced.
        exact: Encode again, as H.264 and AAC in an MP4: the first and last frames are those of the moment. If False,
            the packets are copied from the key frame before on, without loss and fast: the clip begins earlier.
        query: What was searched for, for the files beside the clips.

    Returns:
        The files, and a line for each moment that could not be cut.

    Raises:
        UserError: There are no moments, or a file exists.

    Example:
        >>> from dataclasses import replace
        >>> from vlalign.train import export_clips, open_search
        >>> search = open_search("vlalign_data/demo", run="words-s3d-seed0", device="cpu")
        >>> found = search("cut the onion", videos=["demo0000"], num_results=1)
        >>> second = replace(found[0], start_seconds=1.0, end_seconds=2.0)
        >>> cut = export_clips(search, [second], "cut", exact=True)
        >>> [clip.kind for clip in cut.clips], cut.problems
        (['exact'], [])
    """
    results = results_of(moments, query)
    if not results:
        raise UserError(NOTHING)
    with SourceVideos.of(search.encoder.dataset) as videos:
        about = about_search(search, query)
        return ExportedClips(*write_clips(results, videos, Path(folder), "exact" if exact else "copy", about))
