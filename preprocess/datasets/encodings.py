"""Decode text files of users in any usual encoding. Inferred encodings are reported in one line."""

import codecs
import re
from collections.abc import Callable
from pathlib import Path

from ...storage.common.errors import UserError

Note = Callable[[str], None]
"""Reports one line about the file."""

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
ARCHIVES = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""First bytes of Excel workbooks, new and old."""
MAX_ACCENTED_SHARE = 0.5
"""Maximum share of non-ASCII letters in words that contain any. French words mix them with ASCII letters; Russian words
in Windows-1251 have no ASCII letters."""


def decode(data: bytes, path: Path, note: Note, *, save_as: str) -> str:
    """Return the text of a file in UTF-8, UTF-16, UTF-32 or, if its bytes are not UTF-8, a western 8-bit encoding.

    Args:
        data: Content of the file.
        path: Its path, for messages.
        note: Reports an encoding other than UTF-8.
        save_as: What to do with a file whose encoding is wrong, such as "save it as UTF-8".

    Raises:
        UserError: The content is not text, or its encoding cannot be determined.
    """
    if data.startswith(ARCHIVES):
        raise UserError(f"{path}: an Excel workbook or another archive; expected text; {save_as}")
    mark, encoding = next(((mark, name) for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), (b"", "utf-8"))
    if not mark:
        start = data[:64]
        even, odd = start[::2].count(0), start[1::2].count(0)
        if max(even, odd) > len(start) // 4 and min(even, odd) <= len(start) // 16:
            encoding = "utf-16-be" if even > odd else "utf-16-le"
    try:
        text = data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise UserError(
                f"{path}: begins like {encoding.upper()} but is not valid ({error.reason}); {save_as}"
            ) from None
        return _decode_western(data, path, error.start, note, save_as)
    if num_zeros := text.count("\0"):
        raise UserError(f"{path}: contains {num_zeros:,} zero bytes; expected text; {save_as}")
    if encoding != "utf-8":
        note(f"read as {encoding.upper()}, {'as its byte order mark says' if mark else 'as its zero bytes suggest'}")
    return text


def _decode_western(data: bytes, path: Path, bad: int, note: Note, save_as: str) -> str:
    """Decode Windows-1252, or Latin-1 if it has bytes that Windows-1252 lacks.

    ``bad``: position of the first byte that is not UTF-8.
    """
    where = f"line {data.count(10, 0, bad) + 1}: byte 0x{data[bad]:02x} is not UTF-8"
    if any(character > "\x7f" and character != "\ufffd" for character in data.decode("utf-8", "replace")):
        raise UserError(f"{path}, {where}, though other characters are: damaged, or in two encodings; {save_as}")
    words = [word for word in re.findall(rb"[A-Za-z\x80-\xff]{3,}", data) if not word.isascii()]
    if sum(byte > 0x7F for word in words for byte in word) > MAX_ACCENTED_SHARE * sum(map(len, words)):
        raise UserError(f"{path}, {where}, and its words do not look like a western encoding; {save_as}")
    try:
        text, name = data.decode("cp1252"), "Windows-1252"
    except UnicodeDecodeError:
        text, name = data.decode("latin-1"), "Latin-1"
    if num_zeros := text.count("\0"):
        raise UserError(f"{path}: contains {num_zeros:,} zero bytes; expected text; {save_as}")
    match = re.search(r"\w*[^\x00-\x7f]\w*", text)
    example = f", in which it contains {match[0]!r}" if match else ""
    note(f"{where}; read as {name}{example}; if that is wrong, {save_as}")
    return text
