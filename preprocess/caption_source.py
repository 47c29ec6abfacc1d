"""Choice of the reader of a data set: official files, the demo, or a user's own table or subtitles."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..storage.common.errors import SettingError, UserError
from ..storage.common.problems import Problems
from ..storage.dataset.folder import DatasetFolder
from .chunks import ChunkedRecords, in_one_process
from .datasets import DATASETS, custom, demo, subtitles
from .datasets.sources import Annotations, Dataset

DEMO = "demo"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The settings that decide the captions besides the annotation files; kept with them in ``about.json``."""

    seed: int | None = None
    """Seed of the demo's scenes, or of the splits of a user's captions."""
    protocol: str | None = None
    """None unless official files are read; empty if the data set has no choice."""
    facts: Mapping[str, int | str] = field(default_factory=dict)
    """Facts about the official files that are shown and kept."""
    task: str | None = None
    steps: Mapping[str, list[str]] | None = None
    """Steps of each instructional task."""
    speech: bool | None = None
    """True if the captions are what is said in the videos, so that search can look for words that were said."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without those that are None."""
        values = {"seed": self.seed, "protocol": self.protocol, **self.facts, "task": self.task, "steps": self.steps}
        values["speech"] = self.speech
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class CaptionSource:
    """The records of a data set, and the folder that they are prepared in."""

    dataset: DatasetFolder
    chunks: ChunkedRecords
    origin: Origin


def known_datasets() -> str:
    """Return the names of the data sets with a reader of their own, for messages."""
    return ", ".join([DEMO, *DATASETS])


def choose_source(
    root: Path, name: str, *, annotations: Path | None, protocol: str | None, seed: int, language: str | None = None
) -> CaptionSource:
    """Return the reader of a data set.

    Args:
        root: Folder of all data sets.
        name: Name of a data set in ``DATASETS``, "demo", or any other name for a user's own captions.
        annotations: Folder of official files, by default ``annotations/`` in the data set's folder; or the file with
            a user's own captions; or a folder with subtitles.
        protocol: Choice of splits and captions; by default the data set's first.
        seed: Of the demo's scenes, or of the splits of a user's captions.
        language: Of several subtitle files of a video, the one in this language is read.

    Raises:
        UserError: Files do not exist, or the data set has no such protocol.
    """
    spec = DATASETS.get(name)
    has_subtitles = spec is None and name != DEMO and annotations is not None and _are_subtitles(annotations)
    protocols = subtitles.PROTOCOLS if has_subtitles else spec.protocols if spec else ("",)
    if protocol is not None and protocol not in protocols:
        expected = f"expected one of {', '.join(protocols)}" if any(protocols) else "it has no protocols"
        raise SettingError("protocol", protocol, f"not a protocol of data set {name!r}; {expected}")
    if spec is not None:
        return _official_files(root, name, spec, annotations, protocol)
    dataset, origin = DatasetFolder(root, name), Origin(seed=seed)
    if name == DEMO:
        return CaptionSource(dataset, in_one_process(partial(demo.read, annotations, seed)), origin)
    if annotations is None:
        raise UserError(
            f"data set {name!r}: not one of {known_datasets()}; for your own captions pass --annotations FILE, "
            f"a {custom.SUFFIXES} with the columns {', '.join(custom.REQUIRED)}; or a folder with subtitles"
        )
    if not annotations.exists():
        raise SettingError("annotations", annotations, f"no such file; expected a {custom.SUFFIXES} with captions")
    if has_subtitles:
        return _subtitles(dataset, annotations, protocol, seed, language)
    read = partial(custom.read, annotations, seed, videos=dataset.read_videos())
    return CaptionSource(dataset, in_one_process(read), origin)


def _are_subtitles(annotations: Path) -> bool:
    return annotations.is_dir() or annotations.suffix.lower() in subtitles.SUFFIXES


def _subtitles(
    dataset: DatasetFolder, annotations: Path, protocol: str | None, seed: int, language: str | None
) -> CaptionSource:
    """A protocol that is asked for by name has a folder of its own, so that captions of another kind stay."""
    chosen = protocol or subtitles.PROTOCOLS[0]
    origin = Origin(seed=seed, protocol=chosen, speech=True)
    read = partial(subtitles.read, annotations, chosen, seed, videos=dataset.read_videos(), language=language)
    return CaptionSource(replace(dataset, protocol=protocol or ""), in_one_process(read), origin)


def _official_files(
    root: Path, name: str, spec: Dataset, annotations: Path | None, protocol: str | None
) -> CaptionSource:
    default = spec.protocols[0]
    chosen = protocol or default
    dataset = DatasetFolder(root, name, "" if chosen == default else chosen)
    folder = annotations or dataset.path / "annotations"
    if not folder.is_dir():
        files = "; ".join(f"{file} ({source})" for file, source in spec.published.items())
        raise UserError(f"{folder}: no such folder; put the published files of {name} there: {files}")
    quiet = Annotations(folder, spec.published, Problems(quiet=True))
    origin = Origin(
        protocol=chosen,
        facts=spec.facts(quiet, chosen) if spec.facts else {},
        task=spec.task,
        steps=spec.steps(quiet) if spec.steps else None,
        speech=spec.speech,
    )
    if spec.chunked_reader is None:
        read = in_one_process(lambda problems: spec.read(Annotations(folder, spec.published, problems), chosen))
        return CaptionSource(dataset, read, origin)
    path = spec.chunked_reader.find(quiet, chosen)
    split, read_chunk = partial(spec.chunked_reader.split, path), partial(spec.chunked_reader.read_chunk, path, chosen)
    return CaptionSource(dataset, ChunkedRecords(lambda _: split(), read_chunk, source=path), origin)
