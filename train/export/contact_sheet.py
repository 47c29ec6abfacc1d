"""A contact sheet: the frames of the moments' best seconds in one image, with their numbers, videos and times."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from ...storage.common.errors import UserError
from ...storage.common.progress import progress
from .results import Result
from .source_videos import SourceError, SourceVideos
from .text_files import problem_of

MAX_SHEET_MOMENTS = 200
CELL_WIDTH, FRAME_HEIGHT, LABEL_HEIGHT, GAP = 320, 180, 44, 8
"""Sizes of a moment's cell, in pixels."""
GROUND, EMPTY, TEXT, QUIET = "white", (225, 228, 232), (20, 24, 28), (86, 93, 104)
FONT_SIZE = 15
FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
"""{suffix: format of Pillow}"""


def contact_sheet(results: Sequence[Result], videos: SourceVideos, suffix: str) -> tuple[bytes, list[str]]:
    """Return an image file with one frame for each moment, and the reasons for missing frames.

    Args:
        results: The moments.
        videos: Their files; a confined decoder reads the frames.
        suffix: A key of ``FORMATS``.

    Raises:
        UserError: There are too many moments.
    """
    if len(results) > MAX_SHEET_MOMENTS:
        raise UserError(
            f"a contact sheet has at most {MAX_SHEET_MOMENTS} moments, got {len(results):,}; export fewer moments"
        )
    num_columns = max(min(math.ceil(math.sqrt(len(results))), 6), 1)
    num_rows = max(math.ceil(len(results) / num_columns), 1)
    size = GAP + num_columns * (CELL_WIDTH + GAP), GAP + num_rows * (FRAME_HEIGHT + LABEL_HEIGHT + GAP)
    sheet, problems = Image.new("RGB", size, GROUND), []
    pen, font = ImageDraw.Draw(sheet), _font()
    frames = progress(results, total=len(results), what="reading frames", unit="frames")
    for index, each in enumerate(frames):
        row, column = divmod(index, num_columns)
        left, top = GAP + column * (CELL_WIDTH + GAP), GAP + row * (FRAME_HEIGHT + LABEL_HEIGHT + GAP)
        pen.rectangle((left, top, left + CELL_WIDTH - 1, top + FRAME_HEIGHT - 1), fill=EMPTY)
        try:
            image = ImageOps.contain(Image.fromarray(videos.frame(each.moment)), (CELL_WIDTH, FRAME_HEIGHT))
            place = left + (CELL_WIDTH - image.width) // 2, top + (FRAME_HEIGHT - image.height) // 2
            sheet.paste(image, place)
        except SourceError as error:
            problems.append(problem_of(each, error))
            pen.text((left + 10, top + 10), "no frame", QUIET, font)
        moment = each.moment
        _write(pen, font, (left, top + FRAME_HEIGHT + 3), f"{each.number}  {moment.video_id}", TEXT)
        times = f"{moment.start_seconds:.2f} - {moment.end_seconds:.2f} s  {moment.caption or ''}"
        _write(pen, font, (left, top + FRAME_HEIGHT + 22), times, QUIET)
    content = io.BytesIO()
    sheet.save(content, FORMATS[suffix], quality=90)
    return content.getvalue(), problems


def _font() -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which has more scripts than Pillow's own font; matplotlib brings it."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), FONT_SIZE)


def _write(
    pen: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, place: tuple[int, int], text: str, colour: tuple
) -> None:
    """Write a text in one line, cut to the width of a cell."""
    shown = "".join(c if c.isprintable() else " " for c in text[:CELL_WIDTH])
    while pen.textlength(shown, font) > CELL_WIDTH:
        shown = shown[: -2 if shown.endswith("…") else None][:-1] + "…"
    pen.text(place, shown, colour, font)
