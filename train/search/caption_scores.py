"""The best scores of captions of the searched videos, used to decide whether a moment fits a query.

Scores of two models cannot be compared, and no fixed threshold fits all models. Therefore held-out captions of indexed
videos, which were not used for training, are used as queries. If the best moment of a text scores lower than the best
moments of nearly all these captions, the text is probably about something that no video shows.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...storage.captions.files import read_captions, read_captions_about
from ...storage.captions.table import CaptionTable
from ...storage.common.errors import refuse_unreadable
from ...storage.common.files import read_object, write_json
from ...storage.common.progress import progress
from ...storage.common.writing import check_folders
from ..data.clips import evenly
from .encoder import SearchEncoder
from .index import IndexFolder, WindowIndex

MIN_CAPTIONS, MAX_CAPTIONS = 20, 100
"""With fewer captions, nothing can be decided; with more, decisions stay the same."""
MAX_SAMPLED = 20_000
"""Maximum number of captions of a data set from which held-out captions are chosen."""
MAX_WINDOWS_BY_SEARCH = 20_000
"""Maximum number of windows for which opening a search also searches for held-out captions."""
LOST_PERCENT = 5.0
"""Percent of held-out captions that would get "nothing fits", though their video is indexed."""
FORMAT = 1
FILE_NAME = "caption_scores.json"
MAX_BYTES = 1 << 20
TOO_FEW_CAPTIONS = (
    "whether anything fits the text is unknown: these videos have fewer than "
    f"{MIN_CAPTIONS} captions of visible things that the model was not trained with"
)
DAMAGE, REMEDY = "not the scores of captions", "remove it; the next search rebuilds it"

BestScore = Callable[[str], float | None]
"""Returns the score of the best moment for a text; None if there is none."""


@dataclass(frozen=True)
class CaptionScores:
    """The scores of the best moments for held-out captions."""

    scores: np.ndarray
    """float64 [N], ascending."""

    def percent_below(self, score: float) -> float:
        """Return the percent of captions whose best moment scores lower.

        >>> CaptionScores(np.array([1.0, 2.0, 3.0, 4.0])).percent_below(3.0)
        50.0
        """
        return 100 * float(np.searchsorted(self.scores, score, side="left")) / len(self.scores)

    def fits(self, score: float) -> bool:
        """Return whether a score is higher than the best scores of at least ``LOST_PERCENT`` % of captions."""
        return self.percent_below(score) >= LOST_PERCENT


def open_caption_scores(
    folder: IndexFolder, index: WindowIndex, best_score: BestScore, *, is_normalised: bool, max_windows: int | None
) -> CaptionScores | str:
    """Open the best scores of held-out captions, after searching for them if anything changed.

    Args:
        folder: The index.
        index: Its windows.
        best_score: Searches for a caption, and returns its best score.
        is_normalised: True if the windows' biases are added to scores.
        max_windows: Maximum number of windows for which held-out captions are searched for; None: no limit.

    Returns:
        The scores; or a sentence that says why they are not known, if there are too few captions or too many windows;
        or "" for a model that reads no texts.

    Raises:
        UserError: The file is damaged, or the captions are.
    """
    if not folder.encoder.reads_texts:
        return ""
    about_captions = read_captions_about(folder.encoder.dataset.captions)
    if about_captions is None or about_captions.get("speech") or about_captions.get("text_in_frames"):
        # the texts of transcripts do not describe the video
        return TOO_FEW_CAPTIONS
    captions = read_captions(folder.encoder.dataset.captions)
    about = [folder.key, is_normalised, captions.key, [shard.path.name for shard in index.shards]]
    digest = hashlib.sha256(json.dumps(about).encode() + index.is_live.tobytes()).hexdigest()
    path = folder.path / FILE_NAME
    if path.exists():
        with refuse_unreadable(path, DAMAGE, REMEDY):
            found = read_object(path, MAX_BYTES)
            if (found.get("format"), found.get("of")) == (FORMAT, digest):
                scores = np.array(found["scores"], dtype=np.float64)
                if scores.ndim != 1 or len(scores) < MIN_CAPTIONS or not np.isfinite(scores).all():
                    raise ValueError("expected numbers")
                return CaptionScores(np.sort(scores))
    held_out = _held_out(captions, folder.encoder, index)
    if held_out is None:
        return TOO_FEW_CAPTIONS
    if max_windows is not None and index.num_windows > max_windows:
        todo = f"run vlalign-index --dataset {folder.encoder.dataset.name}"
        return f"whether anything fits the text is unknown among {index.num_windows:,} windows; {todo}"
    scores_of = search_for_captions(best_score, list(held_out.texts()))
    if scores_of is None:
        return TOO_FEW_CAPTIONS
    check_folders(path.parent)
    write_json(path, {"format": FORMAT, "of": digest, "scores": scores_of.scores.tolist()})
    return scores_of


def search_for_captions(best_score: BestScore, texts: Sequence[str]) -> CaptionScores | None:
    """Search for captions, and return the scores of their best moments; None if too few have a best moment.

    Args:
        best_score: Searches for a caption, and returns its best score.
        texts: The captions.
    """
    asked = progress(texts, total=len(texts), what="searching for held-out captions", unit="captions")
    found = [score for text in asked if (score := best_score(text)) is not None]
    return CaptionScores(np.sort(np.array(found))) if len(found) >= MIN_CAPTIONS else None


def _held_out(captions: CaptionTable, encoder: SearchEncoder, index: WindowIndex) -> CaptionTable | None:
    """Return captions of indexed videos that were not used for training; None if they are too few.

    Questions do not describe the video and are excluded.
    """
    sample, videos = captions.take(evenly(len(captions), MAX_SAMPLED)), set(index.video_ids)
    chosen = [
        number
        for number, caption in enumerate(sample)
        if caption.video_id in videos and caption.answer is None and caption.split not in encoder.trained_splits
    ]
    if len(chosen) < MIN_CAPTIONS:
        return None
    return sample.take([chosen[number] for number in evenly(len(chosen), MAX_CAPTIONS)])
