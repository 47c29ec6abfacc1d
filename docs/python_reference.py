"""The pages of the Python reference: one for each public module, or more where a module has many names."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import NamedTuple

from vlalign.storage.common.settings import info_of


class Page(NamedTuple):
    """A page of the Python reference."""

    module: str
    """The module that the names are imported from."""
    title: str
    groups: dict[str, tuple[str, ...]]
    """{heading: public names}"""


PAGES = {
    "extract": Page(
        "vlalign.extract",
        "vlalign.extract: videos to features",
        {
            "One video": ("load_extractor", "extract_video", "transcribe_video"),
            "Features of a data set": (
                "ExtractionSettings",
                "extract_dataset",
                "ExtractionResult",
                "plan_extraction",
                "ExtractionPlan",
                "verify_dataset",
                "VerificationResult",
            ),
            "Transcripts of a data set": ("TranscriptionSettings", "transcribe_dataset", "TranscriptionResult"),
        },
    ),
    "preprocess": Page(
        "vlalign.preprocess",
        "vlalign.preprocess: annotations to captions",
        {
            "Captions": ("PreprocessingSettings", "prepare_captions", "PreparedCaptions"),
            "Readers of data sets": ("Dataset", "Annotations", "ChunkedReader", "Chunk"),
        },
    ),
    "train": Page(
        "vlalign.train",
        "vlalign.train: training and runs",
        {
            "Training": ("train", "TrainedRun", "train_seeds", "SeedRuns", "TrainConfig", "ModelSettings"),
            "Runs": ("load_run", "LoadedRun", "export_run", "export_sentence_transformer"),
            "Data": ("ClipDataset",),
        },
    ),
    "train-evaluation": Page(
        "vlalign.train",
        "vlalign.train: evaluation",
        {
            "Evaluation": ("evaluate", "EvaluationSettings", "Evaluation"),
            "Comparison": ("compare_similarities", "Difference"),
            "Tasks": ("Task", "EvaluationRequest", "TaskResult"),
            "mteb": ("mteb_model", "MtebModel", "mteb_task"),
        },
    ),
    "train-search": Page(
        "vlalign.train",
        "vlalign.train: search and sync",
        {
            "Search": ("open_search", "Search", "Moment", "SearchSource", "build_index", "BuiltIndex"),
            "Export of results": ("export_moments", "ExportedMoments", "export_clips", "ExportedClips", "ExportedClip"),
            "Sync": ("sync_videos", "SyncSettings", "SyncResult"),
        },
    ),
    "train-objectives": Page(
        "vlalign.train",
        "vlalign.train: objectives and encoders",
        {
            "Objectives": ("Objective", "ObjectiveModules", "Batch"),
            "Models": ("PairModel", "ModelPlan", "EncoderTraits"),
            "Inputs": ("TextTokens", "VideoTokens", "ClipRows", "CaptionColumn", "FeatureRows"),
        },
    ),
    "losses": Page(
        "vlalign.train.losses",
        "vlalign.train.losses: contrastive and margin losses",
        {
            "Contrastive losses": (
                "nce",
                "weighted_nce",
                "symmetric_nce",
                "sigmoid_loss",
                "decoupled_nce",
                "mil_nce",
                "LearnedTemperature",
            ),
            "Margin losses": (
                "max_margin",
                "soft_max_margin",
                "hardest_margin",
                "answer_margin",
                "intra_video_weights",
            ),
        },
    ),
    "losses-papers": Page(
        "vlalign.train.losses",
        "vlalign.train.losses: TACo, ToCo, NCL and CMCM",
        {
            "TACo and ToCo": (
                "sentence_nce",
                "token_similarity",
                "token_nce",
                "cascade_scores",
                "hard_negatives",
                "fusion_nce",
                "fusion_token_nce",
            ),
            "NCL": ("normalized_nce", "sinkhorn_biases", "pair_biases", "shares_of", "Biases"),
            "CMCM": (
                "masked_margin_softmax",
                "code_matching",
                "code_similarity",
                "code_log_probabilities",
                "code_distances",
            ),
        },
    ),
    "storage": Page(
        "vlalign.storage",
        "vlalign.storage: records and files",
        {
            "Data sets": ("DatasetFolder", "VideoRecord", "Failure"),
            "Captions": ("Caption", "read_captions", "IdfEntry", "read_idf", "write_idf"),
            "Features": ("Profile", "Weights", "Provenance", "VideoFeatures", "StoredVideo"),
            "Feature shards": ("check_storable", "write_shard"),
            "Errors": ("VlalignError", "UserError"),
        },
    ),
    "storage-stores": Page(
        "vlalign.storage",
        "vlalign.storage: feature stores",
        {
            "Feature stores": ("open_store", "open_writer", "FeatureStore", "MemoryStore", "ThumbnailStore"),
            "Interfaces": ("Store", "StoreWriter", "WritableStore", "RowTimes", "refuse_mixed"),
        },
    ),
    "ray_jobs": Page(
        "vlalign.ray_jobs",
        "vlalign.ray_jobs: the steps on a Ray cluster",
        {
            "Steps": (
                "extract_on_cluster",
                "WorkerOptions",
                "transcribe_dataset_on_cluster",
                "prepare_captions_on_cluster",
                "train_on_cluster",
                "build_index_on_cluster",
            ),
        },
    ),
}
"""{name of a page: the page}"""
MODULES = {
    "metrics": ("vlalign.train.metrics", "vlalign.train.metrics: ranks and recall"),
    "density": ("vlalign.train.density", "vlalign.train.density: density of pairs (SSML)"),
}
"""{name of a page: a module all of whose names are public, and the page's title}"""
TITLES = {name: page.title for name, page in PAGES.items()} | {name: title for name, (_, title) in MODULES.items()}
"""{name of a page: its title}"""


def overview() -> str:
    """Return the list of all pages of the Python reference."""
    links = "\n".join(f"- [{title}](python/{name}.md)" for name, title in TITLES.items())
    return (
        "All names in this reference are public and follow semantic versioning "
        f"([versions](../versions.md)). Other names may change in any version.\n\n{links}"
    )


def write(folder: Path) -> None:
    """Write the pages of all modules into a folder."""
    folder.mkdir(exist_ok=True)
    texts = {name: page_text(page) for name, page in PAGES.items()}
    for name, (module, title) in MODULES.items():
        texts[name] = f"# {title}\n\n{directive('automodule', module)}\n"
    for name, text in texts.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not built again
            path.write_text(text, encoding="utf-8")


def page_text(page: Page) -> str:
    """Return a page in MyST."""
    parts = [f"# {page.title}", f"Import the names from `{page.module}`."]
    module = importlib.import_module(page.module)
    for heading, names in page.groups.items():
        parts.append(f"## {heading}")
        for name in names:
            kind = "autoclass" if isinstance(getattr(module, name), type) else "autofunction"
            parts.append(directive(kind, f"{page.module}.{name}"))
    return "\n\n".join(parts) + "\n"


def directive(kind: str, name: str) -> str:
    """Return a directive of Sphinx's autodoc in MyST."""
    members = "" if kind == "autofunction" else "\n   :members:"
    return f"```{{eval-rst}}\n.. {kind}:: {name}{members}\n```"


def arguments_of(documented: type) -> list[str]:
    """Return the lines of a class's docstring about its arguments: the constructor's own, and options of settings."""
    constructor = getattr(vars(documented).get("__init__"), "__doc__", None)
    lines = inspect.cleandoc(constructor).splitlines() if constructor else []
    options = {}
    for field in dataclasses.fields(documented) if dataclasses.is_dataclass(documented) else ():
        info = info_of(field)
        choices = [f"{value}: {meaning}" if meaning else value for value, meaning in (info.choices or {}).items()]
        if text := "; ".join(filter(None, [info.description, *choices])):
            options[field.name] = re.sub(r"([\\*`|_])", r"\\\1", text)
    return [*lines, "", "Args:", *(f"    {name}: {text}" for name, text in options.items())] if options else lines
