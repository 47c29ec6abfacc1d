"""Check a file's length and layout against its own headers. No frames are decoded.

After damage, libavformat searches for the next readable part and does not report what it skipped. The walkers here
parse less, but report where a file becomes invalid. Every step advances by at least one header, whatever a file
declares.
"""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .input_file import num_bytes_of, open_file

EBML, SEGMENT, CLUSTER, CRC_32 = 0x1A45DFA3, 0x18538067, 0x1F43B675, 0xBF
IN_SEGMENT = {0x114D9B74, 0x1549A966, 0x1654AE6B, CLUSTER, 0x1C53BB6B, 0x1254C367, 0x1043A770, 0x1941A469, 0xEC, CRC_32}
IN_CLUSTER = {0xE7, 0xA3, 0xA0, 0xAB, 0xA7, 0x5854, 0xAF, 0xEC, CRC_32}
"""Ids of the elements that may appear in a segment and in a cluster (RFC 9559)."""
MAX_CHECKED_BYTES = 64 << 20
"""Maximum size of an element whose checksum is checked."""
TS_PACKETS = ((188, 0), (192, 4), (204, 0))
"""(bytes of a packet, position of its sync byte "G"): MPEG-TS, M2TS, and MPEG-TS with error correction."""
MIN_CUT_SECONDS = 0.01
"""An edit list hides a part if its total is shorter than the track by more than this; a smaller difference is rounding.
"""


class _Broken(Exception):
    """Reports the position at which a file becomes invalid, and the reason."""


def structure_damage(path: Path, containers: frozenset[str], heartbeat: Callable[[], None] = lambda: None) -> str:
    """Describe what a file's own headers show to be missing or damaged.

    Empty if they show no damage, or if the format is not checked here.
    """
    with open_file(path) as file:
        num_bytes = num_bytes_of(file.fileno())
        try:
            if "matroska" in containers:
                _walk_matroska(file, num_bytes, heartbeat)
            elif "mp4" in containers:
                _walk_mp4(file, num_bytes, heartbeat)
            elif "avi" in containers:
                _walk_avi(file, num_bytes, heartbeat)
            elif "mpegts" in containers:
                _check_mpegts(file, num_bytes)
            elif "ogg" in containers:
                _walk_ogg(file, num_bytes, heartbeat)
            elif "asf" in containers:
                _check_asf(file, num_bytes)
            elif "flv" in containers:
                _walk_flv(file, num_bytes, heartbeat)
            elif "gif" in containers:
                _walk_gif(file, num_bytes, heartbeat)
        except _Broken as broken:
            return str(broken)
    return ""


def _must_fit(end: int, num_bytes: int, what: str) -> None:
    if end > num_bytes:
        raise _Broken(f"{what} should end at byte {end:,}, but the file ends at {num_bytes:,}")


# Matroska and WebM


def _element(file: BinaryIO, position: int) -> tuple[int, int | None, int] | None:
    """Return (id, size, start of the content) of the element at ``position``.

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


def _walk_matroska(file: BinaryIO, num_bytes: int, heartbeat: Callable[[], None]) -> None:
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
        heartbeat()
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
    """Check an element's checksum, which is its first child if present."""
    first = _element(file, content)
    if first is None or first[:2] != (CRC_32, 4) or end - first[2] - 4 < 0 or end - first[2] > MAX_CHECKED_BYTES:
        return
    file.seek(first[2])
    expected = int.from_bytes(file.read(4), "little")
    if zlib.crc32(file.read(end - first[2] - 4)) != expected:
        raise _Broken(f"bytes {content:,} to {end:,} do not match their checksum")


# MP4 and QuickTime


def _walk_mp4(file: BinaryIO, num_bytes: int, heartbeat: Callable[[], None]) -> None:
    position = 0
    while position + 8 <= num_bytes:
        heartbeat()
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

UNKNOWN_SIZES = {0, 0xFFFFFFFF}


def _walk_avi(file: BinaryIO, num_bytes: int, heartbeat: Callable[[], None]) -> None:
    """Walk the RIFF chunks, which begin at even positions.

    A writer that could not seek back leaves one of ``UNKNOWN_SIZES``.
    """
    position, ends = 0, []
    while position + 8 <= num_bytes:
        heartbeat()
        while ends and position >= ends[-1]:
            ends.pop()
        file.seek(position)
        head = file.read(8)
        name, size = head[:4], int.from_bytes(head[4:], "little")
        if not ends and name != b"RIFF":
            return  # bytes after the video
        if not all(0x20 <= byte < 0x7F for byte in name):
            raise _Broken(f"its structure breaks at byte {position:,}")
        if name in (b"RIFF", b"LIST") and size in UNKNOWN_SIZES:
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
    """Check that packets are complete."""
    file.seek(0)
    head = file.read(3 * max(size for size, _ in TS_PACKETS))
    for size, first in TS_PACKETS:
        if head[first : 3 * size : size] == b"GGG" and num_bytes % size:
            raise _Broken(f"it ends within a packet: {num_bytes:,} bytes are not whole packets of {size}")


# Ogg


def _walk_ogg(file: BinaryIO, num_bytes: int, heartbeat: Callable[[], None]) -> None:
    """Walk the pages. Each stream numbers its own pages and marks its last one (RFC 3533)."""
    position = 0
    pages: dict[bytes, int] = {}  # {serial number: number of the page before}
    unfinished: set[bytes] = set()
    while position < num_bytes:
        heartbeat()
        file.seek(position)
        head = file.read(27)
        if not head.startswith(b"OggS"[: len(head)]):
            raise _Broken(f"its structure breaks at byte {position:,}")
        _must_fit(position + 27, num_bytes, "a page")
        serial, number = head[14:18], int.from_bytes(head[18:22], "little")
        lengths = file.read(head[26])
        position += 27 + head[26] + sum(lengths)
        _must_fit(position, num_bytes, "a page")
        begins = head[5] & 2  # parts that are chained may have the same serial number
        if serial in pages and number != pages[serial] + 1 and not begins:
            raise _Broken(f"page {number:,} of a stream follows page {pages[serial]:,}")
        pages[serial] = number
        (unfinished.discard if head[5] & 4 else unfinished.add)(serial)
    if unfinished:
        raise _Broken("it ends without the last page of a stream")


# ASF, WMV


ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
ASF_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
IS_BROADCAST = 1


def _check_asf(file: BinaryIO, num_bytes: int) -> None:
    """Compare the file's size with the size in its header, unless it was written during a broadcast."""
    file.seek(0)
    head = file.read(30)
    if not head.startswith(ASF_HEADER):
        return
    position = 30
    for _ in range(int.from_bytes(head[24:28], "little")):
        file.seek(position)
        properties = file.read(92)
        if len(properties) < 92:
            return
        if properties.startswith(ASF_PROPERTIES) and not properties[88] & IS_BROADCAST:
            _must_fit(int.from_bytes(properties[40:48], "little"), num_bytes, "its content")
        position += max(int.from_bytes(properties[16:24], "little"), 24)


# FLV

FLV_TAGS = {8, 9, 15, 18}


def _walk_flv(file: BinaryIO, num_bytes: int, heartbeat: Callable[[], None]) -> None:
    file.seek(5)
    position = int.from_bytes(file.read(4), "big") + 4
    while position + 11 <= num_bytes:
        heartbeat()
        file.seek(position)
        head = file.read(11)
        if head[0] & 0x1F not in FLV_TAGS:
            raise _Broken(f"its structure breaks at byte {position:,}")
        position += 11 + int.from_bytes(head[1:4], "big") + 4
        _must_fit(position - 4, num_bytes, "a tag")


# GIF

GIF_EXTENSION, GIF_IMAGE, GIF_END = 0x21, 0x2C, 0x3B
HEADER_BYTES, IMAGE_BYTES = 13, 10


def _walk_gif(file: BinaryIO, num_bytes: int, heartbeat: Callable[[], None]) -> None:
    position = HEADER_BYTES
    file.seek(0)
    head = file.read(HEADER_BYTES)
    position += _colours_bytes(head[10])
    while position < num_bytes:
        heartbeat()
        file.seek(position)
        block = file.read(IMAGE_BYTES)
        if block[0] == GIF_END:
            return
        if block[0] == GIF_EXTENSION:
            position += 2
        elif block[0] == GIF_IMAGE and len(block) == IMAGE_BYTES:
            position += IMAGE_BYTES + _colours_bytes(block[9]) + 1
        else:
            raise _Broken(f"its structure breaks at byte {position:,}")
        length = 1
        while length:
            file.seek(position)
            length = int.from_bytes(file.read(1), "big")
            position += 1 + length
            if position > num_bytes:
                break
    raise _Broken(f"it has no end: it stops at byte {num_bytes:,}")


def _colours_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def has_gif_image(packet: bytes) -> bool:
    """Return whether a GIF's packet holds an image; the last packet may hold only a comment."""
    position = HEADER_BYTES + _colours_bytes(packet[10]) if packet.startswith(b"GIF8") and len(packet) > 10 else 0
    while position + 2 < len(packet) and packet[position] == GIF_EXTENSION:
        position += 2
        while position < len(packet) and packet[position]:
            position += 1 + packet[position]
        position += 1
    return packet[position : position + 1] == bytes([GIF_IMAGE])


# Edit lists of MP4 and QuickTime

HOLDERS = {b"moov", b"trak", b"mdia", b"edts"}
MAX_TABLE_BYTES = 1 << 20


def edits_leave_out(path: Path) -> bool:
    """Return whether the edit list of a video track shows less than all of it, or shows it in several parts.

    Examples with a track of 10 s, one digit for each second, 0123456789:

        shown   0123456789     False: all of it, perhaps later (an empty edit before it only delays)
        shown     234567       True: 4 s are skipped
        shown   01234 789      True: two parts
    """
    with open_file(path) as file:
        tracks = _edited_tracks(file, 0, num_bytes_of(file.fileno()), {})
    return any(_leaves_out(track) for track in tracks)


def _edited_tracks(file: BinaryIO, position: int, end: int, found: dict[bytes, bytes]) -> list[dict[bytes, bytes]]:
    """Return {box name: table} of each track; each includes the movie's tables."""
    tracks = []
    while position + 8 <= end:
        file.seek(position)
        head = file.read(16)
        size, name, head_bytes = int.from_bytes(head[:4], "big"), head[4:8], 8
        if size == 1:
            size, head_bytes = int.from_bytes(head[8:16], "big"), 16
        if size < head_bytes or position + size > end:
            break
        inside = position + head_bytes
        if name in HOLDERS:
            of_track = dict(found) if name == b"trak" else found
            tracks += _edited_tracks(file, inside, position + size, of_track)
            if name == b"trak":
                tracks.append(of_track)
        elif name in (b"mvhd", b"mdhd", b"elst", b"hdlr") and size < MAX_TABLE_BYTES:
            file.seek(inside)
            found[name] = file.read(size - head_bytes)
        position += size
    return tracks


def _leaves_out(track: dict[bytes, bytes]) -> bool:
    try:
        if track[b"hdlr"][8:12] != b"vide":
            return False
        ticks_of_movie, _ = _clock_of(track[b"mvhd"])
        ticks_of_media, media_ticks = _clock_of(track[b"mdhd"])
        edits = track[b"elst"]
        times = "Qq" if edits[0] == 1 else "Ii"
        parts = [ticks for ticks, begins, _ in struct.iter_unpack(f">{times}I", edits[8:]) if begins >= 0]
    except (KeyError, IndexError, struct.error):
        return False
    shown = sum(parts) / max(ticks_of_movie, 1)
    return len(parts) > 1 or 0 < shown < media_ticks / max(ticks_of_media, 1) - MIN_CUT_SECONDS


def _clock_of(header: bytes) -> tuple[int, int]:
    """Return the ticks a second, and the duration in ticks, of a header of a movie or its media."""
    return struct.unpack_from(*((">IQ", header, 20) if header[0] == 1 else (">II", header, 12)))


# H.264 and HEVC in MP4 and Matroska

MARKS = (b"\0\0\0", b"\0\0\1", b"\0\0\2")
"""Byte sequences that an encoder never writes into a coded frame: it inserts a 3 after two zeros."""


def has_broken_units(packet: bytes, codec: str, extradata: bytes | None) -> bool:
    """Return whether a packet's units do not fill it, or a coded frame contains one of ``MARKS``.

    False for streams whose units have no length fields.

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
