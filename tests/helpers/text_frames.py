"""Made frames with text."""

from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

FONT = Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


def frame(*lines: str, px: int = 40, size: tuple[int, int] = (640, 360)) -> np.ndarray:
    """Return white lines on a dark background."""
    image = Image.new("RGB", size, (20, 40, 60))
    for number, text in enumerate(lines):
        ImageDraw.Draw(image).text(
            (30, 40 + 2 * px * number), text, font=ImageFont.truetype(FONT, px), fill=(250, 250, 250)
        )
    return np.asarray(image)
