#!/usr/bin/env bash
# Makes the videos of this folder again: tests/videos/speech/make.sh FOLDER
# flite and espeak-ng speak; ffmpeg 5.1 adds noise and pictures. times.txt says when each sentence begins.
set -euo pipefail
mkdir -p "$1"
cd "$1"

say_english() { flite -voice "$1" -t "$2" -o "$3"; }
say_german() { espeak-ng -v de -s 150 -w "$2" "$1"; }
mix() { # OUTPUT SECONDS FIRST SECOND THIRD: speech at 2, 9 and 16 s over pink noise, and a small picture
    ffmpeg -v error -nostdin -y -i "$3" -i "$4" -i "$5" -f lavfi -i "anoisesrc=color=pink:amplitude=0.02:seed=1:duration=$2" \
        -f lavfi -i "testsrc2=size=96x64:rate=8:duration=$2" -filter_complex \
        "[0]aresample=16000,adelay=2000[a];[1]aresample=16000,adelay=9000[b];[2]aresample=16000,adelay=16000[c];
         [3]aresample=16000[n];[n][a][b][c]amix=inputs=4:duration=first:normalize=0[sound]" \
        -map 4:v -map "[sound]" -c:v libx264 -preset veryfast -crf 35 -pix_fmt yuv420p -c:a libopus -b:a 24k "$1"
}

say_english slt "First we cut the onion into small pieces." 1.wav
say_english rms "The children throw the ball to the dog." 2.wav
say_english slt "Tighten the screw with a wrench." 3.wav
mix english.mkv 20 1.wav 2.wav 3.wav
say_german "Zuerst schneiden wir die Zwiebel in kleine Stücke." 1.wav
say_german "Die Kinder werfen dem Hund den Ball zu." 2.wav
say_german "Ziehen Sie die Schraube mit dem Schlüssel fest." 3.wav
mix german.mkv 20 1.wav 2.wav 3.wav
ffmpeg -v error -nostdin -y -f lavfi -i "testsrc2=size=96x64:rate=8:duration=20" -f lavfi -i \
    "aevalsrc='0.2*sin(2*PI*t*(220+110*mod(floor(t*2),5)))+0.15*sin(2*PI*t*(330+55*mod(floor(t*4),7)))':s=16000:d=20" \
    -map 0:v -map 1:a -c:v libx264 -preset veryfast -crf 35 -pix_fmt yuv420p -c:a libopus -b:a 24k music.mkv
rm 1.wav 2.wav 3.wav
