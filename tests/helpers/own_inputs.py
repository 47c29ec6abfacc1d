"""A small data set with inputs of one's own: a column of the captions, and a second store."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from vlalign.storage import VideoFeatures, Weights, read_captions, write_shard
from vlalign.storage.captions.files import EXTRA_COLUMNS, write_captions_about, write_part
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

from helpers.toy import make_toy

SOUND = replace(PROFILES["s3d"], name="sound", dimension=5)


def make_rated(root: Path, *, silent: tuple[str, ...] = (), unrated: tuple[int, ...] = ()) -> DatasetFolder:
    """Return the data set of ``toy`` with a rating of each caption, and a second store ``sound``.

    Args:
        root: Folder for it.
        silent: Videos that the second store lacks.
        unrated: Numbers of captions without a rating.
    """
    dataset, rng = make_toy(root), np.random.default_rng(7)
    captions = [
        replace(caption, extra={} if number in unrated else {"rating": float(rng.integers(1, 9)) / 2})
        for number, caption in enumerate(read_captions(dataset.captions))
    ]
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": "toy", EXTRA_COLUMNS: ["rating"]})
    videos = []
    for caption in captions:
        if caption.video_id not in silent:
            count = int(rng.integers(1, 6))
            videos.append(
                VideoFeatures(
                    video_id=caption.video_id,
                    features=rng.normal(size=(count, 5)),
                    start_seconds=np.arange(count),
                    end_seconds=np.arange(count) + 1,
                    duration_seconds=float(count),
                    valid_frames=np.ones(count, int),
                )
            )
    write_shard(dataset.features("sound"), SOUND, Weights(name="toy", sha256="1" * 64), videos, made_with={})
    return dataset
