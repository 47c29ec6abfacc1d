"""A data set whose videos show words, and a search whose texts are sums of the same words' vectors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from vlalign.storage import Caption, FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train.search.encoder import StoreEncoder
from vlalign.train.search.search import Search

WIDTH = PROFILES["clip_vit_b32"].dimension
COMMON = 1.0
"""Length of what all vectors share, as those of real encoders do; a word's vector has length 1."""
Scenes = Mapping[str, Sequence[tuple[int, str]]]
"""{video id: (seconds, words that are seen) of each scene}"""


def vector_of(text: str) -> np.ndarray:
    """Return the vector of a text: the sum of its words' and of what all share, of length 1."""
    words = [np.random.default_rng([*word.encode()]).normal(size=WIDTH) for word in text.split()]
    common = np.random.default_rng(0).normal(size=WIDTH)
    total = sum((word / np.linalg.norm(word) for word in words), COMMON * common / np.linalg.norm(common))
    return (total / np.linalg.norm(total)).astype(np.float32)


class Tower:
    """A text tower that needs no weights."""

    weights_path, uses_default_preparation, max_tokens = Path("planted"), True, 77

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts."""
        return np.stack([vector_of(text) for text in texts])

    def is_cut(self, text: str) -> bool:
        """Return False."""
        del text
        return False


def plant(
    root: Path, scenes: Scenes, captions: Mapping[str, Sequence[tuple[float, float, str]]] | None = None
) -> DatasetFolder:
    """Write a data set, with a row for each second.

    Args:
        root: Its root.
        scenes: What the videos show.
        captions: {video id: (start, end, text) of each caption}
    """
    dataset, rng, videos = DatasetFolder(root, "planted"), np.random.default_rng(0), []
    for video_id, parts in scenes.items():
        rows = np.concatenate([np.tile(vector_of(words), (seconds, 1)) for seconds, words in parts])
        rows += rng.normal(size=rows.shape) * 0.2 / np.sqrt(WIDTH)
        starts = np.arange(float(len(rows)))
        times: dict[str, Any] = {"start_seconds": starts, "end_seconds": starts + 1, "valid_frames": starts.astype(int)}
        videos.append(VideoFeatures(video_id=video_id, features=rows, duration_seconds=float(len(rows)), **times))
    weights = Weights(name="planted", sha256="0" * 64)
    write_shard(dataset.features("clip_vit_b32"), PROFILES["clip_vit_b32"], weights, videos, made_with={})
    if captions:
        listed = [
            Caption(video_id=v, caption=text, split="test", start_seconds=start, end_seconds=end)
            for v, of_video in captions.items()
            for start, end, text in of_video
        ]
        write_part(dataset.captions, 0, listed, {})
        write_captions_about(dataset.captions, {"protocol": "planted"})
    return dataset


def open_planted(dataset: DatasetFolder) -> Search:
    """Open such a data set for search."""
    tower: Any = Tower()
    encoder = StoreEncoder(dataset, FeatureStore(dataset.features("clip_vit_b32")), tower)
    source: Any = SimpleNamespace(open_encoder=lambda: encoder)
    return Search.open(source)
