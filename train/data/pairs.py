"""Captions and feature stores -> clips, captions and batches."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...storage.captions import CaptionTable, by_appearance, read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.layout import DatasetFolder
from ...storage.profiles import FRAME_MAPS
from ...storage.records import VideoFeatures
from ...storage.store import Store


@dataclass(frozen=True)
class Clip:
    """What is retrieved: a part of a video, or all of it (None, None)."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None


class ClipFeatures:
    """Rows of one store, or of several aligned in time and joined, for any clip.

    ``grid`` (time, height, width), of a store of frames' maps: a clip's rows are the means of so many parts of its maps.
    """

    def __init__(self, stores: Sequence[Store], grid: tuple[int, int, int] | None = None) -> None:
        self.stores, self.grid = list(stores), grid
        self.dim = sum(_channels(store) for store in self.stores)

    def __contains__(self, video_id: str) -> bool:
        return all(video_id in store for store in self.stores)

    def video_ids(self) -> list[str]:
        return [v for v in self.stores[0].video_ids() if v in self]

    def duration_seconds(self, video_id: str) -> float:
        return self.stores[0].duration_seconds(video_id)

    def rows(self, clips: Sequence[Clip], max_rows: int) -> list[np.ndarray]:
        """[T, D] of each clip, at most ``max_rows``, evenly chosen where there are more; empty where the clip lies past the end.

        Of several stores the one with most rows sets the time; the others give the row that covers the middle of each of its.
        The arrays are not to be written: they may be the store's own.
        """
        return [rows for rows, _ in self.timed_rows(clips, max_rows)]

    def timed_rows(self, clips: Sequence[Clip], max_rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """``rows`` of each clip, and when they start and end [T, 2], in seconds."""
        wanted = [(clip.video_id, clip.start_seconds, clip.end_seconds) for clip in clips]
        parts = [store.get_clips(wanted, dtype=None) for store in self.stores]
        found = [_at_most(*_join(of_clip), max_rows) for of_clip in zip(*parts, strict=True)]
        if self.grid is None:
            return found
        shape = FRAME_MAPS[self.stores[0].profile.name]
        return [_averaged(rows.reshape(-1, *shape), times, self.grid) for rows, times in found]

    def batch(self, clips: Sequence[Clip], max_rows: int) -> tuple[Tensor, Tensor]:
        """Features [B, M, D], padded with zeros, and the mask [B, M], True where there is a row."""
        return pad_rows(self.rows(clips, max_rows), self.dim)

    def pooled(self, clips: Sequence[Clip]) -> np.ndarray:
        """float32 [B, D]: of each clip the maximum over its rows, or over its maps' places, of length 1 for each store, one beside the
        other (as HowTo100M's loader); zeros where a clip lies past the end."""
        wanted = [(clip.video_id, clip.start_seconds, clip.end_seconds) for clip in clips]
        return np.concatenate([_pooled(store, wanted) for store in self.stores], axis=1)


def _channels(store: Store) -> int:
    """Of a row, or of each place where a row is a frame's map."""
    *_, channels = FRAME_MAPS.get(store.profile.name, (store.profile.dimension,))
    return channels


def _averaged(maps_THWC: np.ndarray, times: np.ndarray, grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The means of a clip's maps in the parts of a grid [T' H' W', C], and the times of each. Parts of a grid that does not divide the
    maps evenly overlap, as torch's adaptive pooling has it."""
    if not len(maps_THWC):
        return np.zeros((0, maps_THWC.shape[-1]), np.float32), times[:0]
    maps_CTHW = torch.from_numpy(maps_THWC.astype(np.float32)).movedim(-1, 0)
    means_CP = F.adaptive_avg_pool3d(maps_CTHW, grid).flatten(1)
    starts = np.arange(grid[0]) * len(times) // grid[0]
    ends = -(np.arange(1, grid[0] + 1) * -len(times) // grid[0])
    spans = np.stack([times[starts, 0], times[ends - 1, 1]], axis=1)
    return means_CP.T.numpy(), spans.repeat(grid[1] * grid[2], axis=0)


def _pooled(store: Store, clips: Sequence[tuple[str, float | None, float | None]]) -> np.ndarray:
    found = np.zeros((len(clips), _channels(store)), dtype=np.float32)
    for number, clip in enumerate(store.get_clips(clips, dtype=None)):
        if len(clip.features):
            found[number] = clip.features.reshape(-1, found.shape[1]).max(axis=0)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def pad_rows(rows: Sequence[np.ndarray], dim: int) -> tuple[Tensor, Tensor]:
    features = np.zeros((len(rows), max(map(len, rows)), dim), dtype=np.float32)
    mask = torch.zeros(features.shape[:2], dtype=torch.bool)
    for index, part in enumerate(rows):
        features[index, : len(part)] = part
        mask[index, : len(part)] = True
    return torch.from_numpy(features), mask


def _join(parts: Sequence[VideoFeatures]) -> tuple[np.ndarray, np.ndarray]:
    leader = max(parts, key=lambda part: len(part.features))
    times = np.stack([leader.start_seconds, leader.end_seconds], axis=1)
    if len(parts) == 1:
        return leader.features, times
    if any(len(part.features) == 0 for part in parts):
        return np.zeros((0, sum(part.features.shape[1] for part in parts)), dtype=np.float32), times[:0]
    middles = times.mean(axis=1)
    chosen = [np.clip(np.searchsorted(part.start_seconds, middles, side="right") - 1, 0, None) for part in parts]
    return np.concatenate([part.features[rows] for part, rows in zip(parts, chosen, strict=True)], axis=1), times


def _at_most(rows: np.ndarray, times: np.ndarray, max_rows: int) -> tuple[np.ndarray, np.ndarray]:
    if len(rows) <= max_rows:
        return rows, times
    chosen = evenly(len(rows), max_rows)
    return rows[chosen], times[chosen]


def evenly(number: int, most: int) -> np.ndarray:
    """So many of 0 to number - 1, at most, spread evenly."""
    return np.linspace(0, number - 1, min(most, number)).round().astype(int)


class Groups(Sequence[list[int]]):
    """Of each group its members, in order."""

    def __init__(self, group_of_member: np.ndarray, num_groups: int) -> None:
        self._members = np.argsort(group_of_member, kind="stable")
        self._starts = np.searchsorted(group_of_member[self._members], np.arange(num_groups + 1))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, group: int | slice) -> list[int] | list[list[int]]:
        if isinstance(group, slice):
            return [self[number] for number in range(*group.indices(len(self)))]
        group = range(len(self))[group]
        return self._members[self._starts[group] : self._starts[group + 1]].tolist()


class Clips(Sequence[Clip]):
    """Clips in columns, each a record when it is asked for."""

    def __init__(
        self, video_ids: Sequence[str], video: np.ndarray, start_seconds: np.ndarray, end_seconds: np.ndarray
    ) -> None:
        self.video_ids, self.video = video_ids, video
        """The number of each clip's video among ``video_ids``."""
        self._start_seconds, self._end_seconds = start_seconds, end_seconds
        """NaN for clips that are a whole video."""

    @classmethod
    def of(cls, clips: Iterable[Clip]) -> "Clips":
        listed, number_of = list(clips), {}
        video = np.array([number_of.setdefault(clip.video_id, len(number_of)) for clip in listed], dtype=np.int32)
        starts, ends = (
            np.array([getattr(clip, name) for clip in listed], dtype=np.float64)
            for name in ("start_seconds", "end_seconds")
        )
        return cls(list(number_of), video, starts, ends)

    def __len__(self) -> int:
        return len(self.video)

    def __getitem__(self, place: int | slice) -> Clip | list[Clip]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        start, end = self._start_seconds[place].item(), self._end_seconds[place].item()
        whole = math.isnan(start)
        return Clip(self.video_ids[self.video[place]], None if whole else start, None if whole else end)


@dataclass(frozen=True)
class Pairs:
    """The clips of a split, and its captions; ``clip_of_caption[i]`` is the number of caption i's clip."""

    clips: Clips
    captions: CaptionTable
    clip_of_caption: np.ndarray

    def captions_of_clips(self) -> Groups:
        return Groups(self.clip_of_caption, len(self.clips))


def make_pairs(captions: CaptionTable) -> Pairs:
    """Clips come in the order of their first captions."""
    video_ids, video = captions.codes("video_id")
    start, end = captions.numbers("start_seconds"), captions.numbers("end_seconds")
    order = np.lexsort(
        (end, start, video)
    )  # stable: of a clip's captions the first comes first; no time comes behind all times
    columns = [column[order] for column in (video, np.nan_to_num(start, nan=-1), np.nan_to_num(end, nan=-1))]
    is_new = np.ones(len(captions), dtype=bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    clip = np.empty(len(captions), dtype=np.int64)
    clip[order] = np.cumsum(is_new) - 1
    clip_of_caption, firsts = by_appearance(clip, np.count_nonzero(is_new))
    return Pairs(Clips(video_ids, video[firsts], start[firsts], end[firsts]), captions, clip_of_caption)


def without_features(what: str, video_ids: Iterable[str], features: ClipFeatures, problems: Problems) -> set[str]:
    """Those of the videos that have none; they are reported."""
    without = set(video_ids) - set(features.video_ids())
    for video_id in sorted(without):
        problems.add(
            f"{what} of video {video_id!r}: no features of it in {features.stores[0].where}; left out (run vlalign-extract)"
        )
    return without


@dataclass(frozen=True)
class Faults:
    """Why captions cannot be used, each bool [num_captions], each caption in one at most."""

    silent: np.ndarray
    """No recording of it, where those are heard."""
    unseen: np.ndarray
    """No features of its video."""
    late: np.ndarray
    """Its clip starts when the video is over."""

    @property
    def usable(self) -> np.ndarray:
        return ~(self.silent | self.unseen | self.late)


def find_faults(captions: CaptionTable, features: ClipFeatures, recordings: Store | None) -> Faults:
    """Each caption is silent, else unseen, else late, or usable. ``recordings``: of spoken captions, where those are heard."""
    silent = np.zeros(len(captions), dtype=bool)
    if recordings is not None:
        ids, recording = captions.codes("recording")
        silent = ~np.array([*(one in recordings for one in ids), False], dtype=bool)[recording]
    video_ids, video = captions.codes("video_id")
    there = set(features.video_ids())
    duration = np.array([features.duration_seconds(one) if one in there else np.nan for one in video_ids])[video]
    unseen = np.isnan(duration) & ~silent
    return Faults(silent, unseen, (captions.numbers("start_seconds") >= duration) & ~silent)


def why_none(dataset: DatasetFolder, features: ClipFeatures, split: str, recordings: Store | None = None) -> str:
    """Why no caption of a split can be used, or so few: each cause with how many have it, and an example. For messages."""
    captions = read_captions(dataset.captions)
    splits, codes = captions.codes("split")
    if split not in splits:
        counts = ", ".join(f"{name} {count:,}" for name, count in zip(splits, np.bincount(codes), strict=True))
        return f"none of its {len(captions):,} captions has split {split!r} ({counts})"
    return _why_none(of_split(captions, split), features, recordings, f" with split {split!r}")


def _why_none(captions: CaptionTable, features: ClipFeatures, recordings: Store | None, which: str = "") -> str:
    faults = find_faults(captions, features, recordings)
    causes = []
    if late := np.flatnonzero(faults.late).tolist():
        first = captions[late[0]]
        causes.append(
            f"{len(late):,} start after their video's end ({first.video_id!r}: caption from {first.start_seconds:.1f} to "
            f"{first.end_seconds:.1f} s, video of {features.duration_seconds(first.video_id):.1f} s; are the times in seconds?)"
        )
    if unseen := np.flatnonzero(faults.unseen).tolist():
        there = features.video_ids()
        has = f"it has {len(there):,} videos, such as {min(there)!r}" if there else "it has none"
        what = "of a video" if len(unseen) == 1 else "of videos"
        causes.append(
            f"{len(unseen):,} are {what} without features in {features.stores[0].where} ({captions[unseen[0]].video_id!r}; {has})"
        )
    if silent := np.count_nonzero(faults.silent):
        causes.append(f"{silent:,} have no recording in {recordings.where}")
    num_usable = np.count_nonzero(faults.usable)
    usable = (
        f"{num_usable:,} of its {len(captions):,} captions{which} can be used"
        if num_usable
        else (f"none of its {len(captions):,} captions{which} can be used")
    )
    return ": ".join(filter(None, (usable, ", ".join(causes))))


def read_pairs(
    dataset: DatasetFolder, features: ClipFeatures, problems: Problems, recordings: Store | None = None
) -> dict[str, Pairs]:
    """{split: pairs}. Captions whose video has no features, or ends before their clip, are reported and left out of both sides.

    ``recordings``: of spoken captions, where those are heard; captions without one are reported and left out, too.
    """
    captions = read_captions(dataset.captions)
    faults = find_faults(captions, features, recordings)
    if silent := np.count_nonzero(faults.silent):
        problems.add(f"{silent:,} of {len(captions):,} captions: no recording of them in {recordings.where}; left out")
    without_features("captions", captions.take(np.flatnonzero(~faults.silent)).codes("video_id")[0], features, problems)
    for caption in captions.take(np.flatnonzero(faults.late)):
        seconds = features.duration_seconds(caption.video_id)
        problems.add(f"caption {caption.clip_id}: starts after the video's end ({seconds:.1f} s); left out")
    usable = faults.usable
    if not usable.any():
        raise UserError(f"{dataset.captions}: {_why_none(captions, features, recordings)}")
    splits, split = captions.codes("split")
    number_of = {name: number for number, name in enumerate(splits)}
    return {
        name: make_pairs(captions.take(np.flatnonzero(usable & (split == number_of.get(name, -1)))))
        for name in ("train", "validation", "test")
    }


def of_split(captions: CaptionTable, name: str) -> CaptionTable:
    splits, split = captions.codes("split")
    return captions.take(np.flatnonzero(split == splits.index(name)) if name in splits else [])
