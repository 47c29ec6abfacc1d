"""The settings for preparing captions, and the settings that are stored with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..storage.common.errors import SettingError
from ..storage.common.plugins import PluginFacts
from ..storage.common.settings import Settings, setting
from .datasets import DATASETS

SPACY_MODEL = "en_core_web_sm"
PROTOCOLS = [f"{name}: {', '.join(spec.protocols)}" for name, spec in DATASETS.items() if len(spec.protocols) > 1]
"""The protocols of the data sets that have several, for ``--help``."""


@dataclass(frozen=True)
class PreprocessingSettings(Settings):
    """The captions to prepare, and how.

    Fields that are declared with ``setting`` are options of ``vlalign-preprocess`` and of the cluster job.

    Raises:
        SettingError: ``language`` and ``spacy_model`` are both given.

    Example:
        >>> from vlalign.preprocess import PreprocessingSettings
        >>> settings = PreprocessingSettings("vlalign_data/mine", annotations="captions.csv", strict=True)
        >>> settings.strict, settings.seed
        (True, 0)
    """

    dataset: Path | str
    """The data set's folder, ``<root>/<data set>``. Its name is "demo", a published data set such as "youcook2", or any
    other name for your own captions. ``<root>/MODULE:NAME``, or the name of an entry point in ``vlalign.datasets``,
    imports a ``Dataset`` of your own, which has the name of its folder."""
    annotations: Path | str | None = setting(
        None,
        "folder with the official files of a data set (default: annotations/ in the data set's folder), a file with "
        "your own captions, or a folder with subtitles",
    )
    protocol: str | None = setting(
        None, f"splits and captions of the data set (default: the first). {'; '.join(PROTOCOLS)}"
    )
    spacy_model: str = setting(SPACY_MODEL, "installed spaCy pipeline")
    language: str | None = setting(
        None,
        "language of the captions, such as de, for which a spaCy pipeline must be installed; also selects the subtitle "
        "file of a video that has several (default: the language of --spacy-model)",
    )
    word_vectors: Path | str | None = setting(
        None, "word2vec (binary or text), GloVe or npz file; the vectors of the captions' words are saved"
    )
    strict: bool = setting(False, "stop at the first unusable row, instead of skipping it")
    seed: int = setting(0, "seed of the demo's scenes, and of the splits of your own captions if they have none")

    def check(self) -> None:
        """Refuse a language together with a spaCy pipeline.

        Raises:
            SettingError: Both are given.
        """
        if self.language is not None and self.spacy_model != SPACY_MODEL:
            problem = f"spacy_model {self.spacy_model!r} sets the language; pass one of the two"
            raise SettingError("language", self.language, problem)


@dataclass(frozen=True, kw_only=True)
class CaptionProvenance:
    """The settings that, with the annotation files, determine the captions; stored with them in ``about.json``."""

    seed: int | None = None
    """Seed of the demo's scenes, or of the splits of a user's captions."""
    protocol: str | None = None
    """None for the demo and for tables of your own captions; empty if the data set has no choice."""
    facts: Mapping[str, int | str] = field(default_factory=dict)
    """Facts about the official files or the transcripts, which are shown and stored."""
    task: str | None = None
    steps: Mapping[str, list[str]] | None = None
    """Steps of each instructional task."""
    speech: bool | None = None
    """True if the captions are the speech of the videos: search can then look for spoken words."""
    text_in_frames: bool | None = None
    """True if the captions are the text in frames."""
    plugins: Mapping[str, PluginFacts] | None = None
    """The custom ``dataset`` that read the captions: its name, module and SHA-256."""

    def to_json(self) -> dict[str, Any]:
        """Return the values for JSON, without None."""
        values = {"seed": self.seed, "protocol": self.protocol, **self.facts, "task": self.task, "steps": self.steps}
        values |= {"speech": self.speech, "text_in_frames": self.text_in_frames, "plugins": self.plugins}
        return {name: value for name, value in values.items() if value is not None}
