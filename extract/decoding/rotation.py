"""How a frame is turned and mirrored to stand upright, by its display matrix."""

import struct

import av
import numpy as np

Filters = tuple[tuple[str, str], ...]
"""Filters of libavfilter with their arguments, in order; none for a frame that is upright."""
TURNS: set[Filters] = {
    (),
    (("transpose", "clock"),),
    (("hflip", ""), ("vflip", "")),
    (("transpose", "cclock"),),
}
"""By right angles, without a mirror: all that some decoders know."""
ON_ARRAYS = {
    "cclock": lambda picture: np.rot90(picture, 1),
    "clock": lambda picture: np.rot90(picture, -1),
    "cclock_flip": lambda picture: picture.transpose(1, 0, 2),
    "clock_flip": lambda picture: np.rot90(picture, 2).transpose(1, 0, 2),
    "hflip": lambda picture: picture[:, ::-1],
    "vflip": lambda picture: picture[::-1],
}
"""What each filter does with an array [H, W, C]; filters that turn by other angles than right ones are not there."""


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


def lies(filters: Filters) -> bool:
    """Return whether the upright frame's height is the width of the frame."""
    return bool(filters) and filters[0][0] == "transpose"


def upright_picture(picture: np.ndarray, filters: Filters) -> np.ndarray:
    """Return a picture [H, W, C] turned and mirrored, right angles only."""
    for name, argument in filters:
        picture = ON_ARRAYS.get(argument or name, lambda same: same)(picture)
    return picture
