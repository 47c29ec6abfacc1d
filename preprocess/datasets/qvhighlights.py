"""QVHighlights (Lei et al. 2021): queries about parts of YouTube videos of up to 150 s, with all moments that fit.

A query has one or more moments: each is a caption with the query's id and text. Three annotators rated how well each
2 s of a moment fit the query, from 0 (very bad) to 4 (very good): ``Caption.saliency``. There are 7,218 training,
1,550 validation and 1,542 test queries. The moments of the test queries were published later; without their file,
the data set has no test split. ``highlight_test_release.jsonl``, which has no moments, is not read.

A video is named after its YouTube id and its start and end there in seconds, such as ``bP5KfdFJzC4_660.0_810.0``, like
the authors' files and features; times of moments are relative to this start.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.files import numbered_jsonl
from ...storage.records import Caption
from .sources import EXPECTED, Annotations, Dataset, Record, as_published, seconds, text

FILES = {"train": "highlight_train_release.jsonl", "validation": "highlight_val_release.jsonl"}
TEST = "highlight_test_with_gt.jsonl"
SOURCE = "https://github.com/jayleicn/moment_detr/tree/main/data"
CLIP_SECONDS = 2
"""Length of the clips with annotated saliency."""
NUM_ANNOTATORS = 3
MAX_SALIENCY = 4


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the moments of all splits, grouped by video. A query with an invalid moment is reported."""
    del protocol  # there is only one
    paths = dict(zip(FILES, annotations.find(*FILES.values()), strict=True))
    if test := annotations.find_optional(TEST):
        paths["test"] = test
    for split, path in paths.items():
        of_video: dict[str, list[Caption]] = {}
        for number, row in _rows(path):
            with as_published(path, f"line {number}"):
                try:
                    moments = _moments(row, split)
                except ValueError as error:
                    annotations.drop(path, f"line {number}", str(error))
                    continue
            for moment in moments:
                of_video.setdefault(moment.video_id, []).append(moment)
        yield from chain.from_iterable(of_video.values())


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object)."""
    try:
        yield from numbered_jsonl(path)
    except UserError as error:
        raise UserError(f"{error}; {EXPECTED}") from None


def _moments(row: Mapping[str, Any], split: str) -> list[Caption]:
    """Return the moments of a query.

    Raises:
        ValueError: A moment is not a whole number of 2 s clips, or one of its clips has no valid saliency.
    """
    saliency = dict(zip(row["relevant_clip_ids"], row["saliency_scores"], strict=True))
    moments = []
    for window in row["relevant_windows"]:
        start, end = map(seconds, window)
        clips = range(int(start) // CLIP_SECONDS, int(end) // CLIP_SECONDS)
        scores = [score for clip in clips for score in saliency.get(clip, ())]
        if start % CLIP_SECONDS or end % CLIP_SECONDS or len(scores) != NUM_ANNOTATORS * len(clips):
            expected = f"expected clips of {CLIP_SECONDS} s with {NUM_ANNOTATORS} saliency_scores each"
            raise ValueError(f"query {row['qid']}, from {start:g} to {end:g} s: {expected}")
        if any(score not in range(MAX_SALIENCY + 1) for score in scores):
            raise ValueError(f"query {row['qid']}: saliency_scores {scores}, expected numbers from 0 to {MAX_SALIENCY}")
        moments.append(
            Caption(
                video_id=row["vid"],
                caption=text(row["query"]),
                split=split,
                start_seconds=start,
                end_seconds=end,
                query=str(row["qid"]),
                saliency=scores,
            )
        )
    return moments


DATASET = Dataset(read, dict.fromkeys((*FILES.values(), TEST), SOURCE))
