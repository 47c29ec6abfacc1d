"""Choice of the reader of a data set: official files, the demo, or a user's own table or subtitles."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..storage.captions.files import ABOUT_NAME
from ..storage.captions.transcripts import TranscriptStore
from ..storage.common.errors import SettingError, UserError
from ..storage.common.files import sha256_of
from ..storage.common.plugins import Plugin, facts_of_plugin, plugin_names
from ..storage.common.problems import Problems
from ..storage.common.validation import DATASET_NAME
from ..storage.dataset.folder import DatasetFolder, dataset_at
from ..storage.dataset.trusted_folders import refuse_other_folders
from .chunks import ChunkedRecords, in_one_process
from .datasets import DATASETS, custom, demo, subtitles
from .datasets.file_names import ids_by_name, read_with_listed_ids, with_listed_ids
from .datasets.own import is_own_dataset, load_own_dataset
from .datasets.sources import Annotations, Dataset, Record
from .settings import CaptionProvenance, PreprocessingSettings

DEMO = "demo"
TRANSCRIBED_VIDEOS = "transcribed_videos"
"""A fact about captions that are made from transcripts, and from nothing else of the user's except for subtitles beside
videos."""
SHOWN_MODELS, MAX_MODEL_CHARACTERS = 5, 80
"""Maximum number of transcription models, and maximum length of their names, in the facts about captions."""


@dataclass(frozen=True)
class CaptionSource:
    """The records of a data set, and the folder that they are prepared in."""

    dataset: DatasetFolder
    chunks: ChunkedRecords
    provenance: CaptionProvenance


def known_datasets() -> str:
    """Return the names of the data sets with a reader of their own, for messages."""
    return ", ".join([DEMO, *DATASETS, *plugin_names("datasets")])


def choose_source(settings: PreprocessingSettings) -> CaptionSource:
    """Return the reader of a data set.

    Raises:
        UserError: Files do not exist, the data set has no such protocol, or its module cannot be used.
    """
    folder, protocol, seed = Path(settings.dataset), settings.protocol, settings.seed
    annotations = None if settings.annotations is None else Path(settings.annotations)
    spec, plugin = DATASETS.get(folder.name), None
    if spec is None and folder.name != DEMO and is_own_dataset(folder.name):
        spec, plugin = load_own_dataset(folder.name, taken=(DEMO, *DATASETS))
        folder = folder.with_name(spec.name)
    dataset = dataset_at(folder)
    name = dataset.name
    if plugin is None:  # a path such as "." is resolved to the folder's name
        spec = DATASETS.get(name)
    is_own = spec is None and name != DEMO
    has_subtitles = is_own and annotations is not None and _are_subtitles(annotations)
    has_transcripts = is_own and annotations is None and _is_transcribed(dataset, dataset.transcripts)
    has_text = is_own and annotations is None and _is_transcribed(dataset, dataset.text_in_frames)
    protocols = subtitles.PROTOCOLS if has_subtitles or has_transcripts else spec.protocols if spec else ("",)
    if has_text:
        protocols = (*filter(None, protocols), subtitles.TEXT_PROTOCOL)
    if protocol is not None and protocol not in protocols:
        if protocol == subtitles.TEXT_PROTOCOL and is_own and annotations is None:
            todo = f"run vlalign-transcribe --dataset {name} --what text first{_that_stay(dataset, protocol)}"
            raise SettingError("protocol", protocol, f"no listed video has text in its frames; {todo}")
        expected = f"expected one of {', '.join(protocols)}" if any(protocols) else "it has no protocols"
        stay = _that_stay(dataset, protocol) if is_own else ""
        raise SettingError("protocol", protocol, f"not a protocol of data set {name!r}; {expected}{stay}")
    if spec is not None:
        return _official_files(dataset, spec, annotations, protocol, plugin)
    provenance = CaptionProvenance(seed=seed)
    if name == DEMO:
        return CaptionSource(dataset, in_one_process(partial(demo.read, annotations, seed)), provenance)
    if has_text and protocol == subtitles.TEXT_PROTOCOL:
        return _text_in_frames(dataset, settings)
    if has_transcripts:
        return _spoken(replace(dataset, protocol=settings.protocol or ""), protocol or subtitles.PROTOCOLS[0], settings)
    if has_text:
        stay = _that_stay(dataset, "")
        raise UserError(f"data set {name!r}: its only captions are text in frames; pass --protocol text{stay}")
    if annotations is None:
        raise UserError(
            f"data set {name!r}: not one of {known_datasets()}; for your own captions pass --annotations FILE, "
            f"a {custom.SUFFIXES} with the columns {', '.join(custom.REQUIRED)}, or a folder with subtitles; "
            "vlalign-transcribe makes captions of speech, or of text in frames; for your own reader pass "
            f"--dataset MODULE:NAME{_that_stay(dataset, '')}"
        )
    if not annotations.exists():
        raise SettingError("annotations", annotations, f"no such file; expected a {custom.SUFFIXES} with captions")
    if has_subtitles:
        return _subtitles(dataset, annotations, settings)
    read = partial(custom.read, annotations, seed, videos=dataset.read_videos())
    return CaptionSource(dataset, in_one_process(read), provenance)


def _that_stay(dataset: DatasetFolder, protocol: str) -> str:
    """Return the end of an error: captions of an earlier call, whose videos may be gone, are not removed."""
    folder = replace(dataset, protocol=protocol).captions if DATASET_NAME.fullmatch(protocol or "captions") else None
    if folder is None or not (folder / ABOUT_NAME).is_file():
        return ""
    return f"; the captions of an earlier call stay in {folder}; remove this folder if they must go"


def _are_subtitles(annotations: Path) -> bool:
    return annotations.is_dir() or annotations.suffix.lower() in subtitles.SUFFIXES


def _subtitles(dataset: DatasetFolder, annotations: Path, settings: PreprocessingSettings) -> CaptionSource:
    """Return the reader of subtitles.

    A protocol requested by name has its own folder, which leaves other captions unchanged.
    """
    chosen = settings.protocol or subtitles.PROTOCOLS[0]
    provenance = CaptionProvenance(seed=settings.seed, protocol=chosen, speech=True)
    read = partial(
        subtitles.read, annotations, chosen, settings.seed, videos=dataset.read_videos(), language=settings.language
    )
    return CaptionSource(replace(dataset, protocol=settings.protocol or ""), in_one_process(read), provenance)


def subtitles_beside(settings: PreprocessingSettings) -> CaptionSource:
    """Return a reader of subtitles beside a data set's own videos, and of transcripts of its other videos, as captions
    of the first protocol.

    Raises:
        UserError: The folder's name is not valid for a data set, or videos are outside of the allowed folders.
    """
    dataset, chosen = dataset_at(Path(settings.dataset)), subtitles.PROTOCOLS[0]
    return _spoken(replace(dataset, protocol=chosen), chosen, settings)


def _spoken(dataset: DatasetFolder, protocol: str, settings: PreprocessingSettings) -> CaptionSource:
    """Return the reader of subtitles beside videos and of transcripts.

    Raises:
        UserError: Videos are outside of the allowed folders.
    """
    refuse_other_folders(dataset, dataset.read_videos())
    provenance = CaptionProvenance(
        seed=settings.seed,
        protocol=protocol,
        speech=True,
        facts=_facts_of_transcripts(TranscriptStore(dataset.transcripts)),
    )
    read = partial(subtitles.read_beside, dataset, protocol, settings.seed, language=settings.language)
    return CaptionSource(dataset, in_one_process(read), provenance)


def _text_in_frames(dataset: DatasetFolder, settings: PreprocessingSettings) -> CaptionSource:
    """Return the reader of text in frames."""
    provenance = CaptionProvenance(
        seed=settings.seed,
        protocol=subtitles.TEXT_PROTOCOL,
        text_in_frames=True,
        facts=_facts_of_transcripts(TranscriptStore(dataset.text_in_frames)),
    )
    read = partial(subtitles.read_text, dataset, settings.seed)
    return CaptionSource(replace(dataset, protocol=subtitles.TEXT_PROTOCOL), in_one_process(read), provenance)


def _is_transcribed(dataset: DatasetFolder, folder: Path) -> bool:
    """Return whether a folder has a transcript with segments for a listed video."""
    return bool(subtitles.transcribed_videos(dataset, TranscriptStore(folder)))


def _facts_of_transcripts(store: TranscriptStore) -> dict[str, int | str]:
    """Return how many videos are transcribed, and by which models."""
    if not store.places:
        return {}
    keys = list(store.models())
    models = [str(store.describe_model(key).get("model", key))[:MAX_MODEL_CHARACTERS] for key in keys[:SHOWN_MODELS]]
    if len(keys) > SHOWN_MODELS:
        models.append(f"and {len(keys) - SHOWN_MODELS:,} others")
    return {TRANSCRIBED_VIDEOS: len(store.places), "transcribed_by": ", ".join(models)}


def _official_files(
    dataset: DatasetFolder, spec: Dataset, annotations: Path | None, protocol: str | None, plugin: Plugin | None
) -> CaptionSource:
    default = spec.protocols[0]
    chosen = protocol or default
    dataset = replace(dataset, protocol="" if chosen == default else chosen)
    folder = annotations or dataset.path / "annotations"
    if not folder.is_dir():
        files = f": {spec.files}" if spec.files else ""
        raise UserError(f"{folder}: no such folder; put the published files of {dataset.name} there{files}")
    quiet = Annotations(folder, spec.published, Problems(quiet=True))
    provenance = CaptionProvenance(
        protocol=chosen,
        facts=spec.facts(quiet, chosen) if spec.facts else {},
        task=spec.task,
        steps=spec.steps(quiet) if spec.steps else None,
        speech=spec.speech,
        plugins=None if plugin is None else {"dataset": facts_of_plugin(plugin)},
    )
    ids = ids_by_name(dataset.read_videos())
    if spec.chunked_reader is None:

        def read(problems: Problems) -> Iterator[Record]:
            return with_listed_ids(spec.read(Annotations(folder, spec.published, problems), chosen), ids, problems)

        return CaptionSource(dataset, in_one_process(read), provenance)
    path = spec.chunked_reader.find(quiet, chosen)
    split, read_chunk = partial(spec.chunked_reader.split, path), partial(spec.chunked_reader.read_chunk, path, chosen)
    videos_sha256 = sha256_of(dataset.videos_file) if ids else ""
    if ids:
        read_chunk = partial(read_with_listed_ids, dataset, videos_sha256, read_chunk)
    chunks = ChunkedRecords(lambda _: split(), read_chunk, source=path, videos_sha256=videos_sha256)
    return CaptionSource(dataset, chunks, provenance)
