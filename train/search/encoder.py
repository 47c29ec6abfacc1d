"""Encoders of queries and clips: the protocol, and the encoder of a store.

A query becomes a vector in ``encode_text`` or ``encode_image``, a part of a video in ``encode_clips``. ``StoreEncoder``
does this with a feature store and the text tower of its model, ``RunEncoder`` (``run_encoder.py``) with a trained run.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...extract.decoding.errors import VideoError
from ...extract.encoders.text_preparation import NoTextRule
from ...storage.common.errors import UserError
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.synced import without_removed
from ...storage.hub.names import is_hub_name, read_hub_name
from ...storage.profiles import split_features
from ...storage.records import VideoFeatures
from ...storage.shards import TEXTS
from ...storage.stores.opening import feature_names, open_features, refuse_frames
from ...storage.stores.store import Store
from ..data.clips import Clip
from .moments import ScoreCurve

if TYPE_CHECKING:
    from ...extract.encoders.hub_text import HubTextTower
    from ...extract.encoders.text_tower import ClipTextTower
    from ...extract.extractor import Extractor
    from ..scoring.query_biases import DotProducts

TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class ClipScores:
    """Scores of some clips for a query, with all stages."""

    total: np.ndarray
    """Weighted sum of the stages, float32 [N]."""
    stages: dict[str, np.ndarray]
    """{stage: float32 [N]}"""


@dataclass(frozen=True)
class TrainingTexts:
    """Texts that a run was trained with. With NCL's biases, they find all windows equally often."""

    vectors: np.ndarray
    """float32 [K, D]"""
    temperature: float
    """Divides their similarities to windows."""

    def similarities(self, vectors: np.ndarray) -> "DotProducts":
        """Return the similarities [K, N] to vectors [N, D], each computed when it is read."""
        import torch

        from ..scoring.query_biases import DotProducts

        windows = torch.from_numpy(np.asarray(vectors, dtype=np.float32))
        return DotProducts(torch.from_numpy(self.vectors), windows)


class SearchEncoder(Protocol):
    """Encodes clips and texts as vectors whose dot product is their similarity."""

    @property
    def dataset(self) -> DatasetFolder:
        """The data set that is searched."""
        ...

    @property
    def name(self) -> str:
        """Name of the features, or of the run."""
        ...

    @property
    def description(self) -> str:
        """The data set's name, and other necessary facts about the search."""
        ...

    @property
    def note(self) -> str | None:
        """The note to show with every result, such as that features come from random weights."""
        ...

    @property
    def reads_texts(self) -> bool:
        """True if texts have vectors; else only captions can be searched by text, and videos by example."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of the encoder; vectors with another identity cannot be compared."""
        ...

    def video_ids(self) -> list[str]:
        """Return the videos that have features."""
        ...

    def duration_seconds(self, video_id: str) -> float:
        """Return the duration of a video."""
        ...

    def checksum(self, video_id: str) -> int:
        """Return a checksum of a video's rows, 0 to 2**63 - 1."""
        ...

    def encode_clips(self, clips: Sequence[Clip]) -> np.ndarray:
        """Return a vector for each clip, float32 [N, D]; NaN for a clip without rows, which is never found."""
        ...

    def encode_text(self, text: str) -> np.ndarray:
        """Return the vector of a text, float32 [D]."""
        ...

    def encode_image(self, path: Path) -> np.ndarray:
        """Return the vector of an image, as of a video that shows it, float32 [D]."""
        ...

    def score(self, text: str, clips: Sequence[Clip], rerank: int) -> ClipScores | None:
        """Score clips with all stages, the late ones for the ``rerank`` best; None if the encoder has only vectors."""
        ...

    def curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve | None:
        """Return scores finer than the windows'; None if there are none."""
        ...

    def word_curves(self, text: str, video_id: str) -> dict[str, ScoreCurve]:
        """Return how well each word of a text fits a video over its time; empty if the model has no such scores."""
        ...

    def knows(self, text: str) -> bool:
        """Return whether the model knows a word of a text."""
        ...

    def warnings(self, text: str) -> list[str]:
        """Return the parts of a text that the model does not know or does not read, one line each."""
        ...

    @property
    def trained_splits(self) -> frozenset[str]:
        """The splits of captions that the model was trained with."""
        ...

    def training_texts(self) -> TrainingTexts | None:
        """Return the texts from which the biases of windows are computed; None for no biases."""
        ...


def l2_normalize(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [..., D] with length 1; zeros stay."""
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), TINY)


def stores_checksum(stores: Sequence[Store], video_id: str) -> int:
    """Return one checksum of a video's rows in several stores."""
    parts = b"".join(store.checksum(video_id).to_bytes(8, "little", signed=True) for store in stores)
    return int.from_bytes(hashlib.sha256(parts).digest()[:8], "little") >> 1


class StoreEncoder:
    """A store and the text tower of the model that made it: no training, no captions.

    The vector of a clip is the mean of its rows; rows and mean are scaled to length 1 (CLIP4Clip's mean pooling).
    """

    def __init__(
        self,
        dataset: DatasetFolder,
        store: Store,
        tower: "ClipTextTower | HubTextTower | UserError",
        weights: Path | None = None,
    ) -> None:
        """Take a store and its text tower.

        Args:
            dataset: The data set.
            store: The store.
            tower: Its text tower; if it has none, the error to raise for a text.
            weights: As for ``image_features``; used only without a text tower.
        """
        self.dataset, self.store, self.tower, self._weights = dataset, store, tower, weights

    @property
    def name(self) -> str:
        """Name of the features."""
        return self.store.name

    @property
    def description(self) -> str:
        """The data set's name."""
        return self.dataset.name

    @property
    def note(self) -> str | None:
        """None, even for random weights.

        A store of random weights has no text tower: it is searched by examples and captions only.
        """
        return None

    @property
    def reads_texts(self) -> bool:
        """True if the model has a text tower."""
        return not isinstance(self.tower, UserError)

    @property
    def identity(self) -> dict[str, Any]:
        """The profile, the weights, and how texts are prepared where the model's files do not say it.

        Earlier versions neither padded texts for SigLIP nor lower-cased them, so their indexes get another identity.
        """
        made = {"profile_hash": self.store.profile.hash, "weights_sha256": self.store.weights.sha256}
        if isinstance(self.tower, UserError) or self.tower.uses_default_preparation:
            return made
        return made | {"texts": self.tower.preparation}

    def video_ids(self) -> list[str]:
        """Return the videos of the store, without removed ones."""
        return without_removed(self.dataset, self.store.video_ids())

    def duration_seconds(self, video_id: str) -> float:
        """Return the duration of a video."""
        return self.store.duration_seconds(video_id)

    def checksum(self, video_id: str) -> int:
        """Return a checksum of a video's rows."""
        return stores_checksum([self.store], video_id)

    def encode_clips(self, clips: Sequence[Clip]) -> np.ndarray:
        """Return a vector of length 1 for each clip, from the rows whose middle is in it, or else the nearest row."""
        vectors = np.zeros((len(clips), self.store.profile.dimension), dtype=np.float32)
        for video_id in dict.fromkeys(clip.video_id for clip in clips):
            of_video = [index for index, clip in enumerate(clips) if clip.video_id == video_id]
            vectors[of_video] = _window_means(self.store.get(video_id), [clips[index] for index in of_video])
        return vectors

    def encode_text(self, text: str) -> np.ndarray:
        """Return the text tower's vector, of length 1."""
        if isinstance(self.tower, UserError):
            raise self.tower
        return self.tower.encode([text])[0]

    def encode_image(self, path: Path) -> np.ndarray:
        """Return the vector of an image by the same model: the mean of its rows, of length 1."""
        weights_path = self._weights if isinstance(self.tower, UserError) else self.tower.weights_path
        return video_vector(image_features(self.store, path, weights_path))

    def score(self, text: str, clips: Sequence[Clip], rerank: int) -> ClipScores | None:
        """Return None: there are no scores besides the vectors' products."""
        return None

    def curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve | None:
        """Return the score of each row."""
        video = self.store.get(video_id)
        return ScoreCurve(video.start_seconds, video.end_seconds, l2_normalize(video.features) @ query_D)

    def word_curves(self, text: str, video_id: str) -> dict[str, ScoreCurve]:
        """Return nothing: the text tower gives one vector for the whole text."""
        return {}

    @property
    def trained_splits(self) -> frozenset[str]:
        """Empty: nothing was trained."""
        return frozenset()

    def training_texts(self) -> None:
        """Return None: nothing was trained."""
        return None

    def knows(self, text: str) -> bool:
        """Return True: a text tower reads any text."""
        return True

    def warnings(self, text: str) -> list[str]:
        """Return a line if the text is too long."""
        if not isinstance(self.tower, UserError) and self.tower.is_cut(text):
            return [f"only the first {self.tower.max_tokens} subwords are read"]
        return []


def _window_means(video: VideoFeatures, clips: Sequence[Clip]) -> np.ndarray:
    """Return the mean of the rows of each clip of one video, [N, D]; rows and means have length 1. NaN without rows."""
    if not len(video.features):
        return np.full((len(clips), video.features.shape[1]), np.nan, dtype=np.float32)
    sums = np.zeros((len(video.features) + 1, video.features.shape[1]))
    l2_normalize(video.features).cumsum(axis=0, dtype=np.float64, out=sums[1:])
    middles = (video.start_seconds + video.end_seconds) / 2
    starts = np.array([0.0 if clip.start_seconds is None else clip.start_seconds for clip in clips])
    ends = np.array([np.inf if clip.end_seconds is None else clip.end_seconds for clip in clips])
    first, last = np.searchsorted(middles, starts, side="left"), np.searchsorted(middles, ends, side="left")
    is_empty = last <= first
    nearest = np.abs(middles[None] - np.minimum((starts + ends) / 2, middles[-1])[:, None]).argmin(axis=1)
    first, last = np.where(is_empty, nearest, first), np.where(is_empty, nearest + 1, last)
    return l2_normalize((sums[last] - sums[first]) / (last - first)[:, None])


def video_vector(video: VideoFeatures) -> np.ndarray:
    """Return the mean of a whole video's rows, [D]; rows and mean have length 1. NaN without rows."""
    return _window_means(video, [Clip(video.video_id, None, None)])[0]


def image_features(store: Store, path: Path, weights: Path | None = None) -> VideoFeatures:
    """Extract the features of an image in the same way as a store's.

    Args:
        store: The store.
        path: An image or a video.
        weights: File or folder of the weights that made the store. None for the place that the extraction recorded.

    Raises:
        UserError: The image or the weights cannot be read, or the store was imported.
    """
    from ...extract import extract_video

    try:
        return extract_video(path, [extractor_of_store(store, weights)])[store.profile.name]
    except VideoError as error:
        raise UserError(f"{path}: {error}") from None


def extractor_of_store(store: Store, weights: Path | None = None, device: str = "cpu") -> "Extractor":
    """Return the extractor that made a store.

    Args:
        store: The store.
        weights: File or folder of the weights that made it. None: where the extraction found them.
        device: What the network computes on; see ``find_device``.

    Raises:
        UserError: The weights cannot be read, or the store was imported.
    """
    from ...extract import load_extractor
    from ...extract.encoders.weights_paths import find_weights
    from ...extract.extractor import load_for_store, without_network
    from ...storage.common.device import find_device

    used, at = store.weights, find_device(device)
    if store.profile.is_frames:
        extractor = without_network(store.profile)
    elif used.is_random:
        seed = int("".join(filter(str.isdigit, used.name)) or 0)
        extractor = load_extractor(store.profile.name, weights="random", seed=seed, device=str(at))
    else:
        extractor = load_for_store(store.profile, weights or find_weights(store.profile, used), at)
    if (extractor.profile, extractor.weights.sha256) != (store.profile, used.sha256):
        problem = "this version makes such features in another way, and cannot encode queries for the store"
        raise UserError(f"{store.where}: {problem}; use a store that was extracted")
    return extractor


def open_store_encoder(dataset: DatasetFolder, features: str, weights: Path | None) -> StoreEncoder:
    """Open a store for search without a run. If its model reads no texts, captions and examples can be searched.

    Raises:
        UserError: There is no such store, or its text tower cannot be read.
    """
    from ...extract.encoders.text_tower import (  # torch takes seconds to import
        WITH_TEXT_TOWER,
        has_text_tower,
        load_text_tower,
    )
    from ...extract.encoders.weights_paths import remember_weights

    names = split_features(features, feature_names(dataset))
    if len(names) > 1:
        raise UserError(
            f"features {features}: several names; without a run, expected one, such as {' or '.join(WITH_TEXT_TOWER)}"
        )
    if weights is None and is_hub_name(features) and (encoder := read_hub_name(features)).is_folder:
        weights = Path(os.path.expanduser(encoder.model)).absolute()
    store = open_features(dataset, names[0])
    todo = "run vlalign-extract --features clip_vit_b32, or search with a run: vlalign-search RUN TEXT"
    refuse_frames(store, todo)
    if store.profile.is_shots:
        raise UserError(f"{store.where}: has shots, not features of a network; {todo}")
    try:
        tower = load_text_tower(store.profile, store.weights, weights)
        _check_texts(store, tower)
        if weights is not None:
            remember_weights(store.weights, weights)
    except UserError as error:
        may_read_texts = has_text_tower(store.profile) and store.weights.sha256 and not store.weights.is_random
        if may_read_texts and not isinstance(error, NoTextRule):
            raise
        tower = error
    return StoreEncoder(dataset, store, tower, weights)


def _check_texts(store: Store, tower: "ClipTextTower | HubTextTower") -> None:
    """Raise ``UserError`` if a store expects texts that are prepared differently. Stores of 1.0.0 do not say."""
    required = sorted({*store.made_with.get(TEXTS, ())} - {tower.preparation})
    if required:
        raise UserError(
            f"{store.where}: expects texts prepared as {required[0]}; {tower.weights_path} prepares them as "
            f"{tower.preparation}; pass --weights with the folder that made it, or update vlalign"
        )
