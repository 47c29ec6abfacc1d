"""The text in the frames of one video after another, as transcripts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...storage.captions.transcripts import Transcript, TranscriptSegment
from ...storage.common.errors import UserError
from ...storage.common.files import file_identity
from ..decoding.errors import VideoError
from .model import TextModel, find_text_model
from .reader import TextReader
from .video_text import VideoText, video_text

MIN_SECONDS = 0.1
"""Minimum time for which a line is shown: the last frame of a video may have a duration of 0."""


@dataclass
class TextTranscriber:
    """A text reader that is reused for many videos and replaced after a crash."""

    model: TextModel
    _reader: TextReader | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Raise ``UserError`` if this machine has other models than the task requires, as may happen in a cluster."""
        if (here := find_text_model()) != self.model:
            raise UserError(
                f"text in frames: this machine has {here.name} (SHA-256 of its models {here.sha256[:12]}), expected "
                f"{self.model.name} ({self.model.sha256[:12]}); install the same version on all machines"
            )

    def transcribe(self, video_id: str, path: Path, *, folders: Sequence[str] | None = None) -> Transcript:
        """Return the text in the frames of a video or image: a segment for each line, with its time.

        A file without frames, such as a sound file, has a transcript without segments.

        Args:
            video_id: Id of the video.
            path: The file.
            folders: Folders that must contain the file when it is opened; None for any.

        Raises:
            VideoError: The video cannot be decoded, or the process that reads its text crashed or hung.
        """
        source = file_identity(path)
        if self._reader is None or not self._reader.usable:
            self._reader = TextReader()
        try:
            text = video_text(path, self._reader, folders=folders)
        except VideoError as error:
            if error.kind != "no_video":
                raise
            text = VideoText(spans=[], duration_seconds=0.0, partial="")
        except BaseException:  # the process is in the middle of a frame
            self.close()
            raise
        return Transcript(
            video_id=video_id,
            source=source,
            model=self.model.key,
            duration_seconds=round(text.duration_seconds, 2),
            partial=text.partial,
            segments=[
                TranscriptSegment(
                    round(span.start_seconds, 2),
                    round(max(span.end_seconds, span.start_seconds + MIN_SECONDS), 2),
                    span.text,
                    round(span.confidence, 4),
                )
                for span in text.spans
                if span.text
            ],
        )

    def close(self) -> None:
        """End the process."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
