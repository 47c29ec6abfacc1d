"""For the scripts of this folder: numbered pictures (twelve bits as blocks), calls of ffmpeg, edits of MP4 boxes."""

import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HEIGHT, WIDTH, ROWS, COLUMNS = 48, 64, 3, 4
ONE, NOUGHT = (230, 190, 40), (20, 50, 160)
X264 = "-c:v libx264 -preset ultrafast -crf 12 -pix_fmt yuv420p -bf 0"
HEVC = "-c:v libx265 -preset ultrafast -crf 12 -pix_fmt yuv420p -x265-params log-level=none:bframes=0"
VP8 = "-c:v libvpx -deadline realtime -crf 5 -b:v 1M"
MPEG4 = "-c:v mpeg4 -q:v 2 -bf 0"


def picture(number):
    bits = (number >> np.arange(ROWS * COLUMNS) & 1).reshape(ROWS, COLUMNS, 1)
    blocks = np.where(bits, np.array(ONE), np.array(NOUGHT)).astype(np.uint8)
    return blocks.repeat(HEIGHT // ROWS, axis=0).repeat(WIDTH // COLUMNS, axis=1)


def source(numbers, rate="25"):
    """The input options of ffmpeg for a video of these pictures."""
    file = Path(tempfile.gettempdir()) / f"numbered_{abs(hash(tuple(numbers)))}.rgb"
    if not file.exists():
        file.write_bytes(b"".join(picture(n).tobytes() for n in numbers))
    return f"-f rawvideo -pix_fmt rgb24 -s {WIDTH}x{HEIGHT} -r {rate} -i {file}"


def tone(seconds, rate=48000):
    return f"-f lavfi -t {seconds} -i sine=330:{rate}"


def ffmpeg(arguments, out):
    command = ["ffmpeg", "-v", "error", "-nostdin", "-y", "-threads", "1"]
    subprocess.run([*command, *arguments.split(), str(out)], check=True)
    return Path(out)


# MP4 boxes
HOLDERS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts"}


def boxes(data):
    """[(kind, content)], content a list for boxes that hold others."""
    found, at = [], 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        head = 8
        if size == 1:
            size, head = struct.unpack(">Q", data[at + 8 : at + 16])[0], 16
        content = data[at + head : at + size]
        found.append([kind, boxes(content) if kind in HOLDERS else content])
        at += size
    return found


def unboxed(tree):
    out = b""
    for kind, content in tree:
        content = unboxed(content) if isinstance(content, list) else content
        out += struct.pack(">I4s", len(content) + 8, kind) + content
    return out


def find(tree, *path):
    for box in tree:
        if box[0] == path[0]:
            return box if len(path) == 1 else find(box[1], *path[1:])
    raise KeyError(path)


STBL = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


def samples_of(data, tree):
    stbl = find(tree, *STBL)[1]
    stsz = find(stbl, b"stsz")[1]
    fixed, count = struct.unpack(">II", stsz[4:12])
    sizes = [fixed] * count if fixed else list(struct.unpack(f">{count}I", stsz[12:]))
    stco = find(stbl, b"stco")[1]
    offsets = struct.unpack(f">{(len(stco) - 8) // 4}I", stco[8:])
    stsc = find(stbl, b"stsc")[1]
    runs = [struct.unpack(">3I", stsc[i : i + 12]) for i in range(8, len(stsc), 12)]
    samples, n = [], 0
    for chunk, offset in enumerate(offsets, 1):
        per = [r[1] for r in runs if r[0] <= chunk][-1]
        for _ in range(per):
            samples.append(data[offset : offset + sizes[n]])
            offset += sizes[n]
            n += 1
    return samples


def rewritten(path, samples=None, deltas=None, matrix=None, edits=None):
    """Write an MP4 of one stream again with other samples, durations (in the stream's ticks, one a sample), matrix, or
    edit list [(duration in the file's ticks, start in the stream's ticks)]."""
    data = Path(path).read_bytes()
    tree = [box for box in boxes(data) if box[0] not in (b"free", b"mdat")]
    samples = samples_of(data, tree) if samples is None else samples
    stbl = find(tree, *STBL)[1]
    find(stbl, b"stsz")[1] = struct.pack(f">III{len(samples)}I", 0, 0, len(samples), *map(len, samples))
    find(stbl, b"stsc")[1] = struct.pack(">II3I", 0, 1, 1, len(samples), 1)
    if deltas is not None:
        find(stbl, b"stts")[1] = struct.pack(">II", 0, len(deltas)) + b"".join(struct.pack(">II", 1, d) for d in deltas)
    if matrix is not None:
        tkhd = find(tree, b"moov", b"trak", b"tkhd")
        at = 40 if tkhd[1][0] == 0 else 52
        tkhd[1] = tkhd[1][:at] + struct.pack(">9i", *matrix) + tkhd[1][at + 36 :]
    if edits is not None:
        find(tree, b"moov", b"trak", b"edts", b"elst")[1] = struct.pack(">II", 0, len(edits)) + b"".join(
            struct.pack(">IiI", duration, start, 1 << 16) for duration, start in edits
        )
    find(stbl, b"stco")[1] = struct.pack(">III", 0, 1, 0)
    head = unboxed(tree)
    find(stbl, b"stco")[1] = struct.pack(">III", 0, 1, len(head) + 8)
    Path(path).write_bytes(unboxed(tree) + unboxed([[b"mdat", b"".join(samples)]]))
    return Path(path)


ONE16, ONE30 = 1 << 16, 1 << 30


def matrix(a, b, c, d, x=0, y=0):
    return (a * ONE16, b * ONE16, 0, c * ONE16, d * ONE16, 0, x * ONE16, y * ONE16, ONE30)


# Ogg pages
def _crc_table():
    table = []
    for i in range(256):
        r = i << 24
        for _ in range(8):
            r = (r << 1) ^ 0x04C11DB7 if r & 0x80000000 else r << 1
        table.append(r & 0xFFFFFFFF)
    return table


CRC = _crc_table()


def ogg_crc(page):
    crc = 0
    for byte in page:
        crc = ((crc << 8) & 0xFFFFFFFF) ^ CRC[(crc >> 24) ^ byte]
    return crc


def ogg_packets(data):
    """Packets of an Ogg file of one stream, and its serial number."""
    at, packets, part = 0, [], b""
    serial = struct.unpack("<I", data[14:18])[0]
    while at < len(data):
        n = data[at + 26]
        lacing = data[at + 27 : at + 27 + n]
        body = at + 27 + n
        for size in lacing:
            part += data[body : body + size]
            body += size
            if size < 255:
                packets.append(part)
                part = b""
        at = body
    return packets, serial


def ogg_page(serial, sequence, flags, granule, packet):
    lacing = bytes([255] * (len(packet) // 255) + [len(packet) % 255])
    head = struct.pack("<4sBBqIIIB", b"OggS", 0, flags, granule, serial, sequence, 0, len(lacing)) + lacing
    page = head + packet
    return page[:22] + struct.pack("<I", ogg_crc(page)) + page[26:]


def theora_with_empty(path, is_empty):
    """Replace Theora packets by empty ones ("show the last picture again"), a page for each packet."""
    packets, serial = ogg_packets(Path(path).read_bytes())
    shift = ((packets[0][40] & 3) << 3) | (packets[0][41] >> 5)
    out, key = b"", 0
    for i, packet in enumerate(packets[:3]):
        out += ogg_page(serial, i, 2 if i == 0 else 0, 0, packet)
    frames = packets[3:]
    for i, packet in enumerate(frames):
        if packet and not packet[0] & 0x40:
            key = i
        packet = b"" if is_empty(i) else packet
        granule = ((key + 1) << shift) | (i - key)
        out += ogg_page(serial, i + 3, 4 if i == len(frames) - 1 else 0, granule, packet)
    Path(path).write_bytes(out)
    return Path(path)
