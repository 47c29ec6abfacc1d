"""A run or an encoder as a model of mteb, such as for MVEB's text-video retrieval.

If a model returns one vector for each text or video, mteb searches with these vectors. A run's score may have several
stages, so this model does the search (mteb's ``SearchProtocol``): it scores all texts with all videos, as evaluation
and search in this package do. It gets videos as files, and samples and decodes them itself.
"""

# pyright: reportMissingImports=false
# mteb needs Python 3.11; types are checked on 3.10 too.

import hashlib
import json
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...storage.common.device import find_device
from ...storage.common.errors import SettingError, UserError
from ...storage.common.packages import missing_package_message, package_version
from ...storage.common.terminal import number_of, one_line, say
from ...storage.dataset.folder import dataset_at
from ...storage.hub.files import find_files
from ...storage.hub.names import is_hub_name, read_hub_name
from ...storage.stores.memory_store import MemoryStore
from ...storage.stores.store import Store
from ..runs.files import MODEL_FILE
from ..runs.folder import own_dataset, run_in, sha256_of_run_files
from ..runs.loaded_run import load_run
from ..runs.run_json import exported_stores, find_run_stores, read_run, score_weights
from ..search.encoder import extractor_of_store, open_store_encoder, video_vector
from ..untrusted_files import sha256_of_tensors
from .task_videos import DecodedVideos, Features, StoredVideos, TaskVideos, VideoSource

if TYPE_CHECKING:
    from datasets import Dataset
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta

    from ...extract.encoders.hub_text import HubTextTower
    from ...extract.encoders.text_tower import ClipTextTower

MAX_FEATURES_BYTES = 1 << 28
"""Size of the features that are in memory at once; further videos are scored later."""
NO_DOCUMENT = "none"
"""Result of a query that was compared with nothing. mteb excludes a query without results from its means; a document
outside of the corpus counts as a miss.
"""
OF_MSR_VTT = "mteb/MSR-VTT"
ABOUT_MSR_VTT = "mteb's MSR-VTT has 879 of the 1,000 pairs of the 1k-A test; do not compare with scores of the 1,000"


class TextVideoScorer(Protocol):
    """Scores texts with videos."""

    def similarity(self, texts: Sequence[str], videos: Sequence[Features]) -> np.ndarray:
        """Return the scores, float32 [N, M]."""
        ...


@dataclass(frozen=True)
class TowerScorer:
    """A text tower, and the features of the same model: cosines of a text and the mean of a video's rows."""

    features: str
    tower: "ClipTextTower | HubTextTower"

    def similarity(self, texts: Sequence[str], videos: Sequence[Features]) -> np.ndarray:
        """Return the cosines, float32 [N, M]."""
        vectors = np.stack([video_vector(video[self.features]) for video in videos])
        return self.tower.encode(list(texts)) @ vectors.T


class MtebModel:
    """A model that ``mteb.evaluate`` takes for tasks that retrieve videos by text, or texts by video.

    Example:
        >>> from vlalign.train import mteb_model
        >>> model = mteb_model("vlalign_data/demo/runs/words-s3d-seed0", dataset="vlalign_data/demo", device="cpu")
        >>> model.mteb_model_meta.framework
        ['PyTorch']
    """

    def __init__(self, meta: "ModelMeta", scorer: TextVideoScorer, videos: VideoSource) -> None:
        """Set the scorer, and the source of the features of videos; ``mteb_model`` makes both.

        Args:
            meta: mteb's description of the model.
            scorer: Scores texts and videos.
            videos: Gives the features of videos.
        """
        self.mteb_model_meta = meta
        self._scorer, self._videos = scorer, videos
        self._corpus: Dataset | None = None

    def index(self, corpus: "Dataset", *, task_metadata: "TaskMetadata", **options: Any) -> None:
        """Keep the corpus; it is read when the queries are known.

        Args:
            corpus: Documents, with the columns ``id`` and ``text`` or ``video``.
            task_metadata: mteb's description of the task, which is ignored.
            options: Other options of mteb, which are ignored.
        """
        del task_metadata, options
        self._corpus = corpus

    def search(
        self,
        queries: "Dataset",
        *,
        task_metadata: "TaskMetadata",
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> dict[str, dict[str, float]]:
        """Return {id of a query: {id of a document: score}}, the ``top_k`` best documents of each query.

        A video without features finds no text, and no text finds it; a warning reports how many there are. Another
        warning reports that mteb's MSR-VTT has 879 pairs.

        Args:
            queries: Queries, with the same columns as the corpus.
            task_metadata: mteb's description of the task.
            top_k: Number of documents.
            top_ranked: {id of a query: ids of the documents that are ranked}; None: all.
            options: Other options of mteb, which are ignored.

        Raises:
            UserError: The task does not compare a text with a video.
        """
        from mteb.types import PromptType

        del options
        name = task_metadata.name
        assert self._corpus is not None, "mteb calls index first"
        query_ids, document_ids = list(map(str, queries["id"])), list(map(str, self._corpus["id"]))
        kinds: list[Any] = [PromptType.query, PromptType.document]  # type checkers take these for texts
        sides = [task_metadata.get_modalities(kind) for kind in kinds]
        if sides == [["text"], ["video"]]:
            scores = self._scores(name, _texts_of(queries), TaskVideos(document_ids, _videos_of(self._corpus)))
        elif sides == [["video"], ["text"]]:
            scores = self._scores(name, _texts_of(self._corpus), TaskVideos(query_ids, _videos_of(queries))).T
        else:
            problem = f"its queries are {'+'.join(sides[0])}, its candidates {'+'.join(sides[1])}"
            raise UserError(f"task {name}: {problem}; expected texts and videos")
        say(f"{name}: {number_of(len(query_ids), 'queries')}, {number_of(len(document_ids), 'candidates')}")
        if task_metadata.dataset.get("path") == OF_MSR_VTT:
            warnings.warn(ABOUT_MSR_VTT, stacklevel=2)
        return {
            query: _best(row, document_ids, top_k, None if top_ranked is None else top_ranked.get(query, ()))
            for query, row in zip(query_ids, scores, strict=True)
        }

    def _scores(self, name: str, texts: Sequence[str], videos: TaskVideos) -> np.ndarray:
        """Return the scores [N, M], NaN for videos without features."""
        scores, problems = np.full((len(texts), len(videos.ids)), np.nan, dtype=np.float32), list[str]()
        for part in _parts(self._videos.features(videos, problems)):
            numbers, features = zip(*part, strict=True)
            scores[:, list(numbers)] = self._scorer.similarity(texts, features)
        if problems:
            counted = f"{len(problems):,} of {len(videos.ids):,} videos have no features and count as misses"
            warnings.warn(f"{name}: {counted}, such as {one_line(problems[0])}", stacklevel=3)
        if len(problems) == len(videos.ids):
            raise UserError(f"task {name}: none of its videos has features: {problems[0]}")
        return scores


def _parts(features: Iterator[tuple[int, Features]]) -> Iterator[list[tuple[int, Features]]]:
    """Yield videos in groups that each have about ``MAX_FEATURES_BYTES`` of features."""
    part, num_bytes = [], 0
    for number, of_video in features:
        part.append((number, of_video))
        num_bytes += sum(rows.features.nbytes for rows in of_video.values())
        if num_bytes >= MAX_FEATURES_BYTES:
            yield part
            part, num_bytes = [], 0
    if part:
        yield part


def _best(
    scores: np.ndarray, document_ids: Sequence[str], top_k: int, ranked: Collection[str] | None
) -> dict[str, float]:
    """Return {id: score} of the best documents of a query that have a score, and are among ``ranked`` if given."""
    is_wanted = np.isfinite(scores)
    if ranked is not None:
        is_wanted &= np.isin(document_ids, list(ranked))
    wanted = np.flatnonzero(is_wanted)
    best = wanted[np.argsort(-scores[wanted], kind="stable")[:top_k]]
    found = {document_ids[int(number)]: float(scores[number]) for number in best}
    return found or {NO_DOCUMENT: 0.0}


def _texts_of(side: "Dataset") -> list[str]:
    """Return the texts of the queries or the corpus.

    Raises:
        UserError: There are also titles or instructions, or texts are conversations.
    """
    for column in ("title", "instruction"):
        if column in side.column_names and any(side[column]):
            raise UserError(f"texts have a column {column!r}; expected captions alone")
    texts = list(side["text"])
    if wrong := next((text for text in texts if not isinstance(text, str)), None):
        raise UserError(f"a text is a {type(wrong).__name__}; expected captions alone")
    return texts


def _videos_of(side: "Dataset") -> Sequence[Mapping[str, Any]]:
    """Return the videos of the queries or the corpus as files or bytes, not decoded.

    Raises:
        UserError: They are decoded already.
    """
    from datasets import Video

    if not isinstance(side.features["video"], Video):
        raise UserError(f"the column 'video' is {side.features['video']}; expected datasets.Video")
    return side.cast_column("video", Video(decode=False))["video"]


def mteb_model(
    run: Path | str | None = None,
    *,
    features: str | None = None,
    dataset: Path | str | None = None,
    weights: Path | str | None = None,
    device: str = "auto",
    trust: Collection[str] = (),
) -> MtebModel:
    """Return a run, or an encoder whose model also reads texts, as a model that ``mteb.evaluate`` takes.

    The videos of a task are decoded and their features computed as ``vlalign-extract`` does; with ``dataset`` they are
    looked up in its stores. A run's score is ``LoadedRun.similarity``: the weighted sum of all its stages, with its
    fusion layers, but without NCL's normalisation. An encoder's score is the cosine of a text's vector and the mean of
    a video's rows.

    Args:
        run: Folder of a run, exported or not, or its name with ``dataset``.
        features: Instead of a run: an encoder such as "clip_vit_b32" or "hf:google/siglip2-base-patch16-224".
        dataset: Folder of a data set with the task's video ids, such as the data set that ``mteb_task`` was given.
        weights: File or folder of the weights of the encoder, or of the only encoder whose features the run reads.
            None: where the extraction found them.
        device: Device to compute on; see ``find_device``.
        trust: Modules of your own that may be imported if the run names them.

    Returns:
        The model. ``mteb_model_meta`` describes it; the revision is a hash of everything that the scores depend on.

    Raises:
        UserError: mteb is not installed; neither or both of ``run`` and ``features`` are given; or the given one cannot
            be used.

    Example:
        >>> from vlalign.train import mteb_model
        >>> model = mteb_model("vlalign_data/demo/runs/words-s3d-seed0", dataset="vlalign_data/demo", device="cpu")
        >>> model.mteb_model_meta.name
        'vlalign/words-s3d-seed0'
    """
    check_mteb()
    if (run is None) == (features is None):
        raise SettingError("run", run, "expected either a run or features of an encoder")
    place = None if weights is None else Path(weights)
    if run is not None:
        return _model_of_run(run, dataset, place, device, trust)
    assert features is not None
    return _model_of_encoder(features, dataset, place, device)


def check_mteb() -> None:
    """Raise ``UserError`` if mteb is not installed."""
    try:
        import mteb as mteb
    except ImportError as error:
        raise UserError(missing_package_message(error) or f"mteb cannot be imported: {error}") from None


def _model_of_run(
    run: Path | str, dataset: Path | str | None, weights: Path | None, device: str, trust: Collection[str]
) -> MtebModel:
    folder = run_in(dataset, run)
    loaded = load_run(folder, device, trust)
    about, config = read_run(folder), loaded.config
    given = own_dataset(folder, about) if dataset is None else dataset_at(dataset)
    stores = (exported_stores(about) if given is None else find_run_stores(given, folder.name, about)).features
    by_name = dict(zip(loaded.profiles, stores, strict=True))
    stages = {stage: weight for stage, weight in score_weights(about, config).items() if weight}
    has_vectors = [*stages] == [config.objective.vector_score]
    made = {
        "files": {MODEL_FILE: sha256_of_tensors(folder / MODEL_FILE), **sha256_of_run_files(folder, about)},
        "stages": stages,
    }
    meta = _meta(
        folder.name,
        made | _rows_of(by_name.values(), dataset),
        similarity="dot" if has_vectors else None,
        width=loaded.encode_text(["a"]).shape[1] if has_vectors else None,
        max_tokens=config.data.max_text_tokens,
    )
    if dataset is not None:
        if weights is not None:
            raise SettingError("weights", weights, "has no effect: features are looked up in the data set; omit it")
        return MtebModel(meta, loaded, StoredVideos(by_name))
    if weights is not None and len(by_name) > 1:
        raise SettingError(
            "weights", weights, f"the run reads features of several networks: {', '.join(by_name)}; omit it"
        )
    extractors = {name: extractor_of_store(store, weights, device) for name, store in by_name.items()}
    return MtebModel(meta, loaded, DecodedVideos(extractors))


def _model_of_encoder(features: str, dataset: Path | str | None, weights: Path | None, device: str) -> MtebModel:
    from ...extract import load_extractor
    from ...extract.encoders.text_tower import load_text_tower

    if dataset is not None:
        encoder = open_store_encoder(dataset_at(dataset), features, weights)
        store, tower = encoder.store, encoder.tower
        videos: VideoSource = StoredVideos({store.name: store})
    else:
        extractor = load_extractor(features, weights=weights or "pretrained", device=str(find_device(device)))
        if weights is None and is_hub_name(features):
            weights = find_files(read_hub_name(features)).folder
        store = MemoryStore(extractor.profile, extractor.weights)
        tower = load_text_tower(extractor.profile, extractor.weights, weights)
        videos = DecodedVideos({store.name: extractor})
    if isinstance(tower, UserError):
        raise tower
    made = {"profile": store.profile.hash, "weights": store.weights.sha256, "texts": tower.preparation}
    meta = _meta(
        store.name,
        made | _rows_of([store], dataset),
        similarity="cosine",
        width=store.profile.dimension,
        max_tokens=tower.max_tokens,
    )
    return MtebModel(meta, TowerScorer(store.name, tower), videos)


def _rows_of(stores: Iterable[Store], dataset: Path | str | None) -> dict[str, Any]:
    """Return facts that identify the feature vectors of a data set; empty if they are computed from the videos."""
    return {} if dataset is None else {"rows": [store.rows_checksum() for store in stores]}


def _meta(
    name: str, made: Mapping[str, Any], *, similarity: str | None, width: int | None, max_tokens: int
) -> "ModelMeta":
    """Return mteb's description of a model; unknown fields are None.

    Args:
        name: Name of the run or the features.
        made: Everything that the scores depend on.
        similarity: mteb's name of the function that compares two vectors; None if scores do not compare two vectors.
        width: Length of a vector; None if scores do not compare two vectors.
        max_tokens: Maximum number of tokens that are read of a text.
    """
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    text = json.dumps({**made, "vlalign": package_version()}, sort_keys=True)
    return ModelMeta(
        loader=None,
        name=f"vlalign/{name}",
        revision=hashlib.sha256(text.encode()).hexdigest()[:40],
        release_date=None,
        languages=None,
        n_parameters=None,
        memory_usage_mb=None,
        max_tokens=max_tokens,
        embed_dim=width,
        license=None,
        open_weights=None,
        public_training_code=None,
        public_training_data=None,
        framework=["PyTorch"],
        similarity_fn_name=ScoringFunction(similarity or "custom"),
        use_instructions=False,
        training_datasets=None,
        modalities=["text", "video"],
        model_type=["dense" if width else "hybrid"],
    )
