"""Frames -> upright RGB images of the wanted sizes, by FFmpeg's scale filter or by another library's kernel."""

import struct

import av
import numpy as np
from av.filter import Graph

from .kernels import BY_FFMPEG, Kernel, Size

UNSPECIFIED, BT601, BT2020 = 2, 5, 9
KNOWN_MATRICES = {0, 1, UNSPECIFIED, 4, BT601, 6, 7, BT2020}
"""Codes of colour matrices (ITU-T H.273) by which libswscale converts."""
STANDS_FOR = {10: BT2020}
"""{colour matrix: the matrix used instead}; BT.601's is used for matrices that are not listed.

Source: libswscale/yuv2rgb.c (sws_getCoefficients).
"""

Filters = tuple[tuple[str, str], ...]
"""Filters of libavfilter with their arguments, in order; none for a frame that is upright."""
TURNS: set[Filters] = {
    (),
    (("transpose", "clock"),),
    (("hflip", ""), ("vflip", "")),
    (("transpose", "cclock"),),
}
"""Rotations by right angles without mirroring, the only ones that some decoders support."""
ON_ARRAYS = {
    "cclock": lambda image: np.rot90(image, 1),
    "clock": lambda image: np.rot90(image, -1),
    "cclock_flip": lambda image: image.transpose(1, 0, 2),
    "clock_flip": lambda image: np.rot90(image, 2).transpose(1, 0, 2),
    "hflip": lambda image: image[:, ::-1],
    "vflip": lambda image: image[::-1],
}
"""{filter: its effect on an array [H, W, C]}, for right angles only."""


# How a frame is turned and mirrored to stand upright, by its display matrix


def upright_filters(frame: av.VideoFrame) -> Filters:
    """Return the filters that the ffmpeg program would put before all others.

    Source: fftools/ffmpeg_filter.c (autorotate), fftools/cmdutils.c (get_rotation).
    """
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return ()
    values = struct.unpack("=9i", bytes(matrix)[:36])
    degrees = -frame.rotation % 360
    if abs(degrees - 90) < 1:
        return (("transpose", "cclock_flip" if values[3] > 0 else "clock"),)
    if abs(degrees - 270) < 1:
        return (("transpose", "clock_flip" if values[3] < 0 else "cclock"),)
    if abs(degrees - 180) < 1:
        return (*([("hflip", "")] if values[0] < 0 else []), *([("vflip", "")] if values[4] < 0 else []))
    if degrees > 1:
        return (("rotate", f"{degrees}*PI/180"),)
    return (("vflip", ""),) if values[4] < 0 else ()


def swaps_sides(filters: Filters) -> bool:
    """Return whether the filters swap the width and height of a frame."""
    return bool(filters) and filters[0][0] == "transpose"


def upright_image(image: np.ndarray, filters: Filters) -> np.ndarray:
    """Return an image [H, W, C], turned and mirrored by filters; rotations by other than right angles are ignored."""
    for name, argument in filters:
        image = ON_ARRAYS.get(argument or name, lambda same: same)(image)
    return image


# Scaling


class Scaler:
    """Scale a video's frames to one size.

    All images of a video get the size that its first frame gives, as in the ffmpeg program. The filter is rebuilt
    when the size or format of frames changes within a video.
    """

    def __init__(self, size: Size) -> None:
        self.size, self._kernel = size, Kernel.of(size.resize)
        self._shape: tuple[int, int] | None = None
        self._graph: Graph | None = None
        self._graph_key: tuple[object, ...] | None = None

    def see(self, frame: av.VideoFrame, upright: Filters) -> tuple[int, int]:
        """Return (height, width) of the images, determined by the first frame.

        Call it with every frame, wanted or not.
        """
        if self._shape is None:
            self._shape = self.size.shape(*_turned(frame, upright))
        return self._shape

    def __call__(self, frame: av.VideoFrame, upright: Filters) -> np.ndarray:
        """Return the image, [H, W, 3] RGB in the kernel's type, made upright by these filters."""
        height, width = self.see(frame, upright)
        key = (frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range, upright)
        if self._graph is None or key != self._graph_key:
            by_ffmpeg = (height, width) if self._kernel.by == BY_FFMPEG else _turned(frame, upright)
            self._graph, self._graph_key = self._make_graph(frame, upright, by_ffmpeg), key
        frame.pts = None  # times are stored elsewhere; a time that jumps back would stop the filter
        self._graph.push(frame)
        scaled = self._graph.pull()
        assert isinstance(scaled, av.VideoFrame)
        image = scaled.to_ndarray()
        return image if self._kernel.by == BY_FFMPEG else self._kernel.scaled(image, height, width)

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
    return (frame.width, frame.height) if swaps_sides(upright) else (frame.height, frame.width)


def set_known_colours(frame: av.VideoFrame) -> None:
    """Set the colour matrix that older libswscale assumes where newer versions refuse to convert a frame."""
    if int(frame.colorspace) not in KNOWN_MATRICES:
        frame.colorspace = STANDS_FOR.get(int(frame.colorspace), BT601)
    frame.color_trc = UNSPECIFIED  # no effect without tone mapping
