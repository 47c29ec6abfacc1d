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
        "vlalign.extract: one video, and transcripts",
        {
            "One video": (
                "load_extractor",
                "extract_video",
                "transcribe_video",
            ),
            "Transcripts of a data set": (
                "TranscriptionSettings",
                "transcribe_dataset",
                "TranscriptionResult",
            ),
        },
    ),
    "extract-dataset": Page(
        "vlalign.extract",
        "vlalign.extract: features of a data set",
        {
            "Features of a data set": (
                "ExtractionSettings",
                "extract_dataset",
                "ExtractionResult",
            ),
        },
    ),
    "extract-plan": Page(
        "vlalign.extract",
        "vlalign.extract: plans and verification",
        {
            "Plans": (
                "plan_extraction",
                "ExtractionPlan",
            ),
            "Verification": (
                "verify_dataset",
                "VerificationResult",
            ),
        },
    ),
    "preprocess": Page(
        "vlalign.preprocess",
        "vlalign.preprocess: annotations to captions",
        {
            "Captions": (
                "PreprocessingSettings",
                "prepare_captions",
                "PreparedCaptions",
            ),
        },
    ),
    "preprocess-datasets": Page(
        "vlalign.preprocess",
        "vlalign.preprocess: readers of data sets",
        {
            "Readers of data sets": (
                "Dataset",
                "Annotations",
                "ChunkedReader",
                "Chunk",
            ),
        },
    ),
    "train": Page(
        "vlalign.train",
        "vlalign.train: training",
        {
            "Training": (
                "train",
                "TrainedRun",
                "train_seeds",
                "SeedRuns",
            ),
            "Data": ("ClipDataset",),
        },
    ),
    "train-settings": Page(
        "vlalign.train",
        "vlalign.train: settings of a training",
        {
            "Settings": (
                "TrainConfig",
                "ModelSettings",
            ),
        },
    ),
    "train-runs": Page(
        "vlalign.train",
        "vlalign.train: trained runs",
        {
            "Runs": (
                "load_run",
                "LoadedRun",
            ),
            "Exports": (
                "export_run",
                "export_sentence_transformer",
            ),
        },
    ),
    "train-evaluation": Page(
        "vlalign.train",
        "vlalign.train: evaluation",
        {
            "Evaluation": (
                "evaluate",
                "EvaluationSettings",
                "Evaluation",
            ),
            "Comparison": (
                "compare_similarities",
                "Difference",
            ),
        },
    ),
    "train-tasks": Page(
        "vlalign.train",
        "vlalign.train: tasks of an evaluation",
        {
            "Tasks": (
                "Task",
                "EvaluationRequest",
                "TaskResult",
            ),
        },
    ),
    "train-mteb": Page(
        "vlalign.train",
        "vlalign.train: models and tasks of mteb",
        {
            "mteb": (
                "mteb_model",
                "MtebModel",
                "mteb_task",
            ),
        },
    ),
    "train-search": Page(
        "vlalign.train",
        "vlalign.train: search",
        {
            "Search": (
                "open_search",
                "Search",
            ),
        },
    ),
    "train-index": Page(
        "vlalign.train",
        "vlalign.train: moments and search indexes",
        {
            "Moments": ("Moment",),
            "Indexes": (
                "SearchSource",
                "build_index",
                "BuiltIndex",
            ),
        },
    ),
    "train-export": Page(
        "vlalign.train",
        "vlalign.train: export of search results",
        {
            "Lists and files of editors": (
                "export_moments",
                "ExportedMoments",
            ),
            "Clips": (
                "export_clips",
                "ExportedClips",
                "ExportedClip",
            ),
        },
    ),
    "train-sync": Page(
        "vlalign.train",
        "vlalign.train: sync of folders",
        {
            "Sync": (
                "sync_videos",
                "SyncSettings",
                "SyncResult",
            ),
        },
    ),
    "train-objectives": Page(
        "vlalign.train",
        "vlalign.train: objectives",
        {
            "Objectives": ("Objective",),
        },
    ),
    "train-batches": Page(
        "vlalign.train",
        "vlalign.train: batches of an objective",
        {
            "Batches": (
                "Batch",
                "ObjectiveModules",
            ),
        },
    ),
    "train-models": Page(
        "vlalign.train",
        "vlalign.train: models",
        {
            "Models": (
                "PairModel",
                "ModelPlan",
            ),
        },
    ),
    "train-inputs": Page(
        "vlalign.train",
        "vlalign.train: inputs and tokens of models",
        {
            "Encoders": ("EncoderTraits",),
            "Inputs of your own": (
                "CaptionColumn",
                "FeatureRows",
            ),
            "Tokens": (
                "TextTokens",
                "VideoTokens",
                "ClipRows",
            ),
        },
    ),
    "losses": Page(
        "vlalign.train.losses",
        "vlalign.train.losses: contrastive losses",
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
        },
    ),
    "losses-margins": Page(
        "vlalign.train.losses",
        "vlalign.train.losses: margin losses",
        {
            "Margin losses": (
                "max_margin",
                "soft_max_margin",
                "hardest_margin",
                "answer_margin",
                "intra_video_weights",
            ),
        },
    ),
    "losses-taco": Page(
        "vlalign.train.losses",
        "vlalign.train.losses: TACo and ToCo",
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
        },
    ),
    "losses-ncl": Page(
        "vlalign.train.losses",
        "vlalign.train.losses: NCL and CMCM",
        {
            "NCL": (
                "normalized_nce",
                "sinkhorn_biases",
                "pair_biases",
                "shares_of",
                "Biases",
            ),
            "CMCM": (
                "masked_margin_softmax",
                "code_matching",
                "code_similarity",
                "code_log_probabilities",
                "code_distances",
            ),
        },
    ),
    "metrics": Page(
        "vlalign.train.metrics",
        "vlalign.train.metrics: recall and ranks",
        {
            "Metrics of scores in memory": (
                "retrieval_metrics",
                "RetrievalMetrics",
                "DirectionMetrics",
                "MEASURES",
                "TIES",
                "compare_similarities",
            ),
            "Chance": (
                "chance",
                "Chance",
            ),
        },
    ),
    "metrics-parts": Page(
        "vlalign.train.metrics",
        "vlalign.train.metrics: scores that come in parts",
        {
            "Ranks": (
                "Ranking",
                "RankCounts",
                "count_ranks",
                "mean_ranks",
                "right_ranks",
            ),
            "Metrics of counts": (
                "text_metrics",
                "video_metrics",
                "text_intervals",
                "video_intervals",
            ),
        },
    ),
    "density": Page(
        "vlalign.train.density",
        "vlalign.train.density: density of pairs (SSML)",
        {
            "Density": (
                "pair_association_probability",
                "probability",
                "nearest_pairs",
                "Neighbours",
            ),
        },
    ),
    "storage": Page(
        "vlalign.storage",
        "vlalign.storage: data sets and errors",
        {
            "Data sets": (
                "DatasetFolder",
                "VideoRecord",
                "Failure",
            ),
            "Errors": (
                "VlalignError",
                "UserError",
            ),
        },
    ),
    "storage-captions": Page(
        "vlalign.storage",
        "vlalign.storage: captions",
        {
            "Captions": (
                "Caption",
                "read_captions",
            ),
            "IDF": (
                "IdfEntry",
                "read_idf",
                "write_idf",
            ),
        },
    ),
    "storage-profiles": Page(
        "vlalign.storage",
        "vlalign.storage: profiles of features",
        {
            "Profiles": (
                "Profile",
                "Weights",
                "Provenance",
            ),
        },
    ),
    "storage-features": Page(
        "vlalign.storage",
        "vlalign.storage: features of a video",
        {
            "Features": (
                "VideoFeatures",
                "StoredVideo",
                "RowTimes",
            ),
            "Shards": (
                "check_storable",
                "write_shard",
            ),
        },
    ),
    "storage-stores": Page(
        "vlalign.storage",
        "vlalign.storage: feature stores on disk",
        {
            "Feature stores": (
                "open_store",
                "FeatureStore",
            ),
            "Thumbnails": ("ThumbnailStore",),
        },
    ),
    "storage-interface": Page(
        "vlalign.storage",
        "vlalign.storage: the interface of a store",
        {
            "Reading": ("Store",),
        },
    ),
    "storage-writers": Page(
        "vlalign.storage",
        "vlalign.storage: writers, and stores in memory",
        {
            "Writing": (
                "open_writer",
                "StoreWriter",
                "WritableStore",
                "refuse_mixed",
            ),
            "Memory": ("MemoryStore",),
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
TITLES = {name: page.title for name, page in PAGES.items()}
"""{name of a page: its title}"""


def overview() -> str:
    """Return the list of all pages of the Python reference."""
    links = "\n".join(f"- [{title}](python/{name}.md)" for name, title in TITLES.items())
    return (
        "All names in this reference are public and follow semantic versioning "
        f"([versions](../versions.md)). Other names may change in any version.\n\n{links}"
    )


def write(folder: Path) -> None:
    """Write the pages of all modules into a folder, and remove pages of earlier builds that are no more."""
    folder.mkdir(exist_ok=True)
    texts = {name: page_text(page) for name, page in PAGES.items()}
    for path in folder.glob("*.md"):
        if path.stem not in texts:
            path.unlink()
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
            public = getattr(module, name)
            kind = "autoclass" if isinstance(public, type) else "autofunction" if callable(public) else "autodata"
            parts.append(directive(kind, f"{page.module}.{name}"))
    return "\n\n".join(parts) + "\n"


def directive(kind: str, name: str) -> str:
    """Return a directive of Sphinx's autodoc in MyST."""
    members = "\n   :members:" if kind == "autoclass" else ""
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
