"""Settings of a transcription. Heavy imports are deferred."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...storage.common.errors import SettingError
from ...storage.common.settings import Settings, setting
from ...storage.dataset.folder import DatasetFolder, dataset_at
from ..speech.settings import DEFAULT_MODEL

SPEECH, TEXT = "speech", "text"


@dataclass(frozen=True, kw_only=True)
class TranscriptionSettings(Settings):
    """The settings of ``transcribe_dataset``.

    The fields that are declared with ``setting`` are options of ``vlalign-transcribe`` and of the cluster job.

    Raises:
        SettingError: A value cannot be used.

    Example:
        >>> from vlalign.extract import TranscriptionSettings
        >>> TranscriptionSettings(dataset="vlalign_data/demo", what="text").transcripts.as_posix()
        'vlalign_data/demo/text_in_frames'
    """

    dataset: Path | str
    """The data set's folder, ``<root>/<data set>``, which lists videos."""
    what: str = setting(
        SPEECH,
        "what to transcribe",
        choices={SPEECH: "speech, by a Whisper model", TEXT: "text in frames, by RapidOCR"},
    )
    weights: str = setting(
        DEFAULT_MODEL,
        "folder of a Whisper model in CTranslate2's format (model.bin, config.json, tokenizer.json, vocabulary), or "
        "hf:ORG/MODEL[@REVISION], a model on the hub",
        metavar="FOLDER",
    )
    device: str = setting("auto", "cpu, cuda or cuda:N; auto: for speech the first GPU, or the CPU; for text the CPU")
    replace: bool = setting(False, "transcribe videos again if another model has transcribed them")
    retry_failed: bool = setting(False, "transcribe only the videos that failed before")
    allow_folder: Sequence[Path] = ()
    """Folders outside the root in which listed videos may lie. They are remembered for later calls."""
    video_ids: Collection[str] | None = None
    """Ids of the videos to transcribe; None: all that the data set lists."""

    def check(self) -> None:
        """Refuse settings of a Whisper model if the text in frames is transcribed.

        Raises:
            SettingError: ``weights`` or ``device`` cannot be chosen for text in frames.
        """
        if self.what == TEXT and self.weights != DEFAULT_MODEL:
            problem = (
                "RapidOCR's package has the models that read text in frames; omit --weights, or pass --what speech"
            )
            raise SettingError("weights", self.weights, problem)
        if self.what == TEXT and self.device not in ("auto", "cpu"):
            raise SettingError("device", self.device, "text in frames is read on the CPU; expected auto or cpu")

    @cached_property
    def folder(self) -> DatasetFolder:
        """The data set's folder and the paths in it."""
        return dataset_at(self.dataset)

    @property
    def transcripts(self) -> Path:
        """The folder that the transcripts are written into."""
        return self.folder.text_in_frames if self.what == TEXT else self.folder.transcripts
