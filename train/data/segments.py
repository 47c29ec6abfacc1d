"""Videos whose segments show steps, and a label for each of their seconds or rows.

Windows slide over a video. No paper says how long they are for COIN; 32 s, every 8 s, are VideoCLIP's (Xu et al. 2021).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.records import Caption
from .clip_features import ClipFeatures
from .clips import Clip
from .usable_captions import report_videos_without_features

BACKGROUND = 0
"""Label of seconds that show no step."""
UNKNOWN = -1
"""Label of a step that was not in the training data. No prediction equals it."""
WINDOW_SECONDS, STRIDE_SECONDS = 32, 8


@dataclass(frozen=True)
class Segment:
    """A part of a video that shows a step."""

    start_seconds: float
    end_seconds: float
    step: int
    """Number of the step in the data set."""
    caption: Caption


@dataclass(frozen=True)
class LabelledVideo:
    """A video with one frame for each whole second, and at least one."""

    video_id: str
    num_frames: int
    segments: list[Segment]


def segments_of(captions: Iterable[Caption]) -> list[Segment]:
    """Return the segments: the captions with a step and times."""
    return [
        Segment(c.start_seconds, c.end_seconds, c.step, c)
        for c in captions
        if c.step is not None and c.start_seconds is not None and c.end_seconds is not None
    ]


def step_labels(captions: Iterable[Caption], source: Path) -> dict[int, str]:
    """Return {number: text} of the steps in captions of all splits, sorted by number.

    Args:
        captions: All captions of a data set.
        source: Where they are stored, for the error message.

    Raises:
        UserError: No caption is a segment.
    """
    labels = {segment.step: segment.caption.caption for segment in segments_of(captions)}
    if not labels:
        raise UserError(
            f"{source}: no caption is a step of a segment; segmentation needs captions such as those of coin"
        )
    return dict(sorted(labels.items()))


def label_names(labels: Mapping[int, str]) -> list[str]:
    """Return the label names that a run saves: number and text, because two steps may have the same text."""
    return [f"{number}: {text}" for number, text in labels.items()]


def read_labelled_videos(
    captions: Iterable[Caption], features: ClipFeatures, problems: Problems
) -> dict[str, list[LabelledVideo]]:
    """Return the videos of each split. Those without features, or without feature rows, are reported and skipped."""
    videos: dict[str, list[LabelledVideo]] = {"train": [], "validation": [], "test": []}
    listed = sorted(segments_of(captions), key=_video_of)
    missing = report_videos_without_features("segments", map(_video_of, listed), features, problems)
    for video_id, group in groupby(listed, key=_video_of):
        segments = list(group)
        if video_id not in missing:
            num_frames = max(math.floor(features.duration_seconds(video_id)), 1)
            videos[segments[0].caption.split].append(LabelledVideo(video_id, num_frames, segments))
    return videos


def _video_of(segment: Segment) -> str:
    return segment.caption.video_id


def label_frames(video: LabelledVideo, label_of: Mapping[int, int]) -> np.ndarray:
    """Return the label of each second [T].

    A segment covers the seconds floor(start) <= t < ceil(end). Where segments overlap, the last one in the list
    is used.

    Args:
        video: The video and its segments.
        label_of: {number of a step: its label}. Steps that are missing get ``UNKNOWN``.
    """
    labels_T = np.full(video.num_frames, BACKGROUND)
    for segment in video.segments:
        frames = slice(math.floor(segment.start_seconds), math.ceil(segment.end_seconds))
        labels_T[frames] = label_of.get(segment.step, UNKNOWN)
    return labels_T


def labels_of_rows(times_M2: np.ndarray, segments: Sequence[Segment], label_of: Mapping[int, int]) -> np.ndarray:
    """Return the label of the step that each row shows in its middle [M].

    Args:
        times_M2: [M, 2], start and end of each row in seconds.
        segments: Segments of the video.
        label_of: {number of a step: its label}
    """
    middles_M, labels_M = times_M2.mean(axis=1), np.full(len(times_M2), BACKGROUND)
    for segment in segments:
        labels_M[(middles_M >= segment.start_seconds) & (middles_M < segment.end_seconds)] = label_of[segment.step]
    return labels_M


def windows(video_id: str, num_frames: int) -> list[Clip]:
    """Return the windows of a video. The last one starts as soon as it covers the rest; a short video is one window."""
    starts = range(0, max(num_frames - WINDOW_SECONDS, 0) + STRIDE_SECONDS, STRIDE_SECONDS)
    return [
        Clip(video_id, float(start), float(min(start + WINDOW_SECONDS, num_frames)))
        for start in starts
        if start < num_frames
    ]
