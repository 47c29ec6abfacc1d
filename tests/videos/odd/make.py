#!/usr/bin/env python
"""make.py [NAME...]: make the files of this folder again, with make_more.py. Needs numpy, PyAV and ffmpeg 5.1."""

import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from tools import (
    HEIGHT,
    HEVC,
    MPEG4,
    VP8,
    WIDTH,
    X264,
    boxes,
    ffmpeg,
    matrix,
    rewritten,
    samples_of,
    source,
    theora_with_empty,
    tone,
)

HERE = Path(__file__).parent
SCRATCH = Path(tempfile.gettempdir())
N75 = range(75)
MADE = {}


def file(name):
    def keep(function):
        MADE[name] = function
        return function

    return keep


# 1. Opus
@file("opus_25fps.webm")
def _(out):
    ffmpeg(f"{source(N75)} {tone(3)} {VP8} -c:a libopus", out)


@file("opus_25fps.mkv")
def _(out):
    ffmpeg(f"{source(N75)} {tone(3)} {X264} -c:a libopus", out)


@file("opus_real_clip_24fps.webm")
def _(out):  # a clip with grain and movement, as a camera's: noise over a moving gradient; and the number drawn over it
    ffmpeg(f"{source(range(72), 24)} {tone(3)} -vf noise=alls=18:allf=t:all_seed=7 {VP8} -c:a libopus", out)


@file("opus_picture_block_at_0.webm")
def _(out):  # as browsers, YouTube and newer FFmpeg write it: first picture and first sound both at block time 0
    import av  # FFmpeg 8 or later writes it so; 5.1 puts the first picture at 7 ms

    before = ffmpeg(f"{source(N75)} {VP8}", SCRATCH / "only_pictures.webm")
    with av.open(str(before)) as pictures, av.open(str(out), "w", format="webm") as written:
        copy = written.add_stream_from_template(pictures.streams.video[0])
        sound = written.add_stream("libopus", rate=48000, layout="mono")
        packets = []
        for packet in pictures.demux(video=0):
            if packet.dts is not None:
                packet.stream = copy
                packets.append(packet)
        samples = (8000 * np.sin(np.arange(3 * 48000) / 20)).astype(np.int16)[None]
        for n in range(150):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[:, n * 960 : n * 960 + 960]), "s16", "mono")
            frame.rate, frame.pts = 48000, n * 960
            packets += sound.encode(frame)
        packets += sound.encode(None)
        for packet in sorted(packets, key=lambda p: p.dts * p.time_base):
            written.mux(packet)


# 2. Mirrored
def mirrored(out, *m, codec=X264):
    ffmpeg(f"{source(N75)} {codec}", out)
    rewritten(out, matrix=matrix(*m))


@file("mirrored_hflip.mp4")
def _(out):
    mirrored(out, -1, 0, 0, 1, WIDTH, 0)


@file("mirrored_vflip.mp4")
def _(out):
    mirrored(out, 1, 0, 0, -1, 0, HEIGHT)


@file("mirrored_and_turned.mp4")
def _(out):
    mirrored(out, 0, 1, 1, 0)


# 3. Repeated pictures without bytes
PAIRS = [n - n % 2 for n in range(75)]


@file("theora_with_repeated_frames.ogv")
def _(out):
    ffmpeg(f"{source(PAIRS)} -c:v libtheora -q:v 9 -pix_fmt yuv420p -g 12", out)
    theora_with_empty(out, lambda i: i % 2 == 1 and i % 12 != 0)


def emptied(out, codec, is_empty, numbers=PAIRS):
    ffmpeg(f"{source(numbers)} {codec}", out)
    data = out.read_bytes()
    samples = samples_of(data, boxes(data))
    rewritten(out, [b"" if is_empty(i) else sample for i, sample in enumerate(samples)])


@file("empty_samples_mpeg4_mp4.mp4")
def _(out):
    emptied(out, MPEG4 + " -g 12", lambda i: i % 2 == 1)


@file("empty_samples_hevc_mp4.mp4")
def _(out):
    emptied(
        out,
        HEVC + ":keyint=12:min-keyint=12:scenecut=0",
        lambda i: i % 6 == 5,
        [n if n % 6 != 5 else n - 1 for n in N75],
    )


# 4. Cut
def cut(out, share):
    data = out.read_bytes()
    out.write_bytes(data[: int(len(data) * share)])


@file("cut_unnoticed.gif")
def _(out):
    ffmpeg(f"{source(N75)} -c:v gif", out)
    cut(out, 0.6)


@file("cut_unnoticed.wmv")
def _(out):
    ffmpeg(f"{source(N75)} {tone(3, 44100)} -c:v wmv2 -q:v 2 -c:a wmav2", out)
    cut(out, 0.6)


# 5. FLV
@file("flv_sound_begins_at_9_s.flv")
def _(out):
    ffmpeg(
        f"{source(range(275))} -itsoffset 9 {tone(2, 44100)} -map 0 -map 1"
        " -c:v flv -q:v 2 -c:a mp3 -flvflags no_metadata",
        out,
    )
    declared(out, 1)


def declared(out, flags):  # a live recording: the header names only the streams that were there at first
    data = bytearray(out.read_bytes())
    data[4] = flags
    out.write_bytes(data)


# 6. Colour tags
def tagged(out, bsf, codec=X264):
    ffmpeg(f"{source(N75)} {codec} -bsf:v {bsf}", out)


@file("matrix_8_ycgco.mp4")
def _(out):
    tagged(out, "h264_metadata=matrix_coefficients=8")


@file("matrix_10_bt2020c.mp4")
def _(out):
    tagged(out, "h264_metadata=matrix_coefficients=10")


@file("transfer_9_log.mp4")
def _(out):
    tagged(out, "h264_metadata=transfer_characteristics=9")


# 7. Equal times
@file("times_equal_in_pairs.mp4")
def _(out):
    ffmpeg(f"{source(range(76))} {X264} -video_track_timescale 25", out)
    rewritten(out, deltas=[0 if i % 2 == 0 else 2 for i in range(76)])


@file("times_rounded_to_0.1_s.mkv")
def _(out):
    whole = ffmpeg(f"{source(N75)} {X264}", SCRATCH / "whole.mkv")
    ffmpeg(f"-i {whole} -c copy -bsf:v setts=pts=trunc(PTS/100)*100:dts=trunc(DTS/100)*100", out)


# 8. Clock back
def joined(out, kind, first, second, codec, n=50):
    parts = []
    for i, offset in enumerate((first, second)):
        part = SCRATCH / f"part{i}.{kind}"
        ffmpeg(f"{source(range(i * n, i * n + n))} {codec} -output_ts_offset {offset} -muxdelay 0 -muxpreload 0", part)
        parts.append(part.read_bytes())
    out.write_bytes(b"".join(parts))


@file("clock_back_0.6_s.ts")
def _(out):
    joined(out, "ts", 10, 10 + 2 - 0.6, X264)


# 9. AVI to a pipe
def piped(out, arguments, kind):
    with open(out, "wb") as f:
        a = subprocess.Popen(
            ["ffmpeg", "-v", "error", "-nostdin", *arguments.split(), "-f", kind, "-"], stdout=subprocess.PIPE
        )
        subprocess.run(["cat"], stdin=a.stdout, stdout=f, check=True)
        assert a.wait() == 0


@file("avi_written_to_a_pipe.avi")
def _(out):
    piped(out, f"{source(N75)} {MPEG4}", "avi")


# 10. Suffixes
@file("camera.m2ts")
def _(out):
    ffmpeg(f"{source(N75)} {tone(3)} {X264} -c:a ac3", out)


# 11. From public reports
@file("still_screen_12_s.webm")
def _(out):  # as screen recorders write it: no pictures while nothing moves, here from 1.96 to 14 s
    ffmpeg(f"{source(range(100))} -vf setpts='(N/25+12*gte(N\\,50))/TB' -fps_mode vfr {VP8}", out)


@file("edit_list_two_parts.mp4")
def _(out):  # as phones' editors write it: of 4 s, 0 to 1 s and 3 to 4 s are shown
    ffmpeg(f"{source(range(100))} {X264} -g 25 -video_track_timescale 1000", out)
    rewritten(out, edits=[(1000, 0), (1000, 3000)])


@file("picture_track_first.mkv")
def _(out):  # as cameras write it: a track with one JPEG, then the video, which is marked as the default
    codecs = "-c:v:0 mjpeg -pix_fmt:v:0 yuvj420p -q:v:0 2"
    codecs += " -c:v:1 libx264 -preset:v:1 ultrafast -pix_fmt:v:1 yuv420p -bf:v:1 0"
    ffmpeg(
        f"{source([2048])} {source(N75)} -map 0:v -map 1:v {codecs} -disposition:v:0 0 -disposition:v:1 default", out
    )


def gif_delay(out, hundredths):
    data, at = bytearray(out.read_bytes()), 0
    while (at := data.find(b"\x21\xf9\x04", at)) >= 0:
        data[at + 4 : at + 6] = struct.pack("<H", hundredths)
        at += 8
    out.write_bytes(data)


@file("gif_delay_0.01_s.gif")
def _(out):  # as many GIFs on the web: a delay of 1/100 s, which browsers show as 1/10 s
    ffmpeg(f"{source(N75)} -c:v gif", out)
    gif_delay(out, 1)


def main(names):
    for name, function in MADE.items():
        if not names or name in names:
            function(HERE / name)
            print(name, (HERE / name).stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
