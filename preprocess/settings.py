"""The settings of a call that prepares captions, and what a data set remembers of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..storage.common.errors import SettingError

SPACY_MODEL = "en_core_web_sm"


@dataclass(frozen=True)
class PreprocessingSettings:
    """The captions to prepare, and how.

    Raises:
        SettingError: ``language`` and ``spacy_model`` are both given.
    """

    name: str
    """Name of a data set, such as "youcook2"; "demo"; or any other name for your own captions."""
    root: Path | str = "vlalign_data"
    """Folder of all data sets."""
    annotations: Path | str | None = None
    """Folder with the official files (default: ``annotations/`` in the data set's folder), or the file with your own
    captions, or a folder with subtitles."""
    protocol: str | None = None
    """Choice of splits and captions (default: the data set's first)."""
    spacy_model: str = SPACY_MODEL
    """Installed spaCy pipeline."""
    language: str | None = None
    """Language of the captions, such as "de", instead of ``spacy_model``: spaCy's own pipeline of it tags, and of
    several subtitle files of a video the one in this language is read."""
    word_vectors: Path | str | None = None
    """word2vec (binary or text), GloVe or npz file; the vectors of the captions' words are written."""
    seed: int = 0
    """Decides the demo's scenes, and the splits of your own captions if they have none."""
    strict: bool = False
    """Raise an error at the first row that cannot be used, instead of skipping it."""

    def __post_init__(self) -> None:
        if self.language is not None and self.spacy_model != SPACY_MODEL:
            problem = f"spacy_model {self.spacy_model!r} decides it; pass one of the two"
            raise SettingError("language", self.language, problem)


@dataclass(frozen=True, kw_only=True)
class CaptionProvenance:
    """The settings that decide the captions besides the annotation files; stored with them in ``about.json``."""

    seed: int | None = None
    """Seed of the demo's scenes, or of the splits of a user's captions."""
    protocol: str | None = None
    """None unless official files are read; empty if the data set has no choice."""
    facts: Mapping[str, int | str] = field(default_factory=dict)
    """Facts about the official files, which are shown and stored."""
    task: str | None = None
    steps: Mapping[str, list[str]] | None = None
    """Steps of each instructional task."""
    speech: bool | None = None
    """True if the captions are the speech of the videos, so that search can look for spoken words."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without those that are None."""
        values = {"seed": self.seed, "protocol": self.protocol, **self.facts, "task": self.task, "steps": self.steps}
        values["speech"] = self.speech
        return {name: value for name, value in values.items() if value is not None}
