"""Damage that is seen and undamaged videos that stay so: seeded mutations of real videos, each cause by itself, and odd
whole files."""

import random
import re
import subprocess
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.damage import zero_bytes
from helpers.decoding import MADE_UP, REAL, any_video, ask, take, want
from helpers.mutations import MUTATIONS, largest_change, make_sources, mutate, transcode
from helpers.needs import needs_program
from helpers.numbered import constant, moving_picture
from helpers.videos import remux
from helpers.zoo import VIDEOS
from vlalign.extract.decoding import backends
from vlalign.extract.decoding.container import open_video
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.probe import ends_early, probe_video
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.decoding.structure import structure_damage

SEEDS, LARGEST_CHANGE = 40, 0.01
HEVC = "FFmpeg's HEVC decoder takes any bits for picture data, MP4 has no checksums, and the file no picture hashes"
VP8 = "VP8 is arithmetic code without end marks, checksums or impossible values; WebM has no checksums"
ONE_BIT = "one bit makes another valid code of MPEG-2, and MPEG-TS has no checksum of what it carries"
ACCEPTED = {
    **dict.fromkeys([("hevc.mp4", "flip", seed) for seed in (4, 14, 19, 24, 29, 34, 39)], HEVC),
    **dict.fromkeys([("hevc.mp4", "shuffle", seed) for seed in (19, 29)], HEVC),
    **dict.fromkeys([("vp8.webm", "flip", seed) for seed in (11, 31, 39)], VP8),
    ("mpeg2.ts", "flip", 11): ONE_BIT,
}
"""Changed rows that nobody could know to be changed: video, damage and seed, and why."""
RATES = {1: want(1), 24: want(24, window=16, tail="loop")}


@pytest.mark.slow
def test_of_600_mutations_each_that_changes_rows_is_partial_or_fails(tmp_path):
    sources = make_sources(tmp_path)
    by_suffix: dict[str, list[str]] = {}
    for name in sources:
        by_suffix.setdefault(Path(name).suffix, []).append(name)
    process, silent, count = DecodeProcess(), set(), 0
    undamaged = {(name, fps): ask(process, sources[name], RATES[fps]) for name in sources for fps in RATES}
    assert {key: ended.finished.partial for key, ended in undamaged.items()} == dict.fromkeys(undamaged, "")
    for suffix, names in by_suffix.items():
        for how in MUTATIONS:
            for seed in range(SEEDS):
                name = names[seed % len(names)]
                path = mutate(sources[name], tmp_path / f"mutated{suffix}", how, seed)
                count += 1
                for fps, wanted in RATES.items():
                    if not process.usable:
                        process.close()
                        process = DecodeProcess()
                    ended = ask(process, path, wanted)
                    quiet = ended.failure is None and not ended.finished.partial
                    if quiet and largest_change(ended.rows, undamaged[name, fps].rows) > LARGEST_CHANGE:
                        silent.add((name, how, seed))
    process.close()
    assert count == 600
    assert silent - set(ACCEPTED) == set()


# Each cause by itself


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("whole")
    how = {
        "mp4": {},
        "mkv": {"container": "matroska"},
        "ts": {"container": "mpegts"},
        "webm": {"container": "webm", "codec": "libvpx-vp9"},
        "vp8.webm": {"container": "webm", "codec": "libvpx"},
        "hevc.mp4": {"codec": "libx265"},
        "avi": {"container": "avi", "codec": "mpeg4"},
    }
    return {
        name: constant(folder / f"whole.{name}", 96, 24, picture=moving_picture, g="24", **how[name]) for name in how
    }


def changed(source: Path, target: Path, change) -> Path:
    target.write_bytes(change(bytearray(source.read_bytes())))
    return target


@pytest.mark.parametrize("name", ["mkv", "webm", "ts", "avi"])
def test_a_file_that_ends_a_little_early_is_partial(whole, tmp_path, name):
    path = changed(whole[name], tmp_path / f"cut.{name}", lambda content: content[:-100])
    assert probe_video(path).missing


def test_six_missing_minutes_of_two_hours_make_a_video_partial():
    assert ends_early(6840.0, 7200.0) and ends_early(573.0, 600.0)
    assert not ends_early(7199.5, 7200.0)
    assert not ends_early(95.0, 100.0, longest_step_seconds=5.0), (
        "the last frame of a slide show is shown as long as the others"
    )


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_a_checksum_of_matroska_is_checked(whole, tmp_path):
    def flip(content: bytearray) -> bytearray:
        content[len(content) // 2] ^= 1
        return content

    num_bytes = whole["mkv"].stat().st_size
    first, last = map(
        number, re.findall(r"[\d,]+", probe_video(changed(whole["mkv"], tmp_path / "x.mkv", flip)).missing)
    )
    assert first < num_bytes // 2 < last <= num_bytes


@pytest.mark.parametrize("name", ["mkv", "webm", "mp4", "avi"])
def test_hostile_box_sizes_are_parsed_in_bounded_time(whole, tmp_path, name):
    chance, source = random.Random(0), whole[name].read_bytes()
    for _ in range(40):
        content = bytearray(source)
        first = chance.randrange(len(content) - 16)
        content[first : first + 8] = chance.choice([b"\xff" * 8, b"\x01" + b"\xff" * 7, bytes(8), b"\x10" + bytes(7)])
        path = tmp_path / f"hostile.{name}"
        path.write_bytes(content)
        beats: list[int] = []
        formats = frozenset({"mkv": ["matroska"], "webm": ["matroska"], "mp4": ["mp4"], "avi": ["avi"]}[name])
        structure_damage(path, formats, lambda beats=beats: beats.append(1))
        assert len(beats) <= len(content) // 2


def test_flipped_bits_of_h264_are_noted_by_default(whole, tmp_path):
    """decord decodes such a file and says nothing."""

    def flip(content: bytearray) -> bytearray:
        chance = random.Random(3)
        for _ in range(60):
            content[chance.randrange(5000, len(content) - 5000)] ^= 1 << chance.randrange(8)
        return content

    taken = take(changed(whole["mp4"], tmp_path / "flipped.mp4", flip), want(24))
    assert taken.begun[-1] == "PyAV" and re.match(r"\d+ ", taken.finished.partial)


@pytest.mark.parametrize("name", ["webm", "hevc.mp4"])
def test_flipped_bits_of_vp9_and_hevc_are_noted(whole, tmp_path, name):
    with av.open(str(whole[name])) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size > 200]

    def flip(content: bytearray) -> bytearray:
        chance = random.Random(1)
        for position, size in packets[3:]:
            for _ in range(5):
                content[position + 20 + chance.randrange(size - 20)] ^= 1 << chance.randrange(8)
        return content

    path = changed(whole[name], tmp_path / f"flipped.{name}", flip)
    taken, before = take(path, want(24)), take(whole[name], want(24))
    assert largest_change(taken.rows[0], before.rows[0]) > LARGEST_CHANGE
    assert re.match(r"\d+ ", taken.finished.partial)


def test_damage_in_a_frame_that_comes_after_the_last_one_wanted_is_noted(tmp_path):
    path = mutate(VIDEOS / "frag.mp4", tmp_path / "x.mp4", "flip", 35)
    assert re.match(r"\d+ ", take(path, want(1)).finished.partial)


@pytest.mark.parametrize("name, place", [("ok_h264.mp4", 104_000), ("msrvtt/videos/video7013.mp4", 149_084)])
def test_zeros_in_a_frame_are_noted_although_the_decoder_accepts_them(tmp_path, name, place):
    path = zero_bytes(any_video(name), tmp_path / "zeros.mp4", place, place + 188)
    assert probe_video(path).missing.startswith("1 ")


def test_an_index_that_declares_gigabytes_is_unreadable(monkeypatch, whole):
    def refuse(*_, **__):
        raise MemoryError("Cannot allocate memory")

    monkeypatch.setattr("av.open", refuse)
    with pytest.raises(VideoError, match="Cannot allocate memory") as failed:
        open_video(whole["mp4"])
    assert failed.value.kind == "unreadable"


@needs_program
def test_damaged_pictures_of_the_ffmpeg_program_are_noted(zoo_folder):
    taken = take(zoo_folder / "flip_mid.mp4", want(24), excluded_decoders=("PyAV", "decord"))
    assert taken.finished.decoder.startswith("ffmpeg") and re.match(r"\d+ ", taken.finished.partial)


# Whole videos stay whole

LAVFI = ["-f", "lavfi", "-i", "testsrc2=size=192x144:rate=24:duration=4"]
SHORT_SOUND, LONG_SOUND = (["-f", "lavfi", "-i", f"sine=duration={seconds}"] for seconds in (2, 9))
X264 = ["-c:v", "libx264", "-preset", "veryfast", "-g", "24"]
UNDAMAGED = {
    "b-frames and open groups.mp4": [*X264, "-bf", "3", "-x264-params", "open-gop=1"],
    "b-frames and open groups.mkv": [*X264, "-bf", "3", "-x264-params", "open-gop=1"],
    "open groups.ts": [*X264, "-bf", "3", "-x264-params", "open-gop=1"],
    "long sound.mp4": [*X264, "-c:a", "aac"],
    "long sound.webm": ["-c:v", "libvpx-vp9", "-speed", "8", "-c:a", "libopus"],
    "long sound.mkv": [*X264, "-c:a", "aac"],
    "short sound.mkv": [*X264, "-c:a", "aac"],
    "short sound.ts": [*X264, "-c:a", "aac"],
    "short sound.avi": ["-c:v", "mpeg4", "-c:a", "mp3"],
    "b-frames.avi": ["-c:v", "mpeg4", "-bf", "2"],
    "live.mkv": [*X264, "-f", "matroska", "-live", "1"],
    "live.webm": ["-c:v", "libvpx", "-f", "webm", "-live", "1"],
    "large clusters.mkv": [*X264, "-cluster_time_limit", "30000"],
    "variable.mkv": [*X264, "-vf", "select='lt(mod(n,7),3)'", "-fps_mode", "vfr"],
    "slides.webm": ["-c:v", "libvpx-vp9", "-vf", "fps=1/2", "-speed", "8"],
    "fragments.mp4": [*X264, "-movflags", "frag_keyframe+empty_moov"],
    "dash.mp4": [*X264, "-movflags", "dash+frag_keyframe+global_sidx"],
    "edit list.mov": [*X264, "-bf", "2", "-ss", "0.5"],
    "hevc.mp4": ["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=0:open-gop=1"],
    "hevc.ts": ["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=0"],
    "av1.webm": ["-c:v", "libsvtav1", "-preset", "10"],
    "mpeg2.ts": ["-c:v", "mpeg2video", "-bf", "2"],
    "theora.ogv": ["-c:v", "libtheora"],
    "flash.flv": [*X264, "-c:a", "aac"],
    "windows.asf": ["-c:v", "msmpeg4"],
    "sliced.mp4": [*X264, "-x264-params", "slices=4"],
    "lossless 4:4:4.mkv": ["-c:v", "libx264", "-qp", "0", "-preset", "ultrafast", "-pix_fmt", "yuv444p"],
    "10 bit.webm": ["-c:v", "libvpx-vp9", "-speed", "8", "-pix_fmt", "yuv420p10le"],
}


@needs_program
@pytest.mark.parametrize("name", UNDAMAGED)
def test_whole_videos_are_not_called_partial(tmp_path, name):
    sound = LONG_SOUND if name.startswith("long") else SHORT_SOUND if name.startswith(("short", "flash")) else []
    path = tmp_path / name
    command = ["ffmpeg", "-v", "error", "-nostdin", *LAVFI, *sound, "-pix_fmt", "yuv420p", *UNDAMAGED[name]]
    if name.startswith("live"):  # where the writer cannot go back, nothing has a size
        path.write_bytes(subprocess.run([*command, "pipe:1"], check=True, capture_output=True).stdout)
    else:
        subprocess.run([*command, str(path)], check=True)
    for fps in (1, 24):
        assert take(path, want(fps)).finished.partial == ""


@needs_program
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_part_copied_out_of_a_video_with_open_groups_is_whole(tmp_path, suffix):
    whole, part = tmp_path / f"whole.{suffix}", tmp_path / f"part.{suffix}"
    subprocess.run(["ffmpeg", "-v", "error", "-nostdin", *LAVFI, *X264, "-bf", "3", str(whole)], check=True)
    subprocess.run(
        ["ffmpeg", "-v", "error", "-nostdin", "-ss", "1.5", "-i", str(whole), "-c", "copy", str(part)], check=True
    )
    assert take(part, want(24)).finished.partial == ""


@pytest.mark.parametrize("container", ["matroska", "mpegts", "mov"])
@pytest.mark.parametrize("name", ["ok_h264.mp4", *(f"msrvtt/videos/video{i}.mp4" for i in (7010, 7012, 7014))])
def test_videos_stay_whole_in_other_containers(tmp_path, name, container):
    path = remux(any_video(name), tmp_path / "copy", container)
    assert take(path, want(1)).finished.partial == ""


@pytest.mark.parametrize("name", [*MADE_UP, *REAL])
def test_videos_are_whole(name):
    path = any_video(name)
    assert take(path, want(1)).finished.partial == ""
    assert take(path, want(24)).finished.partial == ""


@pytest.mark.parametrize("codec", ["libvpx", "libvpx-vp9"])
def test_the_strict_decoder_gives_the_frames_of_ffmpegs_own(tmp_path, codec):
    path = transcode(VIDEOS / "ok_h264.mp4", tmp_path / "x.webm", codec, "webm", speed="8")
    info, pictures = probe_video(path), []
    for strict in (True, False):
        decoding = backends.DecodePass(info, [backends.Size(64)], strict)
        pictures.append(np.stack([p[0] for _, p in backends.decode_with_pyav(decoding, np.arange(len(info.pts)))]))
    np.testing.assert_array_equal(*pictures)
