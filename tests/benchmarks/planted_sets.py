"""Small data sets of real captions and made features, for comparing models:
``python tests/benchmarks/planted_sets.py FOLDER --annotations DIR``, where DIR has a folder for each data set's files.

- ``planted-youcook2``: clips of cooking videos, one short caption each; features as in ``planted.py``. The official
  files have no validation split.
- ``planted-msrvtt``: videos of 10 to 30 seconds with five captions each. Each word that can be seen is shown at seconds
  of its own, and rows pass through two random layers with ReLU, so that no row is a sum of its words.
- ``planted-activitynet``: videos of two minutes on average, a row each two seconds, and a paragraph each, whose words
  are shown in their order. The official files have no validation split.

Each set has 1,300 to 2,000 training clips and 500 test clips, and is made once.
"""

import argparse
import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
from planted import (
    DATA_SEED,
    NAME,
    NOISE,
    NUISANCE_STRENGTH,
    NUISANCES,
    PROFILE,
    SHARD_VIDEOS,
    WEIGHTS,
    WORD_STRENGTH,
    at,
    call,
    direction,
    make_video,
    unit,
    visible_words,
)
from vlalign.storage import Caption, VideoFeatures, read_captions, write_shard
from vlalign.storage.dataset.folder import DatasetFolder

Row = tuple[str, str, str, float | str, float | str]
"""Video, split, caption, start and end."""
COLUMNS = ("video_id", "split", "caption", "start_seconds", "end_seconds")
NUM_TEST = 500
CAPTIONS_OF_VIDEO = 5
HIDDEN = 256
"""Width of the first random layer."""
WORD_SECONDS = 3
"""A word of an MSR-VTT caption is shown so long, twice."""
ROW_SECONDS = 2
"""Of ActivityNet's long videos."""


@dataclass(frozen=True)
class PlantedSet:
    """Where captions come from, and how the features of a video are made of them."""

    rows: Callable[[Path], list[Row]]
    make: Callable[[str, Sequence[Caption], dict[str, np.ndarray]], VideoFeatures]


def chosen(ids: Sequence[str], count: int) -> list[str]:
    order = np.random.default_rng(DATA_SEED).permutation(len(ids))[:count]
    return [sorted(ids)[index] for index in order]


def youcook2_rows(folder: Path) -> list[Row]:
    path = folder / "youcook2" / "youcookii_annotations_trainval.json"
    videos = json.loads(path.read_text(encoding="utf-8"))["database"]
    rows: list[Row] = []
    for subset, split, count in (("training", "train", 230), ("validation", "test", 65)):
        for video_id in chosen([v for v, about in videos.items() if about["subset"] == subset], count):
            rows += [(video_id, split, a["sentence"], *a["segment"]) for a in videos[video_id]["annotations"]]
    return [row for row in rows if row[1] == "train"] + [row for row in rows if row[1] == "test"][:NUM_TEST]


def msrvtt_rows(folder: Path) -> list[Row]:
    videos = json.loads((folder / "msrvtt" / "sgn_test.json").read_text(encoding="utf-8"))
    rows: list[Row] = []
    for index, video_id in enumerate(chosen(list(videos), 1500 + 200 + NUM_TEST)):
        split = "train" if index < 1500 else "validation" if index < 1700 else "test"
        sentences = list(videos[video_id].values())[: CAPTIONS_OF_VIDEO if split == "train" else 1]
        rows += [(video_id, split, sentence, "", "") for sentence in sentences]
    return rows


def activitynet_rows(folder: Path) -> list[Row]:
    rows: list[Row] = []
    for name, split, count in (("train", "train", 1500), ("val_1", "test", NUM_TEST)):
        videos = json.loads((folder / "activitynet" / f"{name}.json").read_text(encoding="utf-8"))
        for video_id in chosen(list(videos), count):
            paragraph = " ".join(sentence.strip() for sentence in videos[video_id]["sentences"])
            rows.append((video_id, split, paragraph, "", ""))
    return rows


def overlay(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    """A few directions of the video, and white noise."""
    features = NOISE * rng.standard_normal((num_rows, PROFILE.dimension))
    strengths = NUISANCE_STRENGTH * rng.standard_normal(NUISANCES)
    return features + strengths @ unit(rng.standard_normal((NUISANCES, PROFILE.dimension)))


def finished(video_id: str, features: np.ndarray, row_seconds: float) -> VideoFeatures:
    starts = row_seconds * np.arange(len(features), dtype=np.float64)
    return VideoFeatures(
        video_id=video_id,
        features=features.astype(np.float16),
        start_seconds=starts,
        end_seconds=starts + row_seconds,
        valid_frames=np.ones(len(features), np.int32),
        duration_seconds=row_seconds * len(features),
        source=NAME,
        decoder=NAME,
    )


def random_layers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([DATA_SEED, 1])
    return (
        rng.standard_normal((PROFILE.dimension, HIDDEN)) / PROFILE.dimension**0.5,
        rng.standard_normal((HIDDEN, PROFILE.dimension)) / HIDDEN**0.5,
    )


def make_msrvtt(video_id: str, captions: Sequence[Caption], directions: dict[str, np.ndarray]) -> VideoFeatures:
    """Words at seconds of their own, then two layers with ReLU."""
    rng = np.random.default_rng([DATA_SEED, crc32(video_id.encode())])
    num_rows = int(rng.integers(10, 31))
    features = overlay(rng, num_rows)
    for word in sorted({word for caption in captions for word in visible_words(caption)}):
        for start in rng.integers(0, num_rows - WORD_SECONDS + 1, 2):
            features[start : start + WORD_SECONDS] += rng.gamma(2, WORD_STRENGTH / 2) * directions[word]
    for layer in random_layers():
        features = np.maximum(features @ layer, 0)
    return finished(video_id, features, 1)


def make_activitynet(video_id: str, captions: Sequence[Caption], directions: dict[str, np.ndarray]) -> VideoFeatures:
    """A row each two seconds; words in the order of the text."""
    rng = np.random.default_rng([DATA_SEED, crc32(video_id.encode())])
    num_rows = int(rng.integers(20, 100))
    features = overlay(rng, num_rows)
    for caption in captions:
        words = visible_words(caption)
        for index, word in enumerate(words):
            start = int(np.clip(rng.normal(index / len(words), 0.05), 0, 0.95) * num_rows)
            features[start : start + 2] += rng.gamma(2, WORD_STRENGTH / 2) * directions[word]
    return finished(video_id, features, ROW_SECONDS)


SETS = {
    "planted-youcook2": PlantedSet(youcook2_rows, make_video),
    "planted-msrvtt": PlantedSet(msrvtt_rows, make_msrvtt),
    "planted-activitynet": PlantedSet(activitynet_rows, make_activitynet),
}


def make_set(root: Path, name: str, annotations: Path) -> None:
    """Make a data set with captions and features; do nothing if it is there."""
    dataset, planted = DatasetFolder(root, name), SETS[name]
    if not dataset.captions.exists():
        path = root / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *planted.rows(annotations)])
        call("preprocess.cli", [*at(dataset), "--annotations", str(path)], root / f"{name}.log")
    if dataset.features(NAME).exists():
        return
    of_video: dict[str, list[Caption]] = {}
    for caption in read_captions(dataset.captions):
        of_video.setdefault(caption.video_id, []).append(caption)
    words = {word for captions in of_video.values() for caption in captions for word in visible_words(caption)}
    directions = {word: direction(word) for word in words}
    videos = list(of_video.items())
    profile = replace(PROFILE, fps=1 / ROW_SECONDS) if name == "planted-activitynet" else PROFILE
    partial = dataset.features(NAME).with_name(f"{NAME}.partial")
    for first in range(0, len(videos), SHARD_VIDEOS):
        made = [planted.make(v, captions, directions) for v, captions in videos[first : first + SHARD_VIDEOS]]
        write_shard(partial, profile, WEIGHTS, made, made_with={"seed": str(DATA_SEED)})
    partial.rename(dataset.features(NAME))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--annotations", type=Path, required=True)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        make_set(args.folder, name, args.annotations)


if __name__ == "__main__":
    main()
