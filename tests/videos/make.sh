#!/usr/bin/env bash
# Makes the videos of this folder again with the ffmpeg program: tests/videos/make.sh FOLDER
# FFmpeg 5.1 gives the committed bytes, apart from the random ids of h264.mkv and the WebM files. Other versions and processors
# give others, and some tests are bound to these.
set -euo pipefail
mkdir -p "$1"
cd "$1"

make() { ffmpeg -v error -nostdin -y "$@"; }
picture() { echo "-f lavfi -i testsrc2=size=$1:rate=24:duration=$2"; }
sound="-f lavfi -i sine=frequency=440:duration=5"
x264="-c:v libx264 -preset veryfast -crf 30 -g 48 -pix_fmt yuv420p"
# The words of the options are meant to be split.
# shellcheck disable=SC2046,SC2086
{
    make $(picture 320x240 5) $sound $x264 -c:a aac -b:a 32k ok_h264.mp4
    make -i ok_h264.mp4 -c copy -movflags +faststart ok_faststart.mp4
    make $(picture 320x240 5) $x264 -movflags frag_keyframe+empty_moov frag.mp4
    make -i ok_h264.mp4 -c copy h264.mkv
    make -i ok_h264.mp4 -c copy h264.ts
    make -i ok_h264.mp4 -an -c copy -f h264 raw_es.mp4
    make -i ok_h264.mp4 -an -c copy -metadata:s:v rotate=90 rot90.mp4
    make -ss 1.3 -i ok_h264.mp4 -c copy cut_editlist.mp4

    make $(picture 320x240 5) -c:v libsvtav1 -preset 10 -crf 45 av1.mp4
    make $(picture 320x240 5) -c:v libx265 -preset ultrafast -pix_fmt yuv420p10le -x265-params log-level=0:pools=1 \
        -tag:v hvc1 hevc10.mp4
    make $(picture 320x240 5) -c:v libvpx-vp9 -deadline realtime -cpu-used 8 vp9.webm
    make $(picture 320x240 5) -c:v mpeg4 -g 48 -b:v 150k mpeg4.avi
    make $(picture 320x240 5) -c:v mpeg2video -flags +ildct+ilme -q:v 8 interl.mpg
    make $(picture 320x240 5) $x264 -vf "select='lt(t,2)+not(mod(n,6))'" -vsync vfr vfr.mp4
    make $(picture 321x241 2) -c:v libvpx-vp9 -deadline realtime -cpu-used 8 odd_vp9.webm
    make $(picture 321x241 2) -c:v libx264 -preset veryfast -pix_fmt yuv444p odd_444.mp4
    make $(picture 320x240 1) $x264 -frames:v 1 oneframe.mp4
    make $(picture 7680x4320 1) -c:v libx264 -preset ultrafast -crf 45 -pix_fmt yuv420p -frames:v 6 huge_8k.mp4
    make $(picture 64x64 1) -f gif gif.mp4

    make $sound -c:a aac audio_only.mp4
    make -i audio_only.mp4 -f lavfi -i color=red:size=64x64:duration=1 -map 0 -map 1 -c:a copy -c:v png -frames:v 1 \
        -disposition:v attached_pic audio_coverart.mp4
}
