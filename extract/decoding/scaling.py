"""Frames -> upright RGB pictures of the wanted sizes, by FFmpeg's scale filter or by another library's kernel."""

from typing import NamedTuple

import av
import numpy as np
from av.filter import Graph

from .kernels import BY_FFMPEG, LIBSWSCALE, Kernel
from .rotation import Filters, lies
from .sampling import scaled_size

UNSPECIFIED, BT601, BT2020 = 2, 5, 9
KNOWN_MATRICES = {0, 1, UNSPECIFIED, 4, BT601, 6, 7, BT2020}
"""Codes of colour matrices (ITU-T H.273) by which libswscale converts."""
STANDS_FOR = {10: BT2020}
"""The matrix that is taken for another one; it is BT.601's where nothing is here.

Source: libswscale/yuv2rgb.c (sws_getCoefficients).
"""


class Size(NamedTuple):
    """The shorter side of a picture in pixels, and the kernel that scales to it."""

    short_side_px: int
    resize: str = LIBSWSCALE

    @property
    def is_for_people(self) -> bool:
        """True if pictures keep their shape and are bytes, as thumbnails must."""
        kernel = Kernel.of(self.resize)
        return kernel.is_rounded and not kernel.to_square

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the picture that an upright frame of this size gives."""
        side = self.short_side_px
        return (side, side) if Kernel.of(self.resize).to_square else scaled_size(height, width, side)


class Scaler:
    """Scale a video's frames to one size.

    All pictures of a video get the size that its first frame gives, as in the ffmpeg program. The filter is rebuilt
    when the size or format of frames changes within a video.
    """

    def __init__(self, size: Size) -> None:
        self.size, self._kernel = size, Kernel.of(size.resize)
        self._shape: tuple[int, int] | None = None
        self._graph: Graph | None = None
        self._graph_key: tuple[object, ...] | None = None

    def see(self, frame: av.VideoFrame, upright: Filters) -> tuple[int, int]:
        """Return (height, width) of the pictures, which the first frame decides. Call it with every frame, wanted or
        not."""
        if self._shape is None:
            self._shape = self.size.shape(*_turned(frame, upright))
        return self._shape

    def __call__(self, frame: av.VideoFrame, upright: Filters) -> np.ndarray:
        """Return the picture, [H, W, 3] RGB in the kernel's type, made upright by these filters."""
        height, width = self.see(frame, upright)
        key = (frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range, upright)
        if self._graph is None or key != self._graph_key:
            by_ffmpeg = (height, width) if self._kernel.by == BY_FFMPEG else _turned(frame, upright)
            self._graph, self._graph_key = self._make_graph(frame, upright, by_ffmpeg), key
        frame.pts = None  # times are kept elsewhere; a time that jumps back would stop the filter
        self._graph.push(frame)
        scaled = self._graph.pull()
        assert isinstance(scaled, av.VideoFrame)
        picture = scaled.to_ndarray()
        return picture if self._kernel.by == BY_FFMPEG else self._kernel.scaled(picture, height, width)

    def _make_graph(self, frame: av.VideoFrame, upright: Filters, shape: tuple[int, int]) -> Graph:
        height, width = shape
        kernel = self._kernel.name if self._kernel.by == BY_FFMPEG else "bilinear"
        graph = Graph()
        graph.threads = 1
        source = {
            "video_size": f"{frame.width}x{frame.height}",
            "pix_fmt": frame.format.name,
            "time_base": "1/1000",
            "colorspace": str(int(frame.colorspace)),
            "range": str(int(frame.color_range)),
        }
        steps = [
            graph.add("buffer", **source),
            *(graph.add(*step) for step in upright),
            graph.add("scale", f"{width}:{height}:flags={kernel}"),
            graph.add("format", "rgb24"),
            graph.add("buffersink"),
        ]
        graph.link_nodes(*steps).configure()
        return graph


def _turned(frame: av.VideoFrame, upright: Filters) -> tuple[int, int]:
    """Return (height, width) of the upright frame."""
    return (frame.width, frame.height) if lies(upright) else (frame.height, frame.width)


def take_known_colours(frame: av.VideoFrame) -> None:
    """Give a frame the colour matrix by which older libswscale would convert it, where newer ones refuse to."""
    if int(frame.colorspace) not in KNOWN_MATRICES:
        frame.colorspace = STANDS_FOR.get(int(frame.colorspace), BT601)
    frame.color_trc = UNSPECIFIED  # it changes nothing without tone mapping
