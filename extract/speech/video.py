"""The speech of one video: the sandboxed decoder sends sound in parts to the recogniser."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...storage.captions.transcripts import MAX_TRANSCRIPT_BYTES, Transcript
from ...storage.common.files import file_identity
from ...storage.common.system import available_cores
from ..decoding.errors import VideoError
from ..decoding.log_mel import RATE
from ..decoding.messages import InvalidMessage, Request, SamplesFollow
from ..decoding.process import DecodeProcess
from ..decoding.sampling import MAX_VIDEO_SECONDS
from ..decoding.sound import MAX_BLOCK_SAMPLES, SamplesFinished
from .cues import segments_of
from .messages import RecognisedPart
from .model import SpeechModel, find_model
from .recogniser import Recogniser
from .settings import DEFAULT_MODEL
from .suppression import keep_speech

PART_SECONDS = 300
"""Length of a part of sound in memory: 10 MB. Speech at its end is recognised with the next part."""
SAMPLE_BYTES = 2


@dataclass
class Transcriber:
    """A decoder and a recogniser, reused for many videos. A process that has ended is replaced."""

    model: SpeechModel
    device: str
    num_threads: int
    _decoder: DecodeProcess | None = field(default=None, init=False)
    _recogniser: Recogniser | None = field(default=None, init=False)

    def transcribe(self, video_id: str, path: Path, *, folders: Sequence[str] | None = None) -> Transcript:
        """Return the speech of a video. A video without sound has a transcript without segments.

        Args:
            video_id: Id of the video.
            path: The video or sound file.
            folders: Folders that must contain the file when it is opened; None for any.

        Raises:
            VideoError: The sound cannot be decoded, or a process crashed or hung.
            UserError: The model cannot be loaded.
        """
        source = file_identity(path)
        decoder, recogniser = self._processes()
        try:
            finished, parts = _recognised_parts(path, decoder, recogniser, folders)
        except VideoError as error:
            if error.kind != "no_sound":
                self._end_broken()
                raise
            return Transcript(video_id=video_id, source=source, model=self.model.key, duration_seconds=0.0)
        except BaseException:  # the processes are in the middle of a video
            self.close()
            raise
        kept = keep_speech(parts, is_multilingual=recogniser.is_multilingual)
        transcript = Transcript(
            video_id=video_id,
            source=source,
            model=self.model.key,
            duration_seconds=round(finished.num_samples / RATE, 2),
            languages=kept.languages,
            language_probability=kept.language_probability,
            left_out=kept.left_out,
            partial=finished.partial,
            segments=segments_of(kept.words),
        )
        if (num_bytes := len(transcript.to_line())) > MAX_TRANSCRIPT_BYTES:
            raise recogniser.refused(InvalidMessage(f"a transcript of {num_bytes:,} bytes"))
        return transcript

    def _processes(self) -> tuple[DecodeProcess, Recogniser]:
        if self._decoder is None or not self._decoder.usable:
            if self._decoder is not None:
                self._decoder.close()
            self._decoder = DecodeProcess()
        if self._recogniser is None or not self._recogniser.usable:
            if self._recogniser is not None:
                self._recogniser.close()
            self._recogniser = Recogniser(self.model, self.device, self.num_threads)
        return self._decoder, self._recogniser

    def _end_broken(self) -> None:
        """End the decoder, which may be in the middle of a video; the recogniser is done with its part or has ended."""
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

    def close(self) -> None:
        """End both processes."""
        for process in (self._decoder, self._recogniser):
            if process is not None:
                process.close()
        self._decoder = self._recogniser = None


def transcribe_video(path: Path | str, *, weights: str = DEFAULT_MODEL, device: str = "cpu") -> Transcript:
    """Return the speech of a video or sound file, with times.

    Args:
        path: The file.
        weights: Folder of a Whisper model in CTranslate2's format, or ``hf:ORG/MODEL``.
        device: "cpu" or "cuda:N".

    Returns:
        The segments, each with its start, end and text, and the language.

    Raises:
        VideoError: The sound cannot be decoded.
        UserError: The model cannot be used.

    Example:
        >>> from vlalign.extract import transcribe_video
        >>> transcript = transcribe_video("onion.mp4", weights="models/whisper-small")  # doctest: +SKIP
        >>> [(segment.start_seconds, segment.text) for segment in transcript.segments]  # doctest: +SKIP
        [(0.52, 'First we cut the onion into small pieces.')]
    """
    transcriber = Transcriber(find_model(weights), device, available_cores())
    with contextlib.closing(transcriber):
        return transcriber.transcribe(Path(path).stem, Path(path))


def _recognised_parts(
    path: Path, decoder: DecodeProcess, recogniser: Recogniser, folders: Sequence[str] | None
) -> tuple[SamplesFinished, list[tuple[float, RecognisedPart]]]:
    """Return the decoder's summary, and (start second, recognised speech) of each part."""
    decoder.start(Request(str(path), [], samples=True, folders=folders))
    recogniser.begin()
    parts: list[tuple[float, RecognisedPart]] = []
    blocks: list[bytes] = []
    first = num_waiting = 0
    while True:
        message = decoder.receive()
        if isinstance(message, SamplesFinished):
            if message.num_samples != first + num_waiting:
                raise decoder.refused(InvalidMessage(f"{message.num_samples:,} samples of sound"))
            break
        if not isinstance(message, SamplesFollow):
            continue
        block = decoder.receive_bytes(MAX_BLOCK_SAMPLES * SAMPLE_BYTES)
        num_waiting += len(block) // SAMPLE_BYTES
        if not block or len(block) % SAMPLE_BYTES or first + num_waiting > (MAX_VIDEO_SECONDS + 1) * RATE:
            raise decoder.refused(InvalidMessage(f"{len(block):,} more bytes of sound"))
        blocks.append(block)
        while num_waiting >= PART_SECONDS * RATE:
            part = recogniser.recognise(blocks, is_last=False)
            parts.append((first / RATE, part))
            rest = b"".join(blocks)[part.num_done * SAMPLE_BYTES :]
            blocks, num_waiting, first = [rest], num_waiting - part.num_done, first + part.num_done
            decoder.last_heard = time.monotonic()  # its messages were not read in the meantime
    if num_waiting:
        parts.append((first / RATE, recogniser.recognise(blocks, is_last=True)))
    return message, parts
