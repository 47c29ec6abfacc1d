"""Search with a trained run: its text and video sides find candidates, and its further stages order them."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import sha256_of
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.synced import without_removed
from ...storage.stores.memory_store import MemoryStore
from ..data.clip_features import ClipFeatures
from ..data.clips import Clip
from ..data.text_inputs import WordIdInputs, WordSentenceInputs
from ..models.tokens import EXTRA, VideoTokens, present, tokens_of
from ..recipes.own_parts import facts_of_plugins
from ..runs.files import MODEL_FILE
from ..runs.folder import own_dataset
from ..runs.load import Run
from ..scoring.scorer import Scorer, clip_vectors, join_videos, stage_scores, text_vectors
from ..scoring.word_similarities import word_similarities
from .encoder import ClipScores, TrainingTexts, image_features, stores_checksum
from .moments import ScoreCurve
from .query_checks import check_time

MAX_CACHED_BYTES = 256 << 20


class RunEncoder:
    """Encoder of a run: candidates are found by its early stage that is a dot product."""

    def __init__(self, run: Run, normalize: str | None = None) -> None:
        """Take a run.

        Args:
            run: The run.
            normalize: "none" for scores as they are, "ncl" for NCL's biases; None: as in the paper of the objective.

        Raises:
            SettingError: Biases are requested, but the run's objective is not NCL.
        """
        usual = run.config.objective.normalization
        if normalize not in (None, "none", usual):
            problem = f"{run.folder.name} is not a run of objective ncl with --normalized-loss; omit it"
            raise SettingError("normalize", normalize, problem)
        self.normalization = usual if normalize is None else normalize
        """Normalisation of a text's scores with windows: "ncl" or "none"."""
        self.run = run
        self._caching_scorer = CachingScorer.of(run.scorer)
        self._stores = run.features.stores
        self._extra = run.scorer.extra.stores
        """The stores of custom inputs."""

    @property
    def dataset(self) -> DatasetFolder:
        """The data set that is searched."""
        return self.run.dataset

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.run.folder.absolute().name

    @property
    def description(self) -> str:
        """The data set's name, and the run's if it was trained on another one."""
        own = own_dataset(self.run.folder, self.run.about)
        if own is None:
            return f"{self.dataset.name} ({self.dataset.path}), with the exported run {self.name}"
        if own.real_path == self.dataset.real_path:
            return own.name
        return f"{self.dataset.name} ({self.dataset.path}), with the run {self.name} of {own.name}"

    @property
    def note(self) -> str | None:
        """The note to show with every number of the run."""
        return self.run.note

    @property
    def reads_texts(self) -> bool:
        """True: runs that read no texts are refused earlier."""
        return True

    @property
    def identity(self) -> dict[str, Any]:
        """The model, and the profiles and weights of its features."""
        stores = [*self._stores, *self._extra]
        features = [{"profile_hash": s.profile.hash, "weights_sha256": s.weights.sha256} for s in stores]
        identity = {"run": self.name, "model_sha256": sha256_of(self.run.folder / MODEL_FILE), "features": features}
        plugins = facts_of_plugins(self.run.config)  # other code makes other vectors
        return identity | ({"plugins": plugins} if plugins else {})

    def video_ids(self) -> list[str]:
        """Return the videos in all stores of the run, without removed ones."""
        return without_removed(self.dataset, self.run.features.video_ids())

    def duration_seconds(self, video_id: str) -> float:
        """Return the duration of a video."""
        return self.run.features.duration_seconds(video_id)

    def checksum(self, video_id: str) -> int:
        """Return a checksum of a video's rows in all stores."""
        return stores_checksum([*self._stores, *(s for s in self._extra if video_id in s)], video_id)

    def encode_clips(self, clips: Sequence[Clip]) -> np.ndarray:
        """Return the vector of each clip in the stage that is a dot product; NaN for a clip without rows."""
        vectors = clip_vectors(self.run.scorer, clips)
        vectors[~self.run.scorer.features.has_rows(clips)] = np.nan
        return vectors

    def encode_text(self, text: str) -> np.ndarray:
        """Return the vector of a text in the stage that is a dot product."""
        return text_vectors(self.run.scorer, [self.run.scorer.weights.tag_query(text)])[0]

    def encode_image(self, path: Path) -> np.ndarray:
        """Return the vector of an image, as of a video that shows it.

        Raises:
            UserError: The run also reads rows of a second store, which an image does not have.
        """
        if self._extra:
            where = self._extra[0].where
            raise UserError(f"{path}: the run reads rows of {where}, which an image does not have; search with a text")
        stores = [MemoryStore(s.profile, s.weights, [image_features(s, path)]) for s in self._stores]
        [video_id] = stores[0].video_ids()
        shown = ClipFeatures(stores, self.run.config.store_grid)
        scorer = replace(self.run.scorer, features=shown)
        return RunEncoder(replace(self.run, scorer=scorer)).encode_clips([Clip(video_id, None, None)])[0]

    def score(self, text: str, clips: Sequence[Clip], rerank: int) -> ClipScores | None:
        """Return the same scores as in evaluation. Clips that the late stages did not score come after the others."""
        scorer = self._caching_scorer
        shortlist = rerank if scorer.has_early else None
        scores = stage_scores(scorer, [scorer.weights.tag_query(text)], clips, rerank=shortlist)
        stages = {stage: values[0] for stage, values in scores.stages.items()}
        return ClipScores(scores.fused(self.run.score_weights).by_caption[0], stages)

    def curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve | None:
        """Return None: there are no scores finer than the windows'."""
        return None

    def word_curves(self, text: str, video_id: str) -> dict[str, ScoreCurve]:
        """Return the scores of each word of a text with the video's rows that the model reads."""
        caption = self._caching_scorer.weights.tag_query(text)
        found = next(word_similarities(self._caching_scorer, [caption], [Clip(video_id, None, None)]), None)
        if found is None:
            return {}
        return {
            word: ScoreCurve(found.start_seconds, found.end_seconds, scores) for word, scores in found.words.items()
        }

    @property
    def trained_splits(self) -> frozenset[str]:
        """The training split, of any data set: another data set may have the same captions."""
        return frozenset({"train"})

    def training_texts(self) -> TrainingTexts | None:
        """Return the training texts in the run's queue, if scores are normalised by them (NCL, section 3.4)."""
        queue = self.run.scorer.model.queries
        if self.normalization == "none" or queue is None or not int(queue.pushed):
            return None
        temperature = self.run.config.objective.temperature_of(self.run.scorer.model)
        return TrainingTexts(queue.filled()[0].float().cpu().numpy(), temperature)

    def knows(self, text: str) -> bool:
        """Return False if the model reads only words of its vocabulary, and no word of the text is in it."""
        inputs = self.run.scorer.text_inputs
        return isinstance(inputs, WordSentenceInputs) or not isinstance(inputs, WordIdInputs) or inputs.knows(text)

    def warnings(self, text: str) -> list[str]:
        """Return a line with the words that no training caption had."""
        unknown = self.run.scorer.weights.unknown_words(text)
        return [f"not in the training captions: {', '.join(unknown)}"] if unknown else []


class VideoTokenCache:
    """Tokens of the last scored clips, without padding: queries of one data set often score the same clips."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._by_clip: OrderedDict[Clip, VideoTokens] = OrderedDict()

    def __contains__(self, clip: Clip) -> bool:
        return clip in self._by_clip

    def __getitem__(self, clip: Clip) -> VideoTokens:
        self._by_clip.move_to_end(clip)
        return self._by_clip[clip]

    def add(self, clip: Clip, tokens: VideoTokens) -> None:
        """Add the tokens of a clip."""
        self._by_clip[clip] = tokens
        self.num_bytes += _num_bytes(tokens)

    def evict(self) -> None:
        """Remove the least recently used clips until the rest is small enough."""
        while self.num_bytes > self.max_bytes:
            self.num_bytes -= _num_bytes(self._by_clip.popitem(last=False)[1])


@dataclass(frozen=True)
class CachingScorer(Scorer):
    """A scorer that encodes a clip once, as long as its tokens are in the cache."""

    cache: VideoTokenCache = field(default_factory=VideoTokenCache)

    @classmethod
    def of(cls, scorer: Scorer) -> "CachingScorer":
        """Return a scorer with a cache of its own."""
        return cls(**{field.name: getattr(scorer, field.name) for field in fields(Scorer)})

    def encode_videos(self, clips: Sequence[Clip]) -> VideoTokens:
        """Return the tokens of clips."""
        check_time()
        new = [clip for clip in dict.fromkeys(clips) if clip not in self.cache]
        if new:
            encoded = super().encode_videos(new)
            for row, clip in enumerate(new):
                self.cache.add(clip, _alone(encoded, row))
        joined = join_videos([self.cache[clip] for clip in clips])
        self.cache.evict()
        return joined


def _alone(encoded: VideoTokens, row: int) -> VideoTokens:
    """Return one video without its padding, in memory of its own."""
    length = int(encoded.mask_BM[row].sum())
    values = present(encoded[row : row + 1])
    is_whole = {name: name == "whole_BD" or name.startswith(EXTRA) for name in values}
    return tokens_of(VideoTokens, {n: (v if is_whole[n] else v[:, :length]).clone() for n, v in values.items()})


def _num_bytes(video: VideoTokens) -> int:
    return sum(value.nbytes for value in present(video).values())
