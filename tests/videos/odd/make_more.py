#!/usr/bin/env python
"""make_more.py: make the other files of this folder again, in the current folder. Needs numpy and ffmpeg 5.1."""

import struct
from pathlib import Path

import numpy as np
from tools import STBL, X264, boxes, ffmpeg, find, picture, samples_of, source, unboxed

OUT = Path(".")


def top_boxes(data):
    at = 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        yield kind, data[at : at + size]
        at += size


def segments(name, options, drop=10, n=325):
    """A fragmented MP4 without its first fragments, as a stream that is joined in the middle."""
    file = ffmpeg(
        f"{source(range(n))} {options} -g 25 -movflags frag_keyframe+empty_moov+default_base_moof", OUT / ("x_" + name)
    )
    kept, seen = b"", 0
    for kind, box in top_boxes(file.read_bytes()):
        seen += kind == b"moof"
        if kind not in (b"mfra", b"sidx") and not (kind in (b"moof", b"mdat") and seen <= drop):
            kept += box
    (OUT / name).write_bytes(kept)
    file.unlink()


def negative_offsets(name, options, offset, sync, start, n=100):
    """Composition offsets below 0 (ctts version 1), an edit list from ``start``, key frames only at ``sync``."""
    file = ffmpeg(f"{source(range(n))} {options} -g 25 -use_editlist 1", OUT / name)
    data = file.read_bytes()
    tree = [box for box in boxes(data) if box[0] not in (b"free", b"mdat")]
    samples, stbl = samples_of(data, tree), find(tree, *STBL)[1]
    find(stbl, b"stss")[1] = struct.pack(f">II{len(sync)}I", 0, len(sync), *sync)
    stbl[:] = [box for box in stbl if box[0] != b"ctts"]
    stbl.append([b"ctts", struct.pack(">IIIi", 1 << 24, 1, n, -offset * 512)])
    find(tree, b"moov", b"trak", b"edts", b"elst")[1] = struct.pack(
        ">IIIiI", 0, 1, (n - start) * 40, (start - offset) * 512, 1 << 16
    )
    find(stbl, b"stsz")[1] = struct.pack(f">III{n}I", 0, 0, n, *map(len, samples))
    find(stbl, b"stsc")[1] = struct.pack(">II3I", 0, 1, 1, n, 1)
    find(stbl, b"stco")[1] = struct.pack(">III", 0, 1, 0)
    head = unboxed(tree)
    find(stbl, b"stco")[1] = struct.pack(">III", 0, 1, len(head) + 8)
    file.write_bytes(unboxed(tree) + unboxed([[b"mdat", b"".join(samples)]]))


def comment_after_last(name):
    palette = "-filter_complex [0:v]split[a][b];[a]palettegen[p];[b][p]paletteuse"
    file = ffmpeg(f"{source(range(20), '10')} {palette}", OUT / name)
    data, words = file.read_bytes(), b"made by hand"
    file.write_bytes(data[:-1] + b"\x21\xfe" + bytes([len(words)]) + words + b"\0\x3b")


def colr_differs(name, options):
    """The colr box says BT.709, the stream another matrix."""
    file = ffmpeg(f"{source(range(75))} {options} -movflags write_colr", OUT / name)
    data = bytearray(file.read_bytes())
    at = data.find(b"colrnclx")
    data[at + 8 : at + 14] = struct.pack(">HHH", 1, 1, 1)
    file.write_bytes(data)


def no_reordering():
    """The header announces that pictures are reordered; none is, and decoding times are the presentation times."""
    options = "-c:v libx264 -preset ultrafast -crf 12 -pix_fmt yuv420p -bf 2 -b_strategy 0 -g 250"
    options += " -force_key_frames expr:1 -x264-params bframes=2:b-pyramid=1"
    file = ffmpeg(f"{source(range(75))} {options}", OUT / "x.mp4")
    ffmpeg(f"-i {file} -c copy -bsf:v setts=dts=PTS", OUT / "depth_no_reordering.ts")
    ffmpeg(f"-i {OUT / 'depth_no_reordering.ts'} -c copy", OUT / "depth_no_reordering.mp4")
    file.unlink()
    (OUT / "depth_no_reordering.ts").unlink()


class Bits:
    def __init__(self, bits=()):
        self.bits = list(bits)

    def u(self, n, value):
        self.bits += [value >> i & 1 for i in range(n - 1, -1, -1)]
        return self

    def ue(self, *values):
        for value in values:
            n = (value + 1).bit_length()
            self.u(n - 1, 0).u(n, value + 1)
        return self

    def align(self):
        return self.u(-len(self.bits) % 8, 0)

    def end(self):
        return np.packbits(np.array(self.u(1, 1).align().bits, np.uint8)).tobytes()


def unit(importance, kind, content):
    out, zeros = bytearray(), 0
    for byte in content:
        if zeros >= 2 and byte <= 3:
            out.append(3)
            zeros = 0
        out.append(byte)
        zeros = 0 if byte else zeros + 1
    return b"\0\0\0\1" + bytes([importance << 5 | kind]) + bytes(out)


def planes(number):
    rgb = picture(number).astype(float)
    r, g, b = np.moveaxis(np.concatenate([rgb, np.repeat(rgb[-1:], 16, 0)]), -1, 0)
    y, u, v = (
        16 + 0.257 * r + 0.504 * g + 0.098 * b,
        128 - 0.148 * r - 0.291 * g + 0.439 * b,
        128 + 0.439 * r - 0.368 * g - 0.071 * b,
    )
    u, v = (c.reshape(32, 2, 32, 2).mean((1, 3)) for c in (u, v))
    return [np.clip(np.rint(c), 1, 254).astype(np.uint8) for c in (y, u, v)]


def fields(n, unimportant=lambda i: i % 2 == 1):
    """H.264 of field pictures (PAFF), each macroblock uncompressed; 64x64, cut to 64x48."""
    sps = (
        Bits().u(8, 77).u(8, 0).u(8, 30).ue(0, 4, 2, 1).u(1, 0).ue(3, 1).u(1, 0).u(1, 0).u(1, 1).u(1, 1).ue(0, 0, 0, 4)
    )
    pps = Bits().ue(0, 0).u(2, 0).ue(0, 0, 0).u(3, 0).ue(0, 0, 0).u(3, 4)
    out, references = unit(3, 7, sps.u(1, 0).end()) + unit(3, 8, pps.end()), 0
    for i in range(n):
        for parity in (0, 1):
            first = i == parity == 0
            bits = Bits().ue(0, 7, 0).u(8, references % 256).u(1, 1).u(1, parity)
            if first:
                bits.ue(0)
            if not unimportant(i):
                bits.u(2 if first else 1, 0)
            bits.ue(0, 1)
            for block in range(8):
                row, column = divmod(block, 4)
                bits.ue(25).align()
                for plane, side in zip(planes(i), (16, 8, 8), strict=True):
                    part = plane[parity::2][row * side :, column * side :][:side, :side]
                    bits.bits += np.unpackbits(np.ascontiguousarray(part)).tolist()
            out += unit(0, 9, Bits().u(3, 0).end())
            out += unit(0 if unimportant(i) else 2, 5 if first else 1, bits.end())
        references += not unimportant(i)
    return out


def paff(n=25):
    raw = OUT / "x.264"
    raw.write_bytes(fields(n))
    ffmpeg(f"-r 50 -f h264 -i {raw} -c copy -bsf:v setts=ts=N*1800", OUT / "fields_h264.ts")
    raw.unlink()


if __name__ == "__main__":
    segments("segments_from_10_s.mp4", X264)
    negative_offsets("edit_before_sync_h264.mp4", X264, 25, [51, 76], 51)
    comment_after_last("comment_after_last.gif")
    colr_differs("colr_box_differs_h264.mp4", f"{X264} -x264-params colormatrix=smpte170m")
    no_reordering()
    paff()
