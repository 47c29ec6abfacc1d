"""The frames of a video -> its shots, by PySceneDetect, while the video is decoded.

A frame begins a shot if its difference from the previous frame is much larger than its neighbours' differences. This is
PySceneDetect's AdaptiveDetector with its defaults. It sees every frame with the frame's own time, so a variable frame
rate changes nothing. Cuts are found, even between shots with much motion. Dissolves are not, since none of their frames
differs much. A flash counts as a cut.
"""

import logging
from fractions import Fraction
from typing import Any

import cv2
import numpy as np
import scenedetect
from scenedetect.common import FrameTimecode, Timecode
from scenedetect.detectors import AdaptiveDetector
from scenedetect.stats_manager import StatsManager

from .probe import VideoInfo
from .shots import MIN_CHANGE, MIN_RATIO, MIN_SHOT_SECONDS, NEIGHBOURS, ROW, ShotsFound

cv2.setNumThreads(0)  # each core decodes a video of its own
logging.getLogger("pyscenedetect").setLevel(logging.ERROR)


class _LatestMetrics(StatsManager):
    """The detector's metrics of the latest frames. The library's own class keeps the metrics of all frames."""

    def __init__(self) -> None:
        super().__init__()
        self.by_tick: dict[int, dict[str, float]] = {}

    def set_metrics(self, timecode: int | FrameTimecode, metric_kv_dict: dict[str, Any]) -> None:
        """Store metrics of a frame."""
        assert isinstance(timecode, FrameTimecode)
        self.by_tick.setdefault(timecode.pts, {}).update(metric_kv_dict)
        while len(self.by_tick) > 2 * NEIGHBOURS + 1:
            del self.by_tick[next(iter(self.by_tick))]


class ShotFinder:
    """Finds the shots of one video. It holds one frame and a few numbers of each shot in memory."""

    def __init__(self, info: VideoInfo) -> None:
        """Begin before the first frame.

        Args:
            info: The probed video.
        """
        self._info = info
        self._detector = AdaptiveDetector(
            adaptive_threshold=MIN_RATIO,
            min_scene_len=MIN_SHOT_SECONDS,
            window_width=NEIGHBOURS,
            min_content_val=MIN_CHANGE,
        )
        self._metrics = self._detector.stats_manager = _LatestMetrics()
        self._names = AdaptiveDetector.FRAME_SCORE_KEY, self._detector.get_metrics()[-1]
        # The library asks for a rate, but compares times.
        self._rate = 1 / (max(info.end - int(info.pts[0]), 1) * info.time_base / len(info.pts))
        self._last = -(1 << 63)
        self._cuts: list[tuple[int, list[float]]] = []
        """(tick, features) of the first frame of each shot except the first shot."""

    def add(self, tick: int, image: np.ndarray) -> None:
        """Add the next frame. A frame earlier than the previous one is skipped.

        Args:
            tick: Its time, in ticks of the video.
            image: RGB uint8 [H, W, 3] of ``shots.SIZE``.
        """
        if tick <= self._last:
            return
        self._last = tick
        time = FrameTimecode(Timecode(tick, self._info.time_base), Fraction(self._rate))
        for cut in self._detector.process_frame(time, cv2.cvtColor(image, cv2.COLOR_RGB2BGR)):
            metrics = self._metrics.by_tick[cut.pts]
            self._cuts.append((cut.pts, [metrics[name] for name in self._names]))

    def finish(self) -> ShotsFound:
        """Return the shots, after the last frame."""
        info, cuts = self._info, [cut for cut in self._cuts if cut[0] > 0]  # some videos begin before time zero
        starts = np.array([0, *(tick for tick, _ in cuts)])
        ends = np.append(starts[1:], info.end)
        firsts = np.append(np.searchsorted(info.pts, starts), len(info.pts))
        firsts[0] = 0
        rows = np.zeros(len(starts), ROW)
        rows["start_seconds"], rows["end_seconds"] = (
            [float(tick * info.time_base) for tick in ticks.tolist()] for ticks in (starts, ends)
        )
        rows["features"][1:] = np.array([features for _, features in cuts]).reshape(-1, 2)
        rows["num_frames"] = np.diff(firsts)
        return ShotsFound(rows, f"PySceneDetect {scenedetect.__version__}")
