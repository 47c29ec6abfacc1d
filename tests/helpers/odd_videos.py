"""Odd videos, made by the ffmpeg program from one source whose pictures are numbered: for each kind, how it is written.

``KINDS`` holds {name: (suffix, options)}, options being those of one or several calls of the program. ``SOURCE`` in
them stands for the numbered pictures, 75 of them at 25 a second, ``{before}`` for the file that the call before wrote,
``{out}`` for the file to write, and ``{more}`` for one that is put after the one before.
"""

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

NUM_PICTURES = 75
SOURCE = "-f rawvideo -pix_fmt rgb24 -s 64x48 -framerate 25 -i {source}"
SOUND = "-f lavfi -t 3 -i sine=330:44100"
X264 = "-c:v libx264 -preset ultrafast -crf 12 -pix_fmt yuv420p"
NO_B, TWO_B, PYRAMID = "-bf 0", "-bf 2 -x264-params b-adapt=0", "-bf 5 -x264-params b-adapt=0:b-pyramid=normal:ref=4"
HEVC = "-c:v libx265 -preset ultrafast -crf 12 -x265-params log-level=none"
MPEG4, XVID, MPEG2 = "-c:v mpeg4 -q:v 2", "-c:v libxvid -q:v 2", "-c:v mpeg2video -q:v 2 -pix_fmt yuv420p"
VP9 = "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -crf 12 -b:v 0"
AV1 = "-c:v libsvtav1 -preset 12 -crf 12 -s 128x96 -sws_flags neighbor"
COPY = "-i {before} -map 0 -c copy"
LARGE = "-vf scale={}:{}:flags=neighbor"


def plain(options: str, *, inputs: str = SOURCE) -> tuple[str, ...]:
    return (f"{inputs} {options} {{out}}",)


def with_sound(options: str, *, picture_late: float = 0, sound_late: float = 0) -> tuple[str, ...]:
    vfr = " -fps_mode vfr" if picture_late else ""  # else the program repeats the first picture from time 0 on
    return (f"-itsoffset {picture_late} {SOURCE} -itsoffset {sound_late} {SOUND} {options}{vfr} {{out}}",)


def again(first: tuple[str, ...], options: str) -> tuple[str, ...]:
    return (*first, f"{options} {{out}}")


def two_parts(options: str, container: str, apart: float = 60) -> tuple[str, ...]:
    return (
        f"{SOURCE} {options} -frames:v 40 {{out}}",
        f"{SOURCE} {options} -vf trim=start_frame=40 -output_ts_offset {apart} {container} {{more}}",
    )


# Frames come at these source numbers' times, in seconds, and at no others.
PAUSES = "-vf setpts='(N/25+0.3*floor(N/7))/TB' -fps_mode vfr"
SLOWER = "-vf setpts='(N/24+0.2*gt(N\\,40)*(N-40))/TB' -fps_mode vfr"
HELD = "-vf setpts='(N/25+1.4*gt(N\\,30))/TB' -fps_mode vfr"
AAC, MP2, PCM = "-c:a aac", "-c:a mp2", "-c:a pcm_s16le"

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    # H.264, in containers that have times and in those that have not
    "h264 mp4": ("mp4", plain(f"{X264} {NO_B}")),
    "h264 mp4 b-frames": ("mp4", plain(f"{X264} {TWO_B}")),
    "h264 mp4 pyramid": ("mp4", plain(f"{X264} {PYRAMID}")),
    "h264 mov": ("mov", plain(f"{X264} {TWO_B}")),
    "h264 mkv": ("mkv", plain(f"{X264} {TWO_B}")),
    "h264 flv": ("flv", plain(f"{X264} {TWO_B}")),
    "h264 nut": ("nut", plain(f"{X264} {TWO_B}")),
    "h264 avi": ("avi", plain(f"{X264} {NO_B}")),
    "h264 avi b-frames": ("avi", plain(f"{X264} {TWO_B}")),
    "h264 avi pyramid": ("avi", plain(f"{X264} {PYRAMID}")),
    "h264 avi b-frames and sound": ("avi", with_sound(f"{X264} {TWO_B} -c:a mp3")),
    "h264 avi key frames often": ("avi", plain(f"{X264} {TWO_B} -g 6")),
    "h264 ts": ("ts", plain(f"{X264} {NO_B}")),
    "h264 ts b-frames": ("ts", plain(f"{X264} {TWO_B}")),
    "h264 ts and sound": ("ts", with_sound(f"{X264} {TWO_B} {AAC}")),
    "h264 m2ts": ("m2ts", with_sound(f"{X264} {TWO_B} -c:a ac3")),
    "h264 raw": ("h264", plain(f"{X264} {TWO_B}")),
    "h264 mxf": ("mxf", plain(f"{X264} {TWO_B}")),
    "h264 3gp": ("3gp", plain(f"{X264} {TWO_B}")),
    "h264 interlaced": ("mp4", plain(f"{X264} {TWO_B} -flags +ilme+ildct -x264-params interlaced=1:b-adapt=0")),
    "h264 interlaced ts": ("ts", plain(f"{X264} -x264-params bff=1:bframes=2:b-adapt=0")),
    "h264 fake interlaced": ("mkv", plain(f"{X264} -x264-params fake-interlaced=1")),
    "h264 10 bit": ("mp4", plain(f"{X264} {TWO_B} -pix_fmt yuv420p10le")),
    "h264 4:4:4": ("mp4", plain(f"{X264} {TWO_B} -pix_fmt yuv444p")),
    "h264 4:2:2 10 bit": ("mkv", plain(f"{X264} {TWO_B} -pix_fmt yuv422p10le")),
    "h264 rgb": ("mp4", plain("-c:v libx264rgb -preset ultrafast -crf 12")),
    "h264 grey": ("mp4", plain(f"{X264} -pix_fmt gray")),
    "h264 odd size": ("mp4", plain(f"{X264} -vf scale=67:51:flags=neighbor -pix_fmt yuv444p")),
    "h264 full range": ("mp4", plain(f"{X264} -pix_fmt yuvj420p")),
    "h264 open gop": ("mp4", plain(f"{X264} -bf 3 -g 12 -x264-params open-gop=1:b-adapt=0")),
    "h264 open gop ts": ("ts", plain(f"{X264} -bf 3 -g 12 -x264-params open-gop=1:b-adapt=0")),
    "h264 open gop cut": (
        "mkv",
        again(plain(f"{X264} -bf 3 -g 12 -x264-params open-gop=1:b-adapt=0"), f"-ss 1 {COPY}"),
    ),
    "h264 intra refresh": ("mp4", plain(f"{X264} -x264-params intra-refresh=1:keyint=12")),
    "h264 lossless": ("mkv", plain("-c:v libx264 -preset ultrafast -qp 0")),
    "h264 slices": ("ts", plain(f"{X264} -x264-params slices=4:bframes=2:b-adapt=0")),
    # Other codecs
    "hevc mp4": ("mp4", plain(f"{HEVC} -pix_fmt yuv420p")),
    "hevc mkv": ("mkv", plain(f"{HEVC}:bframes=3:b-adapt=0 -pix_fmt yuv420p")),
    "hevc ts": ("ts", plain(f"{HEVC}:bframes=3:b-adapt=0 -pix_fmt yuv420p")),
    "hevc raw": ("hevc", plain(f"{HEVC} -pix_fmt yuv420p")),
    "hevc 10 bit": ("mp4", plain(f"{HEVC} -pix_fmt yuv420p10le")),
    "hevc 12 bit": ("mkv", plain(f"{HEVC} -pix_fmt yuv420p12le")),
    "hevc 4:4:4": ("mkv", plain(f"{HEVC} -pix_fmt yuv444p")),
    "hevc open gop": ("mp4", plain(f"{HEVC}:open-gop=1:keyint=12:min-keyint=12:bframes=3:b-adapt=0 -pix_fmt yuv420p")),
    "hevc open gop cut": (
        "mkv",
        again(
            plain(f"{HEVC}:open-gop=1:keyint=12:min-keyint=12:bframes=3:b-adapt=0 -pix_fmt yuv420p"), f"-ss 1 {COPY}"
        ),
    ),
    "av1 mp4": ("mp4", plain(f"{AV1} -pix_fmt yuv420p")),
    "av1 mkv": ("mkv", plain(f"{AV1} -pix_fmt yuv420p")),
    "av1 10 bit": ("webm", plain(f"{AV1} -pix_fmt yuv420p10le")),
    "av1 libaom": ("mp4", plain("-c:v libaom-av1 -usage realtime -cpu-used 8 -crf 12 -pix_fmt yuv420p")),
    "av1 ivf": ("ivf", plain(f"{AV1} -pix_fmt yuv420p")),
    "av1 obu": ("obu", plain(f"{AV1} -pix_fmt yuv420p")),
    "vp8 webm": ("webm", plain("-c:v libvpx -deadline realtime -crf 5 -b:v 1M")),
    "vp8 alternate references": (
        "webm",
        plain("-c:v libvpx -deadline good -auto-alt-ref 1 -lag-in-frames 16 -crf 5 -b:v 1M"),
    ),
    "vp8 avi": ("avi", plain("-c:v libvpx -deadline realtime -crf 5 -b:v 1M")),
    "vp8 ivf": ("ivf", plain("-c:v libvpx -deadline realtime -crf 5 -b:v 1M")),
    "vp9 webm": ("webm", plain(f"{VP9} -pix_fmt yuv420p")),
    "vp9 alternate references": (
        "webm",
        plain("-c:v libvpx-vp9 -deadline good -auto-alt-ref 1 -lag-in-frames 20 -crf 12 -b:v 0"),
    ),
    "vp9 mp4": ("mp4", plain(f"{VP9} -pix_fmt yuv420p")),
    "vp9 4:4:4": ("webm", plain(f"{VP9} -pix_fmt yuv444p")),
    "vp9 10 bit": ("webm", plain(f"{VP9} -pix_fmt yuv420p10le")),
    "vp9 transparent": ("webm", plain(f"{VP9} -pix_fmt yuva420p")),
    "mpeg4 mp4": ("mp4", plain(f"{MPEG4} -bf 2")),
    "mpeg4 raw": ("m4v", plain(f"{MPEG4} -bf 2")),
    "mpeg4 avi": ("avi", plain(MPEG4)),
    "mpeg4 avi b-frames": ("avi", plain(f"{MPEG4} -bf 2")),
    "mpeg4 avi b-frames and sound": ("avi", with_sound(f"{MPEG4} -bf 2 -c:a mp3")),
    "mpeg4 avi adaptive b-frames": ("avi", plain(f"{MPEG4} -bf 4 -b_strategy 1")),
    "mpeg4 avi quarter pixels": ("avi", plain(f"{MPEG4} -bf 2 -flags +qpel")),
    "xvid avi": ("avi", plain(f"{XVID} -bf 0")),
    "xvid avi packed b-frames": ("avi", plain(f"{XVID} -bf 2")),
    "xvid avi unpacked b-frames": ("avi", again(plain(f"{XVID} -bf 2"), f"{COPY} -bsf:v mpeg4_unpack_bframes")),
    "mpeg2 mpg": ("mpg", plain(f"{MPEG2} -bf 2")),
    "mpeg2 mpg and sound": ("mpg", with_sound(f"{MPEG2} -bf 2 {MP2}")),
    "mpeg2 vob": ("vob", with_sound(f"{MPEG2} -bf 2 -c:a ac3")),
    "mpeg2 ts": ("ts", plain(f"{MPEG2} -bf 2")),
    "mpeg2 raw": ("m2v", plain(f"{MPEG2} -bf 2")),
    "mpeg2 avi b-frames": ("avi", plain(f"{MPEG2} -bf 2")),
    "mpeg2 interlaced": ("ts", plain(f"{MPEG2} -bf 2 -flags +ilme+ildct -top 1")),
    "mpeg2 mxf": ("mxf", plain(f"{MPEG2} -bf 2")),
    "mpeg1 mpg": ("mpg", plain("-c:v mpeg1video -q:v 2 -bf 2")),
    "wmv1": ("wmv", plain("-c:v wmv1 -q:v 2")),
    "wmv2 and sound": ("wmv", with_sound("-c:v wmv2 -q:v 2 -c:a wmav2")),
    "wmv2 avi": ("avi", plain("-c:v wmv2 -q:v 2")),
    "ms-mpeg4 v2 avi": ("avi", plain("-c:v msmpeg4v2 -q:v 2")),
    "ms-mpeg4 v3 avi": ("avi", plain("-c:v msmpeg4 -q:v 2")),
    "flv1": ("flv", plain("-c:v flv -q:v 2")),
    "flashsv": ("flv", plain("-c:v flashsv")),
    "h263 3gp": ("3gp", plain("-c:v h263 -q:v 2 -r 25 " + LARGE.format(128, 96))),
    "h261": ("mkv", plain("-c:v h261 -q:v 2 " + LARGE.format(176, 144))),
    "svq1 mov": ("mov", plain("-c:v svq1 -q:v 2")),
    "mjpeg avi": ("avi", plain("-c:v mjpeg -q:v 2")),
    "mjpeg mov": ("mov", plain("-c:v mjpeg -q:v 2 -pix_fmt yuvj422p")),
    "prores": ("mov", plain("-c:v prores_ks -profile:v 3")),
    "prores 4444": ("mov", plain("-c:v prores_ks -profile:v 4 -pix_fmt yuva444p10le")),
    "prores interlaced": ("mov", plain("-c:v prores_ks -flags +ildct -top 1")),
    "dnxhr": ("mov", plain("-c:v dnxhd -profile:v dnxhr_hq -pix_fmt yuv422p " + LARGE.format(256, 128))),
    "dv avi": ("avi", plain("-c:v dvvideo -pix_fmt yuv420p " + LARGE.format(720, 576))),
    "dv raw": ("dv", plain("-c:v dvvideo -pix_fmt yuv420p " + LARGE.format(720, 576))),
    "ffv1 mkv": ("mkv", plain("-c:v ffv1 -level 3")),
    "ffv1 avi": ("avi", plain("-c:v ffv1 -level 3")),
    "huffyuv avi": ("avi", plain("-c:v huffyuv -pix_fmt yuv422p")),
    "utvideo avi": ("avi", plain("-c:v utvideo -pix_fmt gbrp")),
    "magicyuv avi": ("avi", plain("-c:v magicyuv")),
    "png mov": ("mov", plain("-c:v png")),
    "qtrle mov": ("mov", plain("-c:v qtrle")),
    "raw rgb avi": ("avi", plain("-c:v rawvideo -pix_fmt bgr24")),
    "raw yuv nut": ("nut", plain("-c:v rawvideo -pix_fmt yuv420p")),
    "y4m": ("y4m", plain("-pix_fmt yuv420p")),
    "v210 mov": ("mov", plain("-c:v v210")),
    "cinepak avi": ("avi", plain("-c:v cinepak")),
    "msvideo1 avi": ("avi", plain("-c:v msvideo1")),
    "zmbv avi": ("avi", plain("-c:v zmbv")),
    "theora ogg": ("ogv", plain("-c:v libtheora -q:v 9")),
    "theora ogg and sound": ("ogv", with_sound("-c:v libtheora -q:v 9 -c:a libvorbis")),
    "dirac mkv": ("mkv", plain("-c:v vc2 -pix_fmt yuv422p")),
    "snow avi": ("avi", plain("-c:v snow -qscale 2")),
    "jpeg 2000 mov": ("mov", plain("-c:v jpeg2000 -q:v 2")),
    "cineform mov": ("mov", plain("-c:v cfhd -pix_fmt yuv422p10le " + LARGE.format(256, 128))),
    "realvideo 1": ("rm", plain("-c:v rv10 -q:v 2 " + LARGE.format(128, 96))),
    "gif": ("gif", plain("")),
    "gif, uneven": ("gif", plain(PAUSES)),
    "apng": ("apng", plain("-f apng")),
    # Times
    "rate 1": ("mp4", plain(f"{X264} {TWO_B} -r 1")),
    "rate 12.5": ("mp4", plain(f"{X264} {TWO_B} -r 25/2")),
    "rate 24000/1001": ("mp4", plain(f"{X264} {TWO_B}", inputs=SOURCE.replace("-r 25", "-r 24000/1001"))),
    "rate 30000/1001 ts": ("ts", plain(f"{X264} {TWO_B}", inputs=SOURCE.replace("-r 25", "-r 30000/1001"))),
    "rate 30000/1001 avi": ("avi", plain(f"{MPEG4} -bf 2", inputs=SOURCE.replace("-r 25", "-r 30000/1001"))),
    "rate 50": ("mkv", plain(f"{X264} {TWO_B}", inputs=SOURCE.replace("-r 25", "-r 50"))),
    "rate 120": ("mp4", plain(f"{X264} {TWO_B}", inputs=SOURCE.replace("-r 25", "-r 120"))),
    "rate 240 mkv": ("mkv", plain(f"{X264} {TWO_B}", inputs=SOURCE.replace("-r 25", "-r 240"))),
    "uneven mp4": ("mp4", plain(f"{X264} {TWO_B} {PAUSES}")),
    "uneven mkv": ("mkv", plain(f"{X264} {TWO_B} {PAUSES}")),
    "uneven webm": ("webm", plain(f"{VP9} -pix_fmt yuv420p {PAUSES}")),
    "uneven ts": ("ts", plain(f"{X264} {NO_B} {PAUSES}")),
    "uneven wmv": ("wmv", plain(f"-c:v wmv2 -q:v 2 {PAUSES}")),
    "uneven flv": ("flv", plain(f"{X264} {NO_B} {PAUSES}")),
    "slower mp4": ("mp4", plain(f"{X264} {TWO_B} {SLOWER}")),
    "slower mkv": ("mkv", plain(f"{X264} {TWO_B} {SLOWER}")),
    "slower avi": ("avi", plain(f"{MPEG4} -bf 2 {SLOWER}")),
    "coarse clock": ("mp4", plain(f"{X264} {NO_B} -video_track_timescale 25")),
    "fine clock": ("mp4", plain(f"{X264} {TWO_B} -video_track_timescale 1000003")),
    "one picture": ("mp4", plain(f"{X264} -frames:v 1")),
    "two pictures": ("mkv", plain(f"{X264} -frames:v 2")),
    "fragments": ("mp4", plain(f"{X264} {TWO_B} -g 12 -movflags frag_keyframe+empty_moov+default_base_moof")),
    "fragments and sound": ("mp4", with_sound(f"{X264} {TWO_B} -g 12 {AAC} -movflags frag_keyframe+empty_moov")),
    "fragments, delayed index": (
        "mp4",
        plain(f"{X264} {TWO_B} -g 12 -movflags frag_keyframe+delay_moov+dash+global_sidx"),
    ),
    "index first": ("mp4", with_sound(f"{X264} {TWO_B} {AAC} -movflags +faststart")),
    "edit list, cut start": ("mp4", again(plain(f"{X264} {TWO_B} -g 25"), f"-ss 0.5 {COPY}")),
    "edit list, cut start with sound": ("mp4", again(with_sound(f"{X264} {TWO_B} -g 25 {AAC}"), f"-ss 1.3 {COPY}")),
    "edit list, late start": ("mp4", with_sound(f"{X264} {TWO_B} {AAC}", picture_late=0.5)),
    "no edit list": ("mp4", plain(f"{X264} {TWO_B} -use_editlist 0")),
    "no edit list, with sound": ("mp4", with_sound(f"{X264} {TWO_B} {AAC} -use_editlist 0")),
    "negative composition times": ("mp4", plain(f"{X264} {TWO_B} -movflags negative_cts_offsets")),
    "negative decoding times": ("mkv", plain(f"{X264} {TWO_B} -avoid_negative_ts disabled")),
    "negative times mkv": ("mkv", plain(f"{X264} {NO_B} -avoid_negative_ts disabled -output_ts_offset -0.5")),
    "negative times with sound": (
        "mov",
        with_sound(f"{X264} {NO_B} {AAC} -avoid_negative_ts disabled -output_ts_offset -0.5"),
    ),
    "late pictures mkv": ("mkv", with_sound(f"{X264} {TWO_B} {AAC}", picture_late=0.5)),
    "late pictures mov": ("mov", with_sound(f"{X264} {TWO_B} {AAC}", picture_late=1.24)),
    "late pictures ts": ("ts", with_sound(f"{X264} {TWO_B} {AAC}", picture_late=0.5)),
    "late pictures mpg": ("mpg", with_sound(f"{MPEG2} -bf 2 {MP2}", picture_late=0.5)),
    "late pictures flv": ("flv", with_sound(f"{X264} {TWO_B} {AAC}", picture_late=0.5)),
    "late pictures avi": ("avi", with_sound(f"{MPEG4} -bf 2 -c:a mp3", picture_late=0.5)),
    "late pictures wmv": ("wmv", with_sound("-c:v wmv2 -q:v 2 -c:a wmav2", picture_late=0.5)),
    "late pictures by 2 s wmv": ("wmv", with_sound("-c:v wmv2 -q:v 2 -c:a wmav2", picture_late=2)),
    "held picture gif": ("gif", plain(HELD)),
    "held picture apng": ("apng", plain(f"-f apng {HELD}")),
    "held picture flv": ("flv", plain(f"{X264} {TWO_B} {HELD}")),
    "held picture ogg": ("ogv", plain(f"-c:v libtheora -q:v 9 {HELD}")),
    "held picture avi": ("avi", plain(f"{MPEG4} {HELD}")),
    "parts 60 s apart ts": ("ts", two_parts(f"{X264} {NO_B}", "-f mpegts")),
    "parts 60 s apart mpg": ("mpg", two_parts(f"{MPEG2} -bf 2", "-f mpeg")),
    "parts 1000 s apart mpg": ("mpg", two_parts(f"{MPEG2} -bf 2", "-f mpeg", apart=1000)),
    "late pictures ogg": ("ogv", with_sound("-c:v libtheora -q:v 9 -c:a libvorbis", picture_late=0.5)),
    "late pictures by 5 s": ("mp4", with_sound(f"{X264} {TWO_B} {AAC}", picture_late=5)),
    "late pictures by 5 s ts": ("ts", with_sound(f"{X264} {TWO_B} {AAC}", picture_late=5)),
    "late sound mp4": ("mp4", with_sound(f"{X264} {TWO_B} {AAC}", sound_late=0.5)),
    "late sound mkv": ("mkv", with_sound(f"{X264} {TWO_B} {AAC}", sound_late=0.5)),
    "late sound ts": ("ts", with_sound(f"{X264} {TWO_B} {AAC}", sound_late=0.5)),
    "late clock mp4": ("mp4", plain(f"{X264} {TWO_B} -output_ts_offset 20")),
    "late clock mkv": ("mkv", plain(f"{X264} {TWO_B} -output_ts_offset 20")),
    "late clock ts": ("ts", plain(f"{X264} {TWO_B} -output_ts_offset 40000")),
    "clock that wraps": ("ts", plain(f"{X264} {TWO_B} -output_ts_offset 95441.5")),
    # Pictures that are not to be shown as they are stored
    "rotated 90": ("mp4", again(plain(f"{X264} {TWO_B}"), f"{COPY} -metadata:s:v:0 rotate=90")),
    "rotated 180": ("mp4", again(plain(f"{X264} {TWO_B}"), f"{COPY} -metadata:s:v:0 rotate=180")),
    "rotated 270": ("mov", again(plain(f"{X264} {TWO_B}"), f"{COPY} -metadata:s:v:0 rotate=270")),
    "anamorphic h264": ("mp4", plain(f"{X264} -aspect 16:9")),
    "anamorphic mpeg2": ("mpg", plain(f"{MPEG2} -aspect 16:9")),
    "anamorphic mkv": ("mkv", again(plain(X264), f"{COPY} -aspect 16:9")),
    "anamorphic avi": ("avi", plain(f"{MPEG4} -bf 2 -aspect 16:9")),
    # What else is in the file
    "two video streams": ("mp4", plain(f"{X264} -map 0 -map 0 -s:v:1 128x96")),
    "two programs": ("ts", plain(f"{X264} {TWO_B} -map 0 -map 0 -program st=0 -program st=1")),
    "another shape in the middle": (
        "ts",
        (
            f"{SOURCE} {X264} {NO_B} -frames:v 40 {{out}}",
            f"{SOURCE} {X264} {NO_B} -vf trim=start_frame=40,scale=100:48:flags=neighbor -copyts -f mpegts {{more}}",
        ),
    ),
    "another size in the middle": (
        "ts",
        (
            f"{SOURCE} {X264} {NO_B} -frames:v 40 {{out}}",
            f"{SOURCE} {X264} {NO_B} -vf trim=start_frame=40,scale=128:96:flags=neighbor -copyts -f mpegts {{more}}",
        ),
    ),
}


def write_source(path: Path, picture: Callable[[int], np.ndarray]) -> Path:
    """The pictures that all kinds are made of, uint8 [48, 64, 3] each."""
    path.write_bytes(b"".join(picture(number).tobytes() for number in range(NUM_PICTURES)))
    return path


def call(options: str, **names: Path) -> None:
    words = [word.format(**names) for word in shlex.split(options)]
    command = ["ffmpeg", "-v", "error", "-nostdin", "-y", "-threads", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])


def make(kind: str, source: Path, folder: Path) -> Path:
    """Writes the video of ``KINDS`` and returns its path."""
    suffix, calls = KINDS[kind]
    path = folder / f"{kind}.{suffix}".replace(" ", "_").replace(":", "").replace("/", "_")
    before = None
    for number, options in enumerate(calls):
        out = path if number == len(calls) - 1 else folder / f"before_{path.stem}.{suffix}"
        call(options, source=source, before=before, out=out, more=out)
        if "{more}" in options:
            out.write_bytes(before.read_bytes() + out.read_bytes())
        before = out
    return path
