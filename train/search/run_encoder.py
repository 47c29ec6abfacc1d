"""Search with a trained run: its text and video sides find candidates, and its further stages order them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...storage.common.files import sha256_of
from ...storage.dataset.folder import DatasetFolder
from ...storage.stores.feature_store import FeatureStore
from ...storage.stores.memory_store import MemoryStore
from ..data.clip_features import ClipFeatures
from ..data.clips import Clip
from ..run_file_names import MODEL_FILE
from ..runs.checkpoint import Run
from ..runs.folder import dataset_of
from ..scoring.scorer import CLIP_CHUNK, stage_scores
from ..scoring.word_fits import word_fits
from .encoder import ClipScores, picture_features, stores_checksum
from .moments import ScoreCurve
from .token_cache import KeepingScorer


class RunEncoder:
    """A run. Its early stage that is a dot product finds candidates."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._keeping = KeepingScorer.of(run.scorer)
        self._stores = [store for store in run.features.stores if isinstance(store, FeatureStore)]

    @property
    def dataset(self) -> DatasetFolder:
        """The data set that is searched."""
        return self.run.dataset

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.run.folder.absolute().name

    @property
    def described(self) -> str:
        """The data set's name, and that of the run if it was trained on another one."""
        own = dataset_of(self.run.folder, self.run.config)
        if own.path.resolve() == self.dataset.path.resolve():
            return own.name
        return f"{self.dataset.name} ({self.dataset.path}), with the run {self.name} of {own.name}"

    @property
    def note(self) -> str | None:
        """The note to show with every number of the run."""
        return self.run.note

    @property
    def reads_texts(self) -> bool:
        """True: a run that reads none is refused before."""
        return True

    @property
    def made_from(self) -> dict[str, Any]:
        """The model, and the profiles and weights of its features."""
        features = [{"profile_hash": s.profile.hash, "weights_sha256": s.weights.sha256} for s in self._stores]
        return {"run": self.name, "model_sha256": sha256_of(self.run.folder / MODEL_FILE), "features": features}

    def video_ids(self) -> list[str]:
        """Return the videos that all stores of the run have."""
        return sorted(self.run.features.video_ids())

    def duration_seconds(self, video_id: str) -> float:
        """Return the duration of a video."""
        return self.run.features.duration_seconds(video_id)

    def checksum(self, video_id: str) -> int:
        """Return a checksum of a video's rows in all stores."""
        return stores_checksum(self._stores, video_id)

    @torch.inference_mode()
    def clip_vectors(self, clips: Sequence[Clip]) -> np.ndarray:
        """Return the vector of each clip in the stage that is a dot product; NaN for a clip without rows."""
        scorer, chunks = self.run.scorer, []
        scorer.model.eval()
        for first in range(0, len(clips), CLIP_CHUNK):
            encoded = scorer.encode_videos(clips[first : first + CLIP_CHUNK])
            chunks.append(scorer.config.objective.video_vectors(scorer.model, encoded).float().cpu().numpy())
        if not chunks:
            return np.zeros((0, scorer.model.width), dtype=np.float32)
        vectors = np.concatenate(chunks)
        vectors[~scorer.features.has_rows(clips)] = np.nan
        return vectors

    @torch.inference_mode()
    def text_vector(self, text: str) -> np.ndarray:
        """Return the vector of a text in the stage that is a dot product."""
        scorer = self.run.scorer
        scorer.model.eval()
        encoded = scorer.encode_texts([scorer.weights.tag_query(text)])
        return scorer.config.objective.text_vectors(scorer.model, encoded)[0].float().cpu().numpy()

    def picture_vector(self, path: Path) -> np.ndarray:
        """Return the vector of a picture, as of a video that shows it."""
        stores = [MemoryStore(s.profile, s.weights, [picture_features(s, path)]) for s in self._stores]
        [video_id] = stores[0].video_ids()
        shown = ClipFeatures(stores, self.run.config.grid)
        scorer = replace(self.run.scorer, features=shown)
        return RunEncoder(replace(self.run, scorer=scorer)).clip_vectors([Clip(video_id, None, None)])[0]

    def score(self, text: str, clips: Sequence[Clip], rerank: int) -> ClipScores | None:
        """Return the scores of evaluation. Pairs that the late stages did not see come behind the others."""
        scorer = self._keeping
        shortlist = rerank if scorer.has_early else None
        scores = stage_scores(scorer, [scorer.weights.tag_query(text)], clips, rerank=shortlist)
        stages = {stage: values[0] for stage, values in scores.stages.items()}
        return ClipScores(scores.fused(self.run.score_weights).by_caption[0], stages)

    def curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve | None:
        """Return None: nothing is finer than the windows."""
        return None

    def word_curves(self, text: str, video_id: str) -> dict[str, ScoreCurve]:
        """Return how well each word of a text fits the video's rows, those that the model takes of it."""
        caption = self._keeping.weights.tag_query(text)
        fits = next(word_fits(self._keeping, [caption], [Clip(video_id, None, None)]), None)
        if fits is None:
            return {}
        return {word: ScoreCurve(fits.start_seconds, fits.end_seconds, of) for word, of in fits.words.items()}

    def remarks(self, text: str) -> list[str]:
        """Say which words no training caption had."""
        unknown = self.run.scorer.weights.unknown_words(text)
        return [f"not in the training captions: {', '.join(unknown)}"] if unknown else []
