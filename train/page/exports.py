"""Downloads of search results from the page: lists, files for editors, and clips.

They contain file names without folders, since a visitor may be a stranger.
"""

import io
import os
import tempfile
import threading
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...storage.common.errors import UserError, reason_of
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import VideoRecord
from ..export.clips import clip_name
from ..export.export import EDITOR_FORMS, SHEET_FORMS, content_of, form_of
from ..export.results import results_of
from ..export.source_videos import Part, SourceError, SourceVideos
from ..search.moments import Moment
from .concurrency import one_at_a_time

ExportForm = Literal["json", "csv", "m3u8", "vtt", "srt", "edl", "fcpxml", "otio", "jpg", "png"]
MAX_LISTED, MAX_READ = 1000, 60
"""Maximum number of moments of an export; and of an export that reads each video."""
READ_SECONDS = 30.0
"""Time limit for reading the videos of an export."""
MAX_AT_ONCE = 2
"""Maximum number of exports that read videos at once, and of clips that are cut at once."""
MAX_CUT_SECONDS, MAX_CUT_BYTES, CUT_SECONDS = 120.0, 512 << 20, 180.0
"""Maximum duration and size of a visitor's clip, and the time limit for cutting it."""
MEDIA_TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "m3u8": "application/vnd.apple.mpegurl",
    "vtt": "text/vtt; charset=utf-8",
    "jpg": "image/jpeg",
    "png": "image/png",
    "zip": "application/zip",
}
CUT_TYPES = {".mp4": "video/mp4", ".mov": "video/quicktime", ".mkv": "video/x-matroska"}


class CutError(Exception):
    """A clip could not be cut. The message gives the reason."""


class PageExports:
    """Limits how many exports read videos, and how many clips are cut, at the same time.

    Each address gets one export and one clip at a time, so no single address keeps others out.
    """

    def __init__(self) -> None:
        self._reading, self._cutting = (threading.BoundedSemaphore(MAX_AT_ONCE) for _ in range(2))

    def file(
        self,
        form: ExportForm,
        moments: Sequence[Moment],
        dataset: DatasetFolder,
        videos: Mapping[str, VideoRecord],
        about: dict[str, Any],
    ) -> tuple[str, bytes, list[str]]:
        """Return an export of moments as (file name, bytes, reasons for missing moments).

        Args:
            form: Format of the file.
            moments: The moments that were found.
            dataset: Their data set.
            videos: {id: video} of it.
            about: As ``export.about_search`` returns it.

        Raises:
            UserError: The moments cannot be exported in this format.
            Busy: Too many exports are asked for.
        """
        suffix = form_of(f"moments.{form}")
        is_read = suffix in EDITOR_FORMS or suffix in SHEET_FORMS
        results = results_of(moments, about["query"])
        if is_read and len(results) > MAX_READ:
            raise UserError(
                f"{form}: needs to read the videos of {len(results):,} moments; expected at most {MAX_READ}; for more, "
                "use vlalign-search --export"
            )
        with SourceVideos(dataset, videos, with_folders=False, wait_seconds=READ_SECONDS) as sources:
            if is_read:
                with one_at_a_time(self._reading, "exports"):
                    content = content_of(suffix, results, sources, about)
            else:
                content = content_of(suffix, results, sources, about)
        if len(content.files) == 1:
            return f"moments.{form}", next(iter(content.files.values())), content.problems
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for addition, each in content.files.items():
                archive.writestr(f"moments{addition}.{form}", each)
        return f"moments-{form}.zip", packed.getvalue(), content.problems

    def clip(
        self, part: Part, exact: bool, dataset: DatasetFolder, videos: Mapping[str, VideoRecord]
    ) -> tuple[str, int, str]:
        """Cut a clip; return (name for the download, descriptor of a file without a name, media type).

        Args:
            part: The part of a video.
            exact: Encode it again, exact to the frame; if False, copy it from the key frame before.
            dataset: The data set.
            videos: {id: video} of it.

        Raises:
            UserError: The part is too long.
            CutError: It cannot be cut.
            Busy: Too many clips are asked for.
        """
        if not 0 < part.end_seconds - part.start_seconds <= MAX_CUT_SECONDS:
            raise UserError(f"end {part.end_seconds:g}: expected up to {MAX_CUT_SECONDS:.0f} s after start")
        with (
            one_at_a_time(self._cutting, "clips"),
            SourceVideos(dataset, videos, with_folders=False, wait_seconds=CUT_SECONDS) as sources,
            tempfile.TemporaryFile() as file,
        ):
            kind = "exact" if exact else "copy"
            try:
                facts = sources.probe(part)
                name = clip_name(1, part, kind, facts)
                sources.cut(part, kind, file, MAX_CUT_BYTES)
                file.flush()
            except SourceError as error:
                raise CutError(str(error)) from None
            except OSError as error:
                raise CutError(error.strerror or reason_of(error)) from None
            return name.removeprefix("0001-"), os.dup(file.fileno()), CUT_TYPES[os.path.splitext(name)[1]]
