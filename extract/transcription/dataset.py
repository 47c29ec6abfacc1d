"""Transcribe the videos of a data set: the Python call behind ``vlalign-transcribe``.

Speech and text in frames have models (``SpeechModel``, ``TextModel``) and processes (``Transcriber``,
``TextTranscriber``) of their own; all else is the same.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...storage.captions.transcripts import LOCK_NAME, Transcript, TranscriptPlace, TranscriptStore
from ...storage.common.errors import SettingError, UserError
from ...storage.common.locks import folder_lock
from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, progress, report_progress_to
from ...storage.common.signals import report_saved_work, uninterrupted
from ...storage.common.system import available_cores
from ...storage.common.terminal import number_of, say
from ...storage.common.threads import map_in_threads
from ...storage.common.writing import check_folders
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.trusted_folders import AllowedFolders, allow_folder, refuse_other_folders
from ...storage.records import Failure, VideoRecord
from ...storage.stores.failure_log import FAILURES_NAME, FailureLog
from ..decoding import sandbox
from ..decoding.errors import VideoError
from ..ocr.model import TextModel, find_text_model
from ..ocr.transcriber import TextTranscriber
from ..pipeline.pending_work import VideoFile, is_transient
from ..speech.model import SpeechModel, find_model
from ..speech.video import Transcriber
from .settings import TEXT, TranscriptionSettings


@dataclass(frozen=True, kw_only=True)
class TranscriptionResult:
    """The result of a transcription.

    Example:
        >>> from vlalign.extract import TranscriptionResult
        >>> result = TranscriptionResult(num_videos=2, num_tried=2, transcribed=["one"], failed=["two"])
        >>> result.complete
        False
    """

    num_videos: int
    """Requested videos that are on this machine."""
    num_tried: int
    """Videos that lacked a transcript before."""
    transcribed: Sequence[str] = ()
    """Ids of the videos that were transcribed now."""
    num_with_text: int = 0
    """Videos in ``transcribed`` with speech, or with text in their frames."""
    duration_seconds: float = 0.0
    """Total length of the sound of the videos in ``transcribed``, or of the videos if text in frames was read."""
    failed: Sequence[str] = ()
    """Ids of all videos that lack a transcript because they failed, also in an earlier call."""
    num_at_addresses: int = 0
    """Videos that are not on this machine, and are not transcribed."""
    num_untried: int = 0
    """Videos that lack a transcript and were not tried, because ``retry_failed`` selects only videos that failed
    before."""

    @property
    def complete(self) -> bool:
        """True if all videos have a transcript."""
        return not self.failed and not self.num_at_addresses and not self.num_untried


@dataclass(frozen=True)
class TranscriptionTask:
    """A video to transcribe."""

    video_id: str
    path: Path
    folders: Sequence[str]
    """Folders that must contain the file when it is opened."""


@dataclass(frozen=True)
class TranscriptionOutcome:
    """The outcome of a video: a transcript or a failure."""

    video_id: str
    transcript: Transcript | None
    failure: Failure | None


Transcribe = Callable[[TranscriptionTask], TranscriptionOutcome]
"""Transcribes one video. It can be pickled."""


class Spread(Protocol):
    """Calls a function for each item on other machines; yields the results in order of completion."""

    def __call__(
        self, call: Transcribe, items: Iterable[TranscriptionTask], *, doing: str
    ) -> Iterator[TranscriptionOutcome]:
        """Yield the results."""
        ...


Model = SpeechModel | TextModel

_transcribers: dict[tuple[str, str, int], Transcriber | TextTranscriber] = {}
"""Transcribers of this process, reused for many videos: {(key of the model, device, number of threads): transcriber}.
"""


@dataclass(frozen=True)
class TranscribeVideos:
    """Transcribes one video after another, in processes that are reused."""

    model: Model
    device: str
    num_threads: int = field(default_factory=available_cores)
    """Number of threads of the speech recogniser; text in frames is read by one thread."""

    @property
    def _key(self) -> tuple[str, str, int]:
        return self.model.key, self.device, self.num_threads

    def __call__(self, task: TranscriptionTask) -> TranscriptionOutcome:
        """Transcribe a video and return its outcome.

        Raises:
            UserError: The model cannot be loaded.
        """
        transcriber = _transcribers.get(self._key)
        if transcriber is None:
            if isinstance(self.model, TextModel):
                transcriber = TextTranscriber(self.model)
            else:
                transcriber = Transcriber(self.model, self.device, self.num_threads)
            _transcribers[self._key] = transcriber
        file = VideoFile(str(task.path))
        file.read()
        try:
            transcript = transcriber.transcribe(task.video_id, task.path, folders=task.folders)
        except VideoError as error:
            failure = Failure(
                video_id=task.video_id,
                path=str(task.path),
                kind=error.kind,
                message=str(error),
                source=file.identity or "",
            )
            return TranscriptionOutcome(task.video_id, None, failure)
        return TranscriptionOutcome(task.video_id, transcript, None)

    def close(self) -> None:
        """End the processes."""
        if (transcriber := _transcribers.pop(self._key, None)) is not None:
            transcriber.close()


def transcribe_dataset(
    settings: TranscriptionSettings, *, spread: Spread | None = None, on_progress: Listener | None = None
) -> TranscriptionResult:
    """Transcribe the videos of a data set: speech into ``transcripts/``, or text in frames into ``text_in_frames/``.

    A video that fails is recorded in ``failures.jsonl`` there and the others continue; it is not tried again unless its
    file changes or ``settings.retry_failed`` is set. If the call is interrupted, the next one resumes there: at most
    the video in progress is transcribed again.

    Args:
        settings: What to transcribe, and by which model.
        spread: Runs the work elsewhere, such as on the CPUs of a cluster (default: in processes of this machine).
        on_progress: Called with the progress of the work.

    Returns:
        The number of videos, and the ids of those that were transcribed or failed.

    Raises:
        UserError: A setting, the list of videos or the model cannot be used.
        OSError: A file cannot be written.

    Example:
        >>> from vlalign.extract import TranscriptionSettings, transcribe_dataset
        >>> result = transcribe_dataset(TranscriptionSettings(dataset="vlalign_data/demo", what="text"))
        >>> result.num_videos, result.failed
        (2, [])
    """
    dataset = settings.folder
    for folder in settings.allow_folder:
        allow_folder(dataset, folder)
    videos = dataset.read_videos()
    if not videos:
        raise UserError(
            f"{dataset.videos_file}: lists no videos; run vlalign-sync FOLDER or vlalign-extract --videos FOLDER first"
        )
    listed = {video.video_id for video in videos}
    if settings.video_ids is not None:
        wanted = set(settings.video_ids)
        if unknown := sorted(wanted - listed):
            raise UserError(
                f"video_ids: {number_of(len(unknown), 'ids')} not in {dataset.videos_file}, such as {unknown[0]!r}; "
                "expected ids of videos in that file"
            )
        videos = [video for video in videos if video.video_id in wanted]
    here = [video for video in videos if not video.url]
    refuse_other_folders(dataset, here)
    check_folders(settings.transcripts)
    lock = folder_lock(settings.transcripts / LOCK_NAME, "transcribes videos")
    with lock, report_progress_to(on_progress), Problems(file=dataset.problems("transcribe")) as problems:
        store, log = TranscriptStore(settings.transcripts), FailureLog(settings.transcripts / FAILURES_NAME)
        model = find_text_model() if settings.what == TEXT else find_model(settings.weights)
        others = _other_models(store, listed, model.key)
        if not settings.replace:
            _check_same_model(model, others, store.describe_model)
        tasks = pending_videos(dataset, here, store, log, model.key, only_failed=settings.retry_failed)
        if tasks:
            work = _Work(settings, model, store, log, problems)
            work.run(tasks, spread)
            transcribed, with_text, seconds = work.transcribed, work.num_with_text, work.duration_seconds
        else:
            transcribed, with_text, seconds = [], 0, 0.0
        asked = {video.video_id for video in here}
        untried: set[str] = set()
        if settings.retry_failed:
            untried = {task.video_id for task in pending_videos(dataset, here, store, log, model.key)}
        return TranscriptionResult(
            num_videos=len(here),
            num_tried=len(tasks),
            transcribed=transcribed,
            num_with_text=with_text,
            duration_seconds=seconds,
            failed=[video_id for video_id in log.failures if video_id in asked],
            num_at_addresses=len(videos) - len(here),
            num_untried=len(untried - log.failures.keys()),
        )


def _check_same_model(model: Model, others: Mapping[str, int], describe: Callable[[str], Mapping[str, Any]]) -> None:
    """Raise ``UserError`` if there are transcripts of another model.

    Args:
        model: The requested model.
        others: {key of another model: number of its transcripts}
        describe: Returns the model and settings that belong to a key.
    """
    if not others:
        return
    key = next(iter(others))
    about = describe(key)
    known = about.get("model")
    before = f"{str(known)[:80]!r} (SHA-256 {str(about.get('sha256'))[:12]!r})" if known else f"a model {key}"
    is_text = isinstance(model, TextModel)
    same = "install the earlier version again" if is_text else "pass the same --weights as before"
    again = (
        "vlalign-transcribe --what text --replace" if is_text else "vlalign-transcribe --replace and these --weights"
    )
    raise UserError(
        f"{sum(others.values()):,} transcripts were made by {before}, and {model.name} (SHA-256 "
        f"{model.sha256[:12]}) would make different ones; {same}, or transcribe all videos again with {again}"
    )


def pending_videos(
    dataset: DatasetFolder,
    videos: Sequence[VideoRecord],
    store: TranscriptStore,
    log: FailureLog,
    key: str,
    *,
    only_failed: bool = False,
) -> list[TranscriptionTask]:
    """Return the videos without a transcript of a model, except videos that failed for a permanent reason.

    Args:
        dataset: The data set.
        videos: Its videos, all on this machine.
        store: Its transcripts.
        log: The failed videos.
        key: Key of the model.
        only_failed: Return all failed videos instead.
    """
    folders = AllowedFolders.of(dataset).folders

    def needs(video: VideoRecord) -> bool:
        failure, place = log.failures.get(video.video_id), store.places.get(video.video_id)
        if only_failed:
            return failure is not None
        if place is None and (failure is None or is_transient(failure)):
            return True
        file = VideoFile(dataset.video_file(video))
        if failure is not None and not is_transient(failure):
            file.read()
            return bool(file.identity) and file.identity != failure.source
        return place is None or _is_outdated(place, file, key)

    chosen = map_in_threads(needs, videos)
    return [
        TranscriptionTask(video.video_id, dataset.video_path(video), folders)
        for video, is_pending in zip(videos, chosen, strict=True)
        if is_pending
    ]


def _other_models(store: TranscriptStore, listed: Collection[str], key: str) -> dict[str, int]:
    """Return {key of another model: number of its transcripts of listed videos}.

    Other videos are ignored: if such a video is listed again, it is transcribed again.
    """
    places = [place for video_id, place in store.places.items() if video_id in listed and place.model != key]
    return dict(Counter(place.model for place in places))


def _is_outdated(place: TranscriptPlace, file: VideoFile, key: str) -> bool:
    """Return whether a transcript was made by another model, or from other content than the file has now."""
    if place.model != key:
        return True
    if file.has_same_size_and_time(place.source, place.written_ns):
        return False
    file.read()
    return file.identity not in ("", place.source)


class _Work:
    """The work and the results of one call."""

    def __init__(
        self,
        settings: TranscriptionSettings,
        model: Model,
        store: TranscriptStore,
        log: FailureLog,
        problems: Problems,
    ) -> None:
        self._settings, self._model, self._store, self._log = settings, model, store, log
        self._problems = problems
        self.transcribed: list[str] = []
        self.num_with_text = 0
        self.duration_seconds = 0.0

    def run(self, tasks: Sequence[TranscriptionTask], spread: Spread | None) -> None:
        """Transcribe the videos, and store each transcript when it is finished."""
        is_text = isinstance(self._model, TextModel)
        device = "cpu" if is_text or spread is not None else chosen_device(self._settings.device)
        if lacking := sandbox.missing_protections():
            say(f"note: decoders are confined less than they could be: this system has {'; '.join(lacking)}")
        if device != "cpu":
            say(f"note: the recogniser on {device} may open files, as NVIDIA's driver must")
        self._store.write_model(self._model.key, self._model.about({"device": device}))
        what = "the text in frames of " if is_text else ""
        title = f"{self._model.name} on {device}"
        say(f"{self._settings.folder.path}: transcribes {what}{number_of(len(tasks), 'videos')} by {title}")
        transcribe = TranscribeVideos(self._model, device, available_cores() if spread is None else 1)
        with contextlib.closing(transcribe), report_saved_work(self._saved):
            outcomes = map(transcribe, tasks) if spread is None else spread(transcribe, tasks, doing="transcribing")
            shown = progress(outcomes, total=len(tasks), what="transcribing", unit="videos", note=self._note)
            for outcome in shown:
                with uninterrupted():
                    self._take(outcome)

    def _take(self, outcome: TranscriptionOutcome) -> None:
        if outcome.failure is not None:
            self._log.append({outcome.video_id: outcome.failure})
            self._store.remove([outcome.video_id])  # of another model, or of the file's previous content
            self._problems.add(f"video {outcome.video_id!r}: {outcome.failure.kind}: {outcome.failure.message}")
        if outcome.transcript is None:
            return
        self._store.add(outcome.transcript)
        if outcome.video_id in self._log.failures:
            self._log.append({outcome.video_id: None})
        self.transcribed.append(outcome.video_id)
        self.num_with_text += bool(outcome.transcript.segments)
        self.duration_seconds += outcome.transcript.duration_seconds

    def _saved(self) -> str:
        return f"the transcripts of {number_of(len(self.transcribed), 'videos')} are kept" if self.transcribed else ""

    def _note(self) -> str:
        return f"{self.duration_seconds / 3600:,.2f} h of {'video' if isinstance(self._model, TextModel) else 'sound'}"


def chosen_device(name: str) -> str:
    """Return "cpu" or "cuda:N" for a device setting such as "auto".

    Raises:
        SettingError: There is no such device.
    """
    if name == "cpu":
        return name
    import ctranslate2

    num_gpus = ctranslate2.get_cuda_device_count()
    if name == "auto":
        return "cuda:0" if num_gpus else "cpu"
    devices = [f"cuda:{number}" for number in range(num_gpus)]
    if name not in ("cuda", *devices):
        raise SettingError("device", name, f"expected one of {', '.join(['auto', 'cpu', *devices])}")
    if not num_gpus:
        raise SettingError("device", name, "CTranslate2 finds no NVIDIA GPU; expected cpu")
    return "cuda:0" if name == "cuda" else name
