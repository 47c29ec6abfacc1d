"""Features from other programs into stores."""

import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import UserError
from ..common.problems import Problems
from ..common.progress import progress
from ..common.terminal import one_line
from ..feature_store import FeatureStore
from ..files import file_identity
from ..records import Profile, VideoFeatures, Weights
from ..remote.store import refuse_remote
from ..shards.format import describe_key
from ..shards.write import check_storable, write_shard
from .foreign import ForeignFeatures, ForeignVideo, foreign_videos

IMPORTED = "imported; its profile is as stated by the user"
"""``origin`` of features that this package did not make."""
BATCH_VIDEOS = 64
BATCH_BYTES = 256 << 20


class OtherFeatures(UserError):
    """An export of ours that says it has other features than those that are stated: all of the source is then in doubt."""


def import_features(
    source: Path,
    folder: Path,
    profile: Profile,
    weights: Weights,
    *,
    pattern: str | None = None,
    durations: Mapping[str, float] | None = None,
    problems: Problems,
) -> int:
    """Writes the videos of ``source`` (``foreign_videos``) into the store ``folder``; returns how many are new.

    Videos that are there from the same source are passed over, so a stopped import goes on. Rows of float16 stay, others become
    float32. ``durations``: seconds by video id; without them a video ends with its last row. Our own exports say their times and,
    where the stated weights have no SHA-256, their weights. Raises ``UserError`` for a folder or a source that says it has other
    features than those that are stated.
    """
    refuse_remote(folder)
    made_with = {"vlalign": version("vlalign"), "imported_from": one_line(source.name)}
    batches: dict[str, list[VideoFeatures]] = {"float16": [], "float32": []}
    num_new = 0

    def write(dtype: str) -> None:
        write_shard(folder, profile, weights, batches[dtype], made_with=made_with, origin=IMPORTED, dtype=dtype)
        batches[dtype] = []

    with foreign_videos(source, pattern) as videos:
        weights = _weights_of(videos, weights)
        stored = _stored(folder, profile, weights)
        for features in _new_features(videos, stored, profile, weights, durations or {}, problems):
            dtype = features.features.dtype.name
            batch = batches[dtype]
            if batch and (
                len(batch) == BATCH_VIDEOS or sum(v.features.nbytes for v in (*batch, features)) > BATCH_BYTES
            ):
                write(dtype)
            batches[dtype].append(features)
            num_new += 1
    for dtype in (dtype for dtype, batch in batches.items() if batch):
        write(dtype)
    return num_new


def _new_features(
    videos: Sequence[ForeignVideo],
    stored: FeatureStore | None,
    profile: Profile,
    weights: Weights,
    durations: Mapping[str, float],
    problems: Problems,
) -> Iterator[VideoFeatures]:
    """Those that ``stored`` has not got from the same source."""
    identity = cache(file_identity)
    taken: set[str] = set()
    for video in progress(videos, total=len(videos), what="importing", unit="videos"):
        source = identity(video.path) + (f":{video.name}" if video.name else "")
        try:
            _check_id(video, taken)
            if stored is None or video.video_id not in stored or stored.source(video.video_id) != source:
                found = video.read()
                if found.exported is not None:
                    _check_exported(found.exported, profile, weights, video.place)
                yield _timed(video, found, source, profile, durations.get(video.video_id), problems)
            taken.add(video.video_id)
        except OtherFeatures:
            raise
        except UserError as error:
            problems.add(str(error))


def _stored(folder: Path, profile: Profile, weights: Weights) -> FeatureStore | None:
    if not any(folder.glob("*.h5")):
        return None
    store = FeatureStore(folder)
    there, stated = (store.profile.hash, store.weights, store.origin), (profile.hash, weights, IMPORTED)
    if there != stated:
        raise UserError(
            f"{folder}: a store with {describe_key(there)}; the import states {describe_key(stated)}; pass another folder or state the same"
        )
    return store


def _check_id(video: ForeignVideo, taken: set[str]) -> None:
    if not video.video_id or any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in video.video_id):
        raise UserError(f"{video.place}: its id {video.video_id!r} is empty, no text or more than a line; rename it")
    if video.video_id in taken:
        raise UserError(f"{video.place}: a second video {video.video_id!r}; the first one was taken")


def _weights_of(videos: Sequence[ForeignVideo], stated: Weights) -> Weights:
    """Those that an export of ours says, where nobody knows the checksum of the stated ones."""
    for video in videos:
        try:
            exported = video.read().exported
            return stated if stated.sha256 or exported is None else _said(exported, video.place)[1]
        except UserError:  # said when its turn comes
            continue
    return stated


def _said(exported: Mapping[str, Any], place: str) -> tuple[Profile, Weights]:
    try:
        weights = json.loads(str(exported["weights"]))
        return Profile.from_json(str(exported["profile"])), Weights(
            name=str(weights["name"]), sha256=str(weights["sha256"])
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{place}: an export whose profile or weights cannot be read ({error}); export it again"
        ) from None


def _check_exported(exported: Mapping[str, Any], profile: Profile, weights: Weights, place: str) -> None:
    said, said_weights = _said(exported, place)
    if said.hash != profile.hash:
        stated = asdict(profile)
        differences = ", ".join(
            f"{name} {value} against {stated[name]}" for name, value in asdict(said).items() if value != stated[name]
        )
        raise OtherFeatures(
            f"{place}: says it has profile {said.hash}, not {profile.hash}: {differences}; state the one that it has"
        )
    if said_weights != weights:
        raise OtherFeatures(
            f"{place}: says it has {said_weights}, not {weights}; import what has the same weights, or state those"
        )


def _timed(
    video: ForeignVideo,
    found: ForeignFeatures,
    source: str,
    profile: Profile,
    duration: float | None,
    problems: Problems,
) -> VideoFeatures:
    """Raises ``UserError`` for rows that do not fit the profile, or that have no times."""
    num_rows = len(found.rows)
    try:
        times = _row_times(profile, num_rows, duration) if found.exported is None else _exported_times(found.exported)
        features = VideoFeatures(video_id=video.video_id, features=found.rows, source=source, **times)
        check_storable(features, profile, found.rows.dtype)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{video.place}: {one_line(str(error))}") from None
    if found.exported is None and profile.fps is not None and duration is not None:
        late = int((np.arange(num_rows) * profile.stride / profile.fps > duration).sum())
        if late:
            problems.add(
                f"{video.place}: {late} of {num_rows} rows would start after the video's {duration:g} seconds; they lie at its end"
            )
    return features


def _row_times(profile: Profile, num_rows: int, duration: float | None) -> dict[str, Any]:
    """Row i is [i * stride / fps, (i * stride + window) / fps) seconds, cut at the duration; without fps, a part of it like all others.

    10 seconds, 3 rows at 0.25 fps  ->  [0, 4), [4, 8), [8, 10);  5 rows  ->  also [10, 10), [10, 10)
    """
    rows = np.arange(num_rows)
    if profile.fps is not None:
        starts, ends = rows * profile.stride / profile.fps, (rows * profile.stride + profile.window) / profile.fps
    elif duration is not None:
        starts, ends = duration * rows / num_rows, duration * (rows + 1) / num_rows
    else:
        raise ValueError("how long the video is must be known, as the profile has no fps; list it in the durations")
    duration = float(ends[-1]) if duration is None else duration
    return {
        "start_seconds": np.minimum(starts, duration),
        "end_seconds": np.minimum(ends, duration),
        "valid_frames": np.full(num_rows, profile.window),
        "duration_seconds": duration,
    }


def _exported_times(exported: Mapping[str, Any]) -> dict[str, Any]:
    starts, ends = (np.asarray(exported[name], "f8") for name in ("start_seconds", "end_seconds"))
    duration = float(exported["duration_seconds"])
    if not (
        np.isfinite(starts).all() and np.isfinite(ends).all() and (starts <= ends).all() and math.isfinite(duration)
    ):
        raise ValueError("times that are no times; export it again")
    return {
        "start_seconds": starts,
        "end_seconds": ends,
        "valid_frames": np.asarray(exported["valid_frames"]).astype("i4"),
        "duration_seconds": duration,
        "partial": str(exported["partial"]),
    }
