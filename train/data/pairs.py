"""Captions and the clips that they are about."""

from dataclasses import dataclass

import numpy as np

from ...storage.captions.table import CaptionTable, by_appearance
from .clips import Clips, Groups


@dataclass(frozen=True)
class Pairs:
    """The clips of a split, and its captions. The arrays may be mapped from a file."""

    clips: Clips
    captions: CaptionTable
    clip_of_caption: np.ndarray
    """Index of each caption's clip."""
    captions_of_clips: Groups
    """Indices of each clip's captions."""
    clips_of_videos: Groups
    """Indices of the clips of each of ``clips.video_ids``."""


def make_pairs(captions: CaptionTable) -> Pairs:
    """Return the different clips of captions, in the order of their first captions."""
    video_ids, video = captions.videos()
    start, end = captions.numbers("start_seconds"), captions.numbers("end_seconds")
    # Stable: a clip's first caption comes first. NaN, for a whole video, sorts behind all times.
    order = np.lexsort((end, start, video))
    columns = [column[order] for column in (video, np.nan_to_num(start, nan=-1), np.nan_to_num(end, nan=-1))]
    is_new = np.ones(len(captions), dtype=bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    num_clips = int(np.count_nonzero(is_new))
    clip = np.empty(len(captions), dtype=np.int32)
    clip[order] = np.cumsum(is_new, dtype=np.int32) - 1
    clip_of_caption, firsts = by_appearance(clip, num_clips)
    clips = Clips(video_ids, video[firsts], start[firsts], end[firsts])
    clips_of_videos = Groups.of(clips.video, len(video_ids))
    return Pairs(clips, captions, clip_of_caption, Groups.of(clip_of_caption, num_clips), clips_of_videos)
