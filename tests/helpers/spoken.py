"""A data set of clips with spoken captions."""

from pathlib import Path

import numpy as np
from vlalign.storage import Caption, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.captions.idf import write_idf
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

CONCEPTS = 6


def rows_of(video_id: str, rows: np.ndarray, each: float) -> VideoFeatures:
    starts = each * np.arange(len(rows))
    times = {"start_seconds": starts, "end_seconds": starts + each, "duration_seconds": each * len(rows)}
    return VideoFeatures(video_id=video_id, features=rows, valid_frames=np.ones(len(rows), int), **times)


def make_spoken(root: Path, *, num_clips: int = 36, features: str = "resnet152") -> DatasetFolder:
    """A clip shows two concepts, one after the other, and its caption names both: each is a sound of 0.48 s."""
    rng, dataset = np.random.default_rng(0), DatasetFolder(root, "spoken")
    profile = PROFILES[features]
    channels = 512 if features.endswith("map") else profile.dimension
    seen, heard = rng.normal(size=(CONCEPTS, channels)), 12 * rng.normal(size=(CONCEPTS, 48, 40))
    captions, clips, recordings = [], [], []
    for number in range(num_clips):
        both = rng.choice(CONCEPTS, 2, replace=False)
        if features.endswith("map"):
            places = (
                rng.choice(2, (49, 1)) * seen[both[0]]
                + rng.choice(2, (49, 1)) * seen[both[1]]
                + 0.3 * rng.normal(size=(49, 512))
            )
            rows = places.reshape(1, -1)
        else:
            rows = np.repeat(seen[both], 3, axis=0) + 0.5 * rng.normal(size=(6, channels))
        clips.append(rows_of(f"v{number:02d}", rows, 1.0))
        sound = np.concatenate([rng.normal(size=(rng.integers(5, 40), 40)), heard[both[0]], heard[both[1]]]) - 40
        recordings.append(rows_of(f"r{number:02d}", sound, 0.01))
        split = ("train", "train", "validation", "test")[number % 4]
        words = [f"thing{concept}" for concept in both]
        texts = {"words": words, "word_starts": [0, 7], "pos_tags": ["VERB", "VERB"]}
        captions.append(
            Caption(
                video_id=f"v{number:02d}", caption=" ".join(words), split=split, recording=f"r{number:02d}", **texts
            )
        )
    made = Weights(name="made", sha256="0" * 64)
    write_shard(dataset.features(features), profile, made, clips, made_with={})
    write_shard(dataset.features("logmel"), PROFILES["logmel"], made, recordings, made_with={})
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": ""})
    write_idf(dataset.idf, [])
    return dataset
