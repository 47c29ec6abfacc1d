"""Check a file's length and layout against its own headers. No pictures are read.

Wherever a file is damaged, libavformat searches for the next thing that it can read and does not say what it skipped.
The walkers here understand less, but say where a file stops making sense. Every step goes forward by at least one
header, whatever a file declares.
"""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .handed import open_file

EBML, SEGMENT, CLUSTER, CRC_32 = 0x1A45DFA3, 0x18538067, 0x1F43B675, 0xBF
IN_SEGMENT = {0x114D9B74, 0x1549A966, 0x1654AE6B, CLUSTER, 0x1C53BB6B, 0x1254C367, 0x1043A770, 0x1941A469, 0xEC, CRC_32}
IN_CLUSTER = {0xE7, 0xA3, 0xA0, 0xAB, 0xA7, 0x5854, 0xAF, 0xEC, CRC_32}
"""Ids of the elements that may appear there (RFC 9559)."""
LONGEST_CHECKED_BYTES = 64 << 20
"""Longest element whose checksum is checked."""
TS_PACKET_BYTES = 188


class _Broken(Exception):
    """Says where a file stops making sense, and why."""


def structure_damage(path: Path, containers: frozenset[str], beat: Callable[[], None] = lambda: None) -> str:
    """Describe what a file's own headers show to be missing or damaged.

    Empty if they show nothing, or if the format is not one of those checked here.
    """
    with open_file(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        try:
            if "matroska" in containers:
                _walk_matroska(file, num_bytes, beat)
            elif "mp4" in containers:
                _walk_mp4(file, num_bytes, beat)
            elif "avi" in containers:
                _walk_avi(file, num_bytes, beat)
            elif "mpegts" in containers:
                _check_mpegts(file, num_bytes)
        except _Broken as broken:
            return str(broken)
    return ""


def _must_fit(end: int, num_bytes: int, what: str) -> None:
    if end > num_bytes:
        raise _Broken(f"{what} should go to byte {end:,}, and the file ends at {num_bytes:,}")


# Matroska and WebM


def _element(file: BinaryIO, position: int) -> tuple[int, int | None, int] | None:
    """Return (id, size, where its content begins) of the element at ``position``.

    The size is None if it is unknown; the result is None if there is no element.
    """
    file.seek(position)
    head = file.read(12)
    if not head or head[0] < 0x10:
        return None
    id_bytes = 9 - head[0].bit_length()
    if len(head) <= id_bytes or head[id_bytes] == 0:
        return None
    size_bytes = 9 - head[id_bytes].bit_length()
    if len(head) < id_bytes + size_bytes:
        return None
    highest = (1 << 7 * size_bytes) - 1
    size = int.from_bytes(head[id_bytes : id_bytes + size_bytes], "big") & highest
    return int.from_bytes(head[:id_bytes], "big"), None if size == highest else size, position + id_bytes + size_bytes


def _walk_matroska(file: BinaryIO, num_bytes: int, beat: Callable[[], None]) -> None:
    position, header = 0, _element(file, 0)
    if header is None or header[0] != EBML or header[1] is None:
        raise _Broken("its first bytes are damaged")
    position = header[2] + header[1]
    segment = _element(file, position) if position < num_bytes else None
    while segment is not None and segment[0] == 0xEC and segment[1] is not None:
        position = segment[2] + segment[1]
        segment = _element(file, position) if position < num_bytes else None
    if segment is None or segment[0] != SEGMENT:
        raise _Broken(f"its structure breaks at byte {position:,}")
    _, size, position = segment
    end = num_bytes if size is None else position + size
    _must_fit(end, num_bytes, "its segment")
    cluster_end: int | None = position  # of the cluster that is being walked; None: unknown
    while position < end:
        beat()
        inside = cluster_end is None or position < cluster_end
        element = _element(file, position)
        if element is not None and cluster_end is None and element[0] in IN_SEGMENT - IN_CLUSTER:
            inside, cluster_end = False, position
        if element is None or element[0] not in (IN_CLUSTER if inside else IN_SEGMENT):
            raise _Broken(f"its structure breaks at byte {position:,}")
        name, size, content = element
        if name == CLUSTER:
            cluster_end = None
            if size is not None:
                cluster_end = content + size
                _must_fit(cluster_end, end, "a cluster")
                _check_crc(file, content, cluster_end)
            position = content
            continue
        if size is None:
            raise _Broken(f"its structure breaks at byte {position:,}")
        position = content + size
        _must_fit(position, cluster_end if inside and cluster_end is not None else end, "an element")
        if not inside:
            _check_crc(file, content, position)


def _check_crc(file: BinaryIO, content: int, end: int) -> None:
    """Check an element's checksum, which comes first in it, if it has one."""
    first = _element(file, content)
    if first is None or first[:2] != (CRC_32, 4) or end - first[2] - 4 < 0 or end - first[2] > LONGEST_CHECKED_BYTES:
        return
    file.seek(first[2])
    expected = int.from_bytes(file.read(4), "little")
    if zlib.crc32(file.read(end - first[2] - 4)) != expected:
        raise _Broken(f"bytes {content:,} to {end:,} do not have their checksum")


# MP4 and QuickTime


def _walk_mp4(file: BinaryIO, num_bytes: int, beat: Callable[[], None]) -> None:
    position = 0
    while position + 8 <= num_bytes:
        beat()
        file.seek(position)
        head = file.read(16)
        size, name = int.from_bytes(head[:4], "big"), head[4:8]
        if size == 1 and len(head) == 16:
            size = int.from_bytes(head[8:16], "big")
        if size == 0 and name == b"mdat":
            return  # it extends to the end of the file
        if size < 8 or not all(0x20 <= byte < 0x7F or byte == 0xA9 for byte in name):
            raise _Broken(f"its structure breaks at byte {position:,}")
        position += size
        _must_fit(position, num_bytes, f"its box {name.decode('latin-1')!r}")


# AVI


def _walk_avi(file: BinaryIO, num_bytes: int, beat: Callable[[], None]) -> None:
    """Walk RIFF chunks, which begin at even positions.

    A size of 0 for the whole is from a writer that could not seek back.
    """
    position, ends = 0, []
    while position + 8 <= num_bytes:
        beat()
        while ends and position >= ends[-1]:
            ends.pop()
        file.seek(position)
        head = file.read(8)
        name, size = head[:4], int.from_bytes(head[4:], "little")
        if not ends and name != b"RIFF":
            return  # bytes after the video
        if not all(0x20 <= byte < 0x7F for byte in name):
            raise _Broken(f"its structure breaks at byte {position:,}")
        if name in (b"RIFF", b"LIST") and size == 0:
            return
        end = position + 8 + size
        _must_fit(end, num_bytes, f"its chunk {name.decode()!r}")
        if ends and end > ends[-1] + 1:
            raise _Broken(f"its structure breaks at byte {position:,}")
        if name in (b"RIFF", b"LIST"):
            file.seek(position + 8)
            if name == b"RIFF" or file.read(4) in (b"movi", b"rec "):
                ends.append(end + end % 2)
                position += 12
                continue
        position = end + end % 2


# MPEG-TS


def _check_mpegts(file: BinaryIO, num_bytes: int) -> None:
    """Check that packets are complete. Formats with longer packets, such as M2TS, are not checked."""
    file.seek(0)
    head = file.read(3 * TS_PACKET_BYTES)
    if len(head) == 3 * TS_PACKET_BYTES and head[::TS_PACKET_BYTES] == b"GGG" and num_bytes % TS_PACKET_BYTES:
        raise _Broken(f"it ends within a packet: {num_bytes:,} bytes are not whole packets of {TS_PACKET_BYTES}")


# H.264 and HEVC in MP4 and Matroska

MARKS = (b"\0\0\0", b"\0\0\1", b"\0\0\2")
"""Bytes that an encoder never writes in a coded picture: it puts a 3 after two zeros."""


def has_broken_units(packet: bytes, codec: str, extradata: bytes | None) -> bool:
    """Return whether a packet's units do not fill it, or a coded picture holds bytes that no encoder writes.

    False if the units are not preceded by their lengths.

    Source: H.264 7.4.1, HEVC 7.4.2.
    """
    if codec not in ("h264", "hevc") or not extradata or extradata[0] != 1 or len(extradata) < 23:
        return False
    length_bytes = 1 + (extradata[4 if codec == "h264" else 21] & 3)
    position = 0
    while position < len(packet):
        first = position + length_bytes
        position = first + int.from_bytes(packet[position:first], "big")
        if position > len(packet):
            return True
        kind = packet[first] if first < position else 0
        is_picture = 1 <= kind & 31 <= 5 if codec == "h264" else kind >> 1 & 63 < 32
        if is_picture:
            unit = packet[first:position].rstrip(b"\0")
            if any(mark in unit for mark in MARKS):
                return True
    return False
