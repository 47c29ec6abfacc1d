"""Somebody else's features against ours, and what may be behind a difference: ``vlalign-extract --verify-against``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..storage.console import EXIT_DONE, EXIT_INCOMPLETE, UserError
from ..storage.feature_store import FeatureStore
from ..storage.foreign import read_features
from ..storage.layout import DatasetFolder
from ..storage.records import VideoFeatures, VideoRecord
from .decode_process import DecodeProcess
from .engine import wanted_of
from .extractor import Extractor
from .probe import VideoError

SAME_COSINE = 0.999
"""float16, another processor and another version of FFmpeg stay above it; any other recipe falls below."""
EXPLAINS = 4
"""What makes the rows this many times as near (in 1 - cosine) is taken for the explanation."""
MOST_SHIFT = 8
TRIED_ROWS = 6
"""Of a video, for which other input normalisations are tried."""

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
KINETICS = ((110.6, 103.2, 96.3), (1.0, 1.0, 1.0))
ACTIVITYNET = ((114.7748, 107.7354, 99.4750), (1.0, 1.0, 1.0))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IG65M = ((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))
HARA_2020 = ((0.4345, 0.4051, 0.3775), (0.2768, 0.2713, 0.2737))
NOTHING = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
NORMALISATIONS = {
    "values 0..1, nothing subtracted": ("0..1", *NOTHING),
    "values 0..255, nothing subtracted": ("0..255", *NOTHING),
    "values -1..1": ("0..1", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "ImageNet's mean and std": ("0..1", *IMAGENET),
    "values 0..255 minus Kinetics' mean": ("0..255", *KINETICS),
    "values 0..255 minus ActivityNet's mean": ("0..255", *ACTIVITYNET),
    "the mean and std of Hara 2020": ("0..1", *HARA_2020),
    "CLIP's mean and std": ("0..1", *CLIP),
    "the mean and std of R(2+1)D on IG-65M": ("0..1", *IG65M),
}


@dataclass(frozen=True)
class Comparison:
    video_id: str
    rows: int
    """Ours."""
    their_rows: int
    mean_cosine: float
    """Row by row, over as many rows as both have."""
    least_cosine: float
    remarks: list[str]
    explained: bool
    """Whether the remarks say why they differ."""
    same_level: bool = True

    @property
    def same(self) -> bool:
        return self.least_cosine >= SAME_COSINE and self.same_level


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of the rows that both have, one by one; 0 where a row is all zeros."""
    n = min(len(a), len(b))
    a, b = a[:n].astype(np.float64), b[:n].astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.divide((a * b).sum(axis=1), lengths, out=np.zeros(n), where=lengths > 0)


def compare(ours: VideoFeatures, theirs: np.ndarray) -> Comparison:
    """Row by row, with what can be told from the numbers alone: shifted rows, another rate, normalised or scaled rows."""
    mine, remarks = ours.features.astype(np.float32), []
    if theirs.ndim == 1:
        pooled = {"mean": mine.mean(axis=0), "maximum": mine.max(axis=0)}
        name, row = max(pooled.items(), key=lambda item: cosines(item[1][None], theirs[None])[0])
        mine, theirs = row[None], theirs[None]
        remarks.append(f"theirs is one row a video; compared with the {name} of ours")
    if theirs.shape[1] != mine.shape[1]:
        raise UserError(f"their rows have {theirs.shape[1]:,} values, ours {mine.shape[1]:,}: another layer or another model")
    if not np.isfinite(theirs).all():
        raise UserError(f"{(~np.isfinite(theirs)).any(axis=1).sum():,} of their {len(theirs):,} rows are not finite")
    row_cosines = cosines(mine, theirs)
    mean, least = float(row_cosines.mean()), float(row_cosines.min())
    level = _level(mine, theirs)
    why = [*(_other_times(ours, mine, theirs, mean) if least < SAME_COSINE else []), *level]
    remarks += why
    if least >= SAME_COSINE and len(mine) != len(theirs):
        remarks.append(f"theirs has {abs(len(theirs) - len(mine))} rows {'more' if len(theirs) > len(mine) else 'fewer'} at the end")
    remarks += _lengths(mine, theirs)
    return Comparison(ours.video_id, len(mine), len(theirs), mean, least, remarks, explained=bool(why), same_level=not level)


def explains(cosine: float, before: float) -> bool:
    return EXPLAINS * (1 - cosine) <= 1 - before


def _other_times(ours: VideoFeatures, mine: np.ndarray, theirs: np.ndarray, before: float) -> list[str]:
    shifts = [s for s in range(-MOST_SHIFT, MOST_SHIFT + 1) if s and 2 * abs(s) <= min(len(mine), len(theirs))]
    shifted = {s: cosines(mine[max(-s, 0) :], theirs[max(s, 0) :]).mean() for s in shifts}
    found = []
    if shifted and explains(shifted[best := max(shifted, key=shifted.get)], before):
        found.append(f"their rows come {abs(best)} {'later' if best > 0 else 'earlier'} (cosine {shifted[best]:.4f} when moved)")
    if abs(len(theirs) / len(mine) - 1) > 0.1:
        rate, their_rate = len(mine) / ours.duration_seconds, len(theirs) / ours.duration_seconds
        middle = (ours.start_seconds + ours.end_seconds) / 2
        nearest = np.minimum((middle * their_rate).astype(int), len(theirs) - 1)
        at_time = cosines(mine, theirs[nearest]).mean()
        found.append(f"another rate: {their_rate:.2f} rows a second, ours {rate:.2f} (cosine {at_time:.4f} by time)")
    return found


def _level(mine: np.ndarray, theirs: np.ndarray) -> list[str]:
    """Decibels of another reference, as that of each file's maximum."""
    n = min(len(mine), len(theirs))
    differences = theirs[:n].astype(np.float32) - mine[:n]
    level = float(np.median(differences))
    if abs(level) < 1 or np.mean(np.abs(differences - level) < 0.5) < 0.9:
        return []
    return [f"their values are ours {level:+.2f} throughout: another reference"]


def _lengths(mine: np.ndarray, theirs: np.ndarray) -> list[str]:
    n = min(len(mine), len(theirs))
    lengths, their_lengths = np.linalg.norm(mine[:n], axis=1), np.linalg.norm(theirs[:n], axis=1)
    if np.allclose(their_lengths, 1, atol=2e-3) and not np.allclose(lengths, 1, atol=2e-3):
        return ["their rows are L2-normalised, ours raw"]
    ratio = np.median(their_lengths / np.maximum(lengths, 1e-12))
    return [f"their rows are {ratio:.3g} times as long"] if not 0.98 < ratio < 1.02 else []


def first_windows(path: Path, extractor: Extractor) -> np.ndarray:
    """The frames of the first few rows, uint8 [rows, T, H, W, 3] or [rows, H, W, 3]. Raises ``VideoError``."""
    process, windows = DecodeProcess(), []
    try:
        process.start(path, [wanted_of(extractor.profile)])
        while len(windows) < TRIED_ROWS and (message := process.receive())["what"] != "finished":
            if message["what"] == "started":
                windows.clear()
            elif message["what"] == "row":
                windows.append(np.empty(message["shape"], dtype=np.uint8))
                process.receive_into(windows[-1])
            elif message["what"] == "picture":
                process.receive_bytes()
    finally:
        process.close()
    return np.stack(windows)


def other_inputs(path: Path, extractor: Extractor, theirs: np.ndarray) -> list[str]:
    """Whether theirs are what the network makes of the same frames with another colour order or normalisation."""
    if theirs.ndim != 2 or theirs.shape[1] != extractor.profile.dimension or extractor.network is None:
        return []
    windows = first_windows(path, extractor)
    found = {}
    for name, (value_range, mean, std) in NORMALISATIONS.items():
        variant = replace(extractor, profile=replace(extractor.profile, value_range=value_range, mean=mean, std=std))
        for order, frames in (("", windows), (", red and blue swapped", windows[..., ::-1])):
            made = np.concatenate([variant.features(np.ascontiguousarray(window[None])).numpy() for window in frames])
            found[name + order] = float(cosines(made, theirs).mean())
    best = max(found, key=found.get)
    made = np.concatenate([extractor.features(window[None]).numpy() for window in windows])
    if not explains(found[best], float(cosines(made, theirs).mean())):
        return []
    return [f"theirs were made with {best} (cosine {found[best]:.4f})"]


def verify(dataset: DatasetFolder, videos: Sequence[VideoRecord], extractor: Extractor, files: dict[str, Path]) -> int:
    """Prints a line a video and what was found; 0 where all rows are the same."""
    store = FeatureStore(dataset.features(extractor.profile.name))
    print(f"{'video':<28}{'rows':>8}{'theirs':>8}{'mean cos':>10}{'least':>9}  remarks")
    num_same, inputs = 0, None
    for video in videos:
        if video.video_id not in store:
            print(f"{video.video_id:<28}  no features of ours")
            continue
        try:
            theirs = read_features(files[video.video_id])
            ours = store.get(video.video_id)
            if theirs.shape[-1] != ours.features.shape[1] and theirs.shape[-1] == 512 and hasattr(extractor.network, "video_embedding"):
                embedded = extractor.network.video_embedding(torch.from_numpy(ours.features).float()).numpy()
                ours = replace(ours, features=embedded)
            found = compare(ours, theirs)
            remarks = list(found.remarks)
            if not found.same and not found.explained:
                if inputs is None and not video.url:
                    inputs = other_inputs(dataset.video_path(video), extractor, theirs)  # once: a folder has one recipe
                remarks = (
                    [*inputs, *remarks] if inputs else ["no shift, rate, colour order or normalisation known here explains it", *remarks]
                )
        except (UserError, VideoError) as error:
            print(f"{video.video_id:<28}  {error}")
            continue
        num_same += found.same
        print(
            f"{video.video_id:<28}{found.rows:>8,}{found.their_rows:>8,}{found.mean_cosine:>10.4f}{found.least_cosine:>9.4f}  "
            f"{'same' if found.same else 'DIFFERENT'}{': ' if remarks else ''}{'; '.join(remarks)}"
        )
    print(f"{num_same:,} of {len(videos):,} videos have the same rows (cosine at least {SAME_COSINE})")
    return EXIT_DONE if num_same == len(videos) else EXIT_INCOMPLETE
