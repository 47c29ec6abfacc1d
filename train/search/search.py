"""Search: find the clips of a data set that fit a text best. ``vlalign-search`` wraps ``search_clips``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...storage.captions import read_captions, read_captions_about
from ...storage.common.errors import SettingError, UserError
from ...storage.common.progress import Listener, report_progress_to
from ...storage.layout import DatasetFolder
from ..run_files import read_config
from ..runs import asked_dataset, dataset_of, find_run, read_run

if TYPE_CHECKING:
    from ..checkpoint import Run
    from ..data.clips import Clip


@dataclass(frozen=True)
class Hit:
    """A clip that was found."""

    video_id: str
    start_seconds: float
    end_seconds: float
    score: float
    """Higher is better."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    hits: list[Hit]
    """The best clip first."""
    num_clips: int
    """Number of clips that were searched."""
    run_folder: Path
    dataset: DatasetFolder
    """The data set that was searched."""
    trained_on: DatasetFolder
    """The run's own data set."""
    has_captions: bool
    """Whether captions say where clips begin and end. Without captions, whole videos were searched."""
    note: str | None
    """Notes to show with the result, such as that features come from random weights."""


def search_clips(
    run: Path | str,
    query: str,
    *,
    root: Path | str = "vlalign_data",
    dataset: str | None = None,
    num_results: int = 5,
    rerank: int = 50,
    device: str = "cpu",
    on_progress: Listener | None = None,
) -> SearchResult:
    """Find the clips of a data set that fit a text best.

    Args:
        run: Folder of a run, or its name.
        query: What to look for.
        root: Folder of all data sets, where names are looked up.
        dataset: The data set to search; it needs the run's features, made in the same way. None: the run's own.
        num_results: Number of clips to return.
        rerank: Number of candidates that the fusion layers score.
        device: "cpu", "cuda" or "cuda:N".
        on_progress: Called with the progress of long work.

    Raises:
        UserError: The query is empty, the run or the data set cannot be found or read, or the run finds no videos by
            text.
    """
    if not query.strip():
        raise UserError("the query is empty; expected some words, such as 'a red circle falls'")
    for name, value in (("num_results", num_results), ("rerank", rerank)):
        if value < 1:
            raise SettingError(name, value, "expected 1 or more")
    folder = find_run(Path(root), dataset, str(run))
    config = read_config(read_run(folder))
    trained_on = dataset_of(folder, config)
    asked = asked_dataset(Path(root), dataset, trained_on, having="features")
    if config.objective.task is not None:
        problem = f"was trained with the objective {config.objective.name}, and finds no videos by text"
        raise UserError(f"run {folder.name}: {problem}")
    if not config.encoders.reads_words:
        raise UserError(f"run {folder.name}: was trained on spoken captions, and finds no videos by text")

    from ..checkpoint import load_run  # torch takes seconds to import

    with report_progress_to(on_progress):
        loaded = load_run(folder, asked, device)
        clips = searchable_clips(loaded)
        hits = best_clips(loaded, query, clips, num_results, rerank)
    return SearchResult(
        hits=hits,
        num_clips=len(clips),
        run_folder=folder,
        dataset=asked,
        trained_on=trained_on,
        has_captions=read_captions_about(asked.captions) is not None,
        note=loaded.note,
    )


def searchable_clips(run: "Run") -> list["Clip"]:
    """Return every captioned clip whose video has features, and then every other video with features, as a whole.

    Videos come in order of their ids. Of clips with equal scores, the first one in this list ranks first.
    """
    from ..data.clips import Clip
    from ..data.pairs import make_pairs

    has_captions = read_captions_about(run.dataset.captions) is not None
    clips = make_pairs(read_captions(run.dataset.captions)).clips if has_captions else ()

    def has_rows(clip: Clip) -> bool:
        if clip.video_id not in run.features:
            return False
        return clip.start_seconds is None or clip.start_seconds < run.features.duration_seconds(clip.video_id)

    captioned = [clip for clip in clips if has_rows(clip)]
    known = {clip.video_id for clip in captioned}
    return captioned + [
        Clip(video_id, None, None) for video_id in sorted(run.features.video_ids()) if video_id not in known
    ]


def best_clips(run: "Run", query: str, clips: Sequence["Clip"], num_results: int, rerank: int) -> list[Hit]:
    """Return the clips that score highest for a text, the best first.

    The scores are those of evaluation. The early stages find the candidates, and the fusion layers order them.

    Args:
        run: The run to ask.
        query: What to look for.
        clips: Where to look.
        num_results: Number of clips to return.
        rerank: Number of candidates that the fusion layers score.
    """
    from ..scoring import stage_scores

    caption = run.scorer.weights.tag_query(query)
    shortlist = max(rerank, num_results) if run.scorer.has_early else None
    scores = stage_scores(run.scorer, [caption], clips, rerank=shortlist)
    scores_N = scores.fused(run.config.score_weights).by_caption[0]
    hits = []
    for index in np.argsort(-scores_N, kind="stable")[:num_results].tolist():
        clip, duration = clips[index], run.features.duration_seconds(clips[index].video_id)
        end = duration if clip.end_seconds is None else min(clip.end_seconds, duration)
        hits.append(Hit(clip.video_id, clip.start_seconds or 0.0, end, float(scores_N[index])))
    return hits
