"""A trained run as a Python object that encodes texts and videos: ``vlalign.train.load_run``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...storage.common.errors import UserError
from ...storage.common.files import read_json
from ...storage.common.plugins import trust_modules
from ...storage.records import Caption, Profile, VideoFeatures
from ...storage.stores.memory_store import MemoryStore
from ...storage.stores.store import Store
from ..data.clip_features import ClipFeatures
from ..data.clips import Clip
from ..recipes.train_config import TrainConfig
from ..scoring.scorer import Scorer, clip_vectors, stage_scores, text_vectors
from ..settings import FeatureRows
from .files import METRICS_FILE
from .folder import named_folder, own_dataset
from .load import load_scorer
from .run_json import exported_stores, find_run_stores, read_run, score_weights

Video = Mapping[str, ArrayLike | VideoFeatures]
"""{features: vectors [T, F]; or, with the times of the vectors, the result of ``extract_video`` or ``Store.get``}"""


@dataclass(frozen=True)
class LoadedRun:
    """A trained run: vectors of texts and videos, and scores of both.

    The scores equal those of evaluation and search: the same functions compute them in the same tiles.

    Example:
        >>> from vlalign.storage import open_store
        >>> from vlalign.train import load_run
        >>> run = load_run("vlalign_data/demo/runs/words-s3d-seed0", device="cpu")
        >>> video = open_store("vlalign_data/demo/features/s3d").get("demo0000")
        >>> texts = run.encode_text(["cut the onion", "fry the fish"])
        >>> videos = run.encode_video([{"s3d": video}])
        >>> (texts @ videos.T).shape
        (2, 1)
    """

    folder: Path
    """Folder of the run."""
    profiles: Mapping[str, Profile]
    """{features: how they are made}, for each of the features that a video needs."""
    metrics: Mapping[str, Any]
    """Contents of ``metrics.json``: the run's evaluation on the test split; empty if there was none."""
    _scorer: Scorer
    _weights: Mapping[str, float]

    @property
    def config(self) -> TrainConfig:
        """The run's settings."""
        return self._scorer.config

    def encode_text(self, texts: Sequence[str | Caption]) -> np.ndarray:
        """Return the vector of each text, float32 [N, D].

        The dot product of a text's and a video's vector is one stage of the score, ``config.objective.vector_score``;
        a search finds candidates with it. ``similarity`` returns the whole score, with all stages.

        Args:
            texts: Texts. Each word gets the part of speech that it mostly has in the training captions. A ``Caption``,
                as ``read_captions`` returns it, has its own parts of speech.

        Raises:
            UserError: The run scores no texts.
        """
        return text_vectors(self._scorer, self._captions(texts))

    def encode_video(self, videos: Sequence[Video]) -> np.ndarray:
        """Return the vector of each video or clip, float32 [N, D].

        Args:
            videos: {features: rows [T, F]} of each, made as ``profiles`` says. An array's rows get times by their
                profile, from 0 on; pass ``VideoFeatures`` for other times. Times matter with several features.

        Raises:
            UserError: Features are missing, have no rows or another width, or the run scores no texts.
        """
        self._check_scores()
        scorer, clips = self._with(videos)
        return clip_vectors(scorer, clips)

    def similarity(self, texts: Sequence[str | Caption], videos: Sequence[Video]) -> np.ndarray:
        """Return how well each text fits each video, float32 [N, M]: the weighted sum of all stages of the score.

        If the run has fusion layers, they see all pairs.

        Args:
            texts: As for ``encode_text``.
            videos: As for ``encode_video``.

        Raises:
            UserError: As for ``encode_text`` and ``encode_video``.
        """
        captions = self._captions(texts)
        scorer, clips = self._with(videos)
        if not captions or not clips:
            return np.zeros((len(captions), len(clips)), dtype=np.float32)
        return stage_scores(scorer, captions, clips).fused(self._weights).by_caption

    def _check_scores(self) -> None:
        """Raise ``UserError`` if the run scores no pairs of a written text and a video, or needs more than both."""
        objective = self.config.objective
        if objective.task is not None:
            problem = f"was trained with the objective {objective.name} for the task {objective.task}"
        elif not self.config.model.encoder_traits.reads_words:
            problem = "was trained on spoken captions"
        elif rows := [name for name, of in self.config.extra.items() if isinstance(of, FeatureRows)]:
            problem = f"also reads another store for its own inputs ({', '.join(rows)})"
        else:
            return
        raise UserError(
            f"run {self.folder.name}: {problem}, and cannot score texts with rows of videos alone; use vlalign-evaluate"
        )

    def _captions(self, texts: Sequence[str | Caption]) -> list[Caption]:
        self._check_scores()
        if isinstance(texts, str):
            raise UserError("texts: a single text; expected a list of them")
        tag = self._scorer.weights.tag_query
        return [text if isinstance(text, Caption) else tag(text) for text in texts]

    def _with(self, videos: Sequence[Video]) -> tuple[Scorer, list[Clip]]:
        """Return a scorer with the features of these videos, and each video as a clip."""
        if isinstance(videos, Mapping):
            raise UserError("videos: a single video; expected a list of {features: rows}")
        for number, video in enumerate(videos):
            if unlike := self.profiles.keys() ^ video.keys():
                given, expected = ", ".join(sorted(unlike)), ", ".join(self.profiles)
                raise UserError(f"video {number}: missing or unexpected features {given}; expected exactly {expected}")
        stores: list[Store] = []
        for (name, profile), store in zip(self.profiles.items(), self._scorer.features.stores, strict=True):
            made = [self._features(name, profile, number, video[name]) for number, video in enumerate(videos)]
            stores.append(MemoryStore(profile, store.weights, made, origin=store.origin))
        scorer = replace(self._scorer, features=ClipFeatures(stores, self.config.store_grid))
        return scorer, [Clip(str(number), None, None) for number in range(len(videos))]

    def _features(self, name: str, profile: Profile, number: int, rows: ArrayLike | VideoFeatures) -> VideoFeatures:
        array = np.asarray(rows.features if isinstance(rows, VideoFeatures) else rows)
        where = f"video {number}, features {name}"
        if array.ndim != 2 or not len(array) or array.shape[1] != profile.dimension or array.dtype.kind not in "fiu":
            shape = f"{array.dtype} {list(array.shape)}"
            raise UserError(f"{where}: expected rows of numbers [T, {profile.dimension}], got {shape}")
        if not np.isfinite(array).all():
            raise UserError(f"{where}: expected finite numbers")
        if profile.is_frames:
            if array.dtype != np.uint8:
                raise UserError(f"{where}: expected frames in uint8, got {array.dtype}")
        elif array.dtype != np.float16:
            array = array.astype(np.float32)
        if isinstance(rows, VideoFeatures):
            return replace(rows, video_id=str(number), features=array)
        if profile.fps is None and len(self.profiles) > 1:
            raise UserError(f"{where}: their profile has no times of rows; expected VideoFeatures with times")
        starts = np.arange(len(array)) * (profile.stride / profile.fps if profile.fps else 1.0)
        ends = starts + (profile.window / profile.fps if profile.fps else 1.0)
        return VideoFeatures(
            video_id=str(number),
            features=array,
            start_seconds=starts,
            end_seconds=ends,
            valid_frames=np.full(len(array), profile.window),
            duration_seconds=float(ends[-1]),
        )


def load_run(folder: Path | str, device: str = "auto", trust: Collection[str] = ()) -> LoadedRun:
    """Load a trained run, to encode texts and videos and to score both.

    Nothing in the folder is run as code. A run with a custom objective or encoder also needs its module.

    Args:
        folder: The folder of a run, ``<root>/<data set>/runs/<run>``, or of an exported run (``export_run``), anywhere.
        device: Name of the device; see ``find_device``.
        trust: Modules that may be imported if ``run.json`` names them for the objective or the encoder.

    Returns:
        The run, ready to encode and to score.

    Raises:
        SettingError: The objective or the encoder is of a module that is not in ``trust``. Nothing was imported.
        UserError: The run is incomplete or damaged, its module is missing, or it was not exported and its data set
            lacks its features.

    Example:
        >>> from vlalign.storage import open_store
        >>> from vlalign.train import load_run
        >>> run = load_run("vlalign_data/demo/runs/words-s3d-seed0", device="cpu")
        >>> video = open_store("vlalign_data/demo/features/s3d").get("demo0000")
        >>> run.similarity(["cut the onion", "fry the fish"], [{"s3d": video}]).shape
        (2, 1)
    """
    trust_modules(trust)
    path = named_folder(folder)
    about = read_run(path)
    own = own_dataset(path, about)
    stores = exported_stores(about) if own is None else find_run_stores(own, path.name, about)
    scorer, _ = load_scorer(path, about, stores, device)
    names = scorer.config.data.features.split("+")
    profiles = {name: store.profile for name, store in zip(names, stores.features, strict=True)}
    return LoadedRun(path, profiles, read_metrics(path), scorer, score_weights(about, scorer.config))


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return the contents of a run's ``metrics.json``; empty if the run was not evaluated.

    Raises:
        UserError: The file is not an object in JSON.
    """
    path = folder / METRICS_FILE
    metrics = read_json(path) if path.exists() else {}
    if not isinstance(metrics, dict):
        raise UserError(f"{path}: expected a JSON object; remove it and run vlalign-evaluate again")
    return metrics
