"""Video files, from rendering and decoding to rows in a store; what is odd, broken or malicious among them."""

import json
import shutil
from argparse import Namespace
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from conftest import shared
from vlalign.extract import decode, extract_video, load_extractor
from vlalign.extract import video as video_module
from vlalign.extract.cli import main, make_extractor, parse_weights
from vlalign.extract.decode import VideoError, VideoInfo, probe_video, read_frames
from vlalign.extract.profiles import PROFILES
from vlalign.extract.render import frame_times, render_video
from vlalign.extract.sampling import sample_frames, window_times
from vlalign.extract.work import WorkList, list_folder
from vlalign.preprocess.datasets.demo import plan_scenes
from vlalign.storage import Failure, FeatureStore, VideoFeatures, VideoRecord, Weights, write_shard
from vlalign.storage.console import Problems, UserError
from vlalign.storage.files import file_identity, read_jsonl, write_jsonl
from vlalign.storage.layout import DatasetFolder

needs_decord = pytest.mark.skipif(decode.decord is None, reason="decord is not built for this processor")

STILL = {"width": 240, "height": 180, "variable_rate": False, "rotation_degrees": 0}
RECORDINGS = {
    "24000/1001": {"fps": "24000/1001"},
    "25": {"fps": "25"},
    "30": {"fps": "30", "width": 180, "height": 240},
    "50": {"fps": "50"},
    "variable rate": {"fps": "30", "variable_rate": True},
    "rotated 90": {"fps": "25", "rotation_degrees": 90},
    "rotated 180": {"fps": "25", "rotation_degrees": 180},
    "rotated 270": {"fps": "25", "rotation_degrees": 270},
    "rotated, variable rate": {"fps": "30", "variable_rate": True, "rotation_degrees": 90},
}
UPRIGHT = {"rotated 90": "25", "rotated 180": "25", "rotated 270": "25"}


def scene(seconds: float = 0.8, **recording) -> dict:
    return plan_scenes(0, {"train": 1})[0][1] | STILL | {"fps": "25", "duration_seconds": seconds} | recording


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> dict[str, Path]:
    """The same scene, recorded in many ways."""
    folder = tmp_path_factory.mktemp("recordings")
    paths = {name: folder / f"{name.replace('/', '-')}.mp4" for name in RECORDINGS}
    for name, path in paths.items():
        render_video(scene(**RECORDINGS[name]), path)
    return paths


@pytest.fixture(scope="module")
def short_video(tmp_path_factory) -> Path:
    """0.6 s: 15 frames, one window of S3D."""
    path = tmp_path_factory.mktemp("short") / "short.mp4"
    render_video(scene(0.6), path)
    return path


@pytest.fixture(scope="module")
def s3d():
    return load_extractor("s3d", weights="random")


def all_frames(path: Path) -> tuple[str, list[int], np.ndarray]:
    info = probe_video(path)
    decoder, frames = read_frames(info, np.arange(len(info.pts)))
    indices, pictures = zip(*frames, strict=True)
    return decoder, list(indices), np.stack(pictures)


@pytest.fixture
def only_pyav(monkeypatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(decode, "decord", None)


# Rendering


def test_a_planned_scene_gives_the_same_pixels_every_time(tmp_path):
    planned = plan_scenes(3, {"train": 1, "test": 1})[1][1] | {"duration_seconds": 0.8}
    for name, noise_seed in (("one", 5), ("same", 5), ("other", 6)):
        render_video(planned | {"noise_seed": noise_seed}, tmp_path / f"{name}.mp4")
    one, same, other = (all_frames(tmp_path / f"{name}.mp4")[2] for name in ("one", "same", "other"))
    assert np.array_equal(one, same)
    assert one.shape != other.shape or not np.array_equal(one, other)
    assert sorted(p.name for p in tmp_path.glob("*")) == ["one.mp4", "other.mp4", "same.mp4"], "nothing unfinished is left"


@pytest.mark.parametrize("name", ["25", "variable rate", "rotated 90"])
def test_a_rendered_file_is_h264_video_and_aac_sound(recordings, name):
    with av.open(str(recordings[name])) as container:
        assert "mp4" in container.format.name.split(",")
        assert [(s.type, s.codec_context.name) for s in container.streams] == [("video", "h264"), ("audio", "aac")]
        sound = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)
        assert sound.shape[1] / container.streams.audio[0].rate == pytest.approx(0.8, abs=0.1)
        assert sound.std() > 0.05


def test_scenes_move(recordings):
    frames = all_frames(recordings["25"])[2].astype(int)
    assert np.abs(frames[-1] - frames[0]).mean() > 2 * np.abs(frames[1] - frames[0]).mean() > 0


# Probing and decoding


@pytest.mark.parametrize("name", RECORDINGS)
def test_probed_times_are_the_planned_ones(recordings, name):
    info = probe_video(recordings[name])
    ticks, tick_seconds = frame_times(scene(**RECORDINGS[name]))
    assert [time * info.time_base for time in info.pts.tolist()] == [tick * tick_seconds for tick in ticks]
    assert info.end * info.time_base == (ticks[-1] + 1) * tick_seconds
    assert info.duration_seconds == pytest.approx(float((ticks[-1] + 1) * tick_seconds))
    assert (info.codec, info.offset) == ("h264", 0)


def test_variable_rate_leaves_frames_out(recordings):
    assert len(probe_video(recordings["variable rate"]).pts) < 24 == round(0.8 * 30)


@needs_decord
@pytest.mark.parametrize("name", RECORDINGS)
def test_decord_and_pyav_give_the_same_pixels(recordings, name, only_pyav):
    decoder, indices, pictures = all_frames(recordings[name])
    only_pyav()
    other_decoder, other_indices, other_pictures = all_frames(recordings[name])
    assert (decoder.split()[0], other_decoder.split()[0]) == ("decord", "PyAV")
    assert indices == other_indices == list(range(len(frame_times(scene(**RECORDINGS[name]))[0])))
    assert pictures.dtype == other_pictures.dtype == np.uint8
    np.testing.assert_array_equal(pictures, other_pictures)


@pytest.mark.parametrize("backend", [pytest.param("decord", marks=needs_decord), "PyAV"])
@pytest.mark.parametrize("name", UPRIGHT)
def test_rotated_recordings_are_upright(recordings, name, backend, only_pyav):
    if backend == "PyAV":
        only_pyav()
    decoder, _, rotated = all_frames(recordings[name])
    _, _, upright = all_frames(recordings[UPRIGHT[name]])
    assert decoder.startswith(backend)
    assert rotated.shape == upright.shape == (20, 180, 240, 3)
    upside_down = np.abs(upright.astype(int) - upright[:, ::-1, ::-1]).mean()
    assert np.abs(rotated.astype(int) - upright).mean() < 4 < upside_down


@pytest.mark.parametrize("backend", [pytest.param("decord", marks=needs_decord), "PyAV"])
@pytest.mark.parametrize("wanted", [[0], [19], [3, 4, 11], list(range(1, 20, 2))], ids=["first", "last", "some", "every other"])
def test_only_wanted_frames_are_read_and_they_are_the_right_ones(recordings, wanted, backend, only_pyav):
    everything = all_frames(recordings["25"])[2]
    if backend == "PyAV":
        only_pyav()
    decoder, frames = read_frames(probe_video(recordings["25"]), np.array(wanted))
    indices, pictures = zip(*frames, strict=True)
    assert decoder.startswith(backend) and list(indices) == wanted
    np.testing.assert_array_equal(np.stack(pictures), everything[wanted])


def remux(source: Path, target: Path, container_format: str, shift_seconds: Fraction = Fraction(0), sound: bool = True) -> Path:
    """The same packets in another container; the video's ones later by ``shift_seconds``."""
    with av.open(str(source)) as read, av.open(str(target), "w", format=container_format) as written:
        streams = {s: written.add_stream_from_template(s) for s in read.streams if sound or s.type == "video"}
        for packet in read.demux(*streams):
            if packet.dts is None:
                continue
            if packet.stream.type == "video":
                shift = int(shift_seconds / packet.time_base)
                packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
            packet.stream = streams[packet.stream]
            written.mux(packet)
    return target


@pytest.mark.parametrize("container_format", ["matroska", "mpegts", "mov"])
def test_other_containers_give_the_same_frames_at_the_same_times(short_video, tmp_path, container_format):
    """MPEG-TS begins its clock at 1.4 s: times are counted from the file's start. Matroska rounds times to milliseconds."""
    other = remux(short_video, tmp_path / "other", container_format, sound=False)
    info, expected = probe_video(other), probe_video(short_video)
    seconds, expected_seconds = (i.pts.astype(float) * float(i.time_base) for i in (info, expected))
    np.testing.assert_allclose(seconds, expected_seconds, atol=0.0006)
    assert info.duration_seconds == pytest.approx(0.6, abs=0.0011)
    np.testing.assert_array_equal(all_frames(other)[2], all_frames(short_video)[2])


def test_a_picture_later_than_the_sound_stays_later(short_video, tmp_path):
    info = probe_video(remux(short_video, tmp_path / "late.mp4", "mp4", shift_seconds=Fraction(1, 2)))
    assert (info.pts * float(info.time_base)).tolist() == pytest.approx([0.5 + 0.04 * i for i in range(15)])
    assert info.duration_seconds == pytest.approx(1.1)
    assert sample_frames(info.pts, info.end, info.time_base, 24)[1] == 12


def make_audio_only(path: Path) -> None:
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=22050, layout="mono")
        tone = (8000 * np.sin(np.arange(22050) / 20)).astype(np.int16)[None]
        samples = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
        samples.rate, samples.pts, samples.time_base = 22050, 0, Fraction(1, 22050)
        container.mux(stream.encode(samples))
        container.mux(stream.encode(None))


def make_cut_in_half(path: Path) -> None:
    render_video(scene(), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])


def make_emptied(path: Path) -> None:
    """Index and all packets there, every picture overwritten with zeros."""
    render_video(scene(), path)
    content = path.read_bytes()
    first, last = content.index(b"mdat") + 4, content.index(b"moov") - 4
    path.write_bytes(content[:first] + bytes(last - first) + content[last:])


@pytest.mark.parametrize(
    "make, kind",
    [
        (make_audio_only, "no_video"),
        (lambda path: path.write_bytes(b""), "unreadable"),
        (lambda path: path.write_bytes(np.random.default_rng(0).bytes(100_000)), "unreadable"),
        (lambda path: path.write_text("<!DOCTYPE html><html><body>Sign in to confirm your age</body></html>\n" * 30), "unreadable"),
        (make_cut_in_half, "unreadable"),
        (make_emptied, "unreadable"),
        (lambda path: None, "missing"),
        (lambda path: path.mkdir(), "missing"),
        (lambda path: path.symlink_to(path.with_name("nowhere.mp4")), "missing"),
    ],
    ids=["audio only", "empty", "random bytes", "html", "truncated", "pictures zeroed", "missing", "folder", "dangling link"],
)
@pytest.mark.parametrize("backend", [pytest.param("decord", marks=needs_decord), "PyAV"])
def test_files_without_pictures_fail_with_a_kind_and_a_reason(tmp_path, make, kind, backend, only_pyav, s3d):
    path = tmp_path / "broken.mp4"
    make(path)
    if backend == "PyAV":
        only_pyav()
    with pytest.raises(VideoError) as failed:
        extract_video(path, [s3d])
    assert failed.value.kind == kind
    assert str(failed.value) and "\n" not in str(failed.value)


PLAYLISTS = {
    "m3u8": ("list.m3u8", "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\nother.ts\n#EXT-X-ENDLIST\n"),
    "m3u8 named mp4": ("list.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\nother.ts\n#EXT-X-ENDLIST\n"),
    "m3u8 with an address": ("list.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\nhttp://127.0.0.1:9/other.ts\n#EXT-X-ENDLIST\n"),
    "ffconcat": ("list.ffconcat", "ffconcat version 1.0\nfile other.mp4\n"),
    "ffconcat named mp4": ("list.mp4", "ffconcat version 1.0\nfile other.mp4\n"),
    "sdp named mp4": ("list.mp4", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 33\n"),
}


@pytest.fixture
def folder_with_a_secret(short_video, tmp_path) -> Path:
    shutil.copy(short_video, tmp_path / "other.mp4")
    remux(short_video, tmp_path / "other.ts", "mpegts", sound=False)
    return tmp_path


@pytest.mark.parametrize("playlist", PLAYLISTS)
def test_playlists_that_name_other_files_are_refused(folder_with_a_secret, playlist, monkeypatch):
    name, content = PLAYLISTS[playlist]
    path = folder_with_a_secret / name
    path.write_text(content)
    monkeypatch.chdir(folder_with_a_secret)
    with pytest.raises(VideoError) as refused:
        info = probe_video(path)
        list(read_frames(info, np.arange(len(info.pts)))[1])
    assert refused.value.kind == "unreadable"


def test_ffmpeg_itself_would_follow_a_playlist(folder_with_a_secret):
    """So that the test above has something to refuse."""
    path = folder_with_a_secret / "list.mp4"
    path.write_text(PLAYLISTS["ffconcat named mp4"][1])
    with av.open(str(path)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 15


# The zoo: files that other programs made, or broke


@pytest.mark.parametrize(
    "name, num_frames",
    [
        ("ok_h264.mp4", 120),
        ("ok_faststart.mp4", 120),
        ("frag.mp4", 120),
        ("h264.mkv", 120),
        ("-dash id.mp4", 120),
        ("co:lon.mp4", 120),
        ("pct%03d.mp4", 120),
        ("av1.mp4", 120),
        ("hevc10.mp4", 120),
        ("vp9.webm", 120),
        ("raw_es.mp4", 120),
        ("interl.mpg", 120),
        ("cut_editlist.mp4", 88),
        ("odd_444.mp4", 48),
        ("odd_vp9.webm", 48),
        ("gif.mp4", 24),
        ("vfr.mp4", 60),
        ("rot90.mp4", 120),
        ("oneframe.mp4", 1),
    ],
)
def test_zoo_frames(name, num_frames, only_pyav):
    """Whichever decoder was chosen, it gives the pictures that FFmpeg gives."""
    decoder, indices, pictures = all_frames(shared(f"zoo/{name}"))
    assert indices == list(range(num_frames))
    assert len({picture.tobytes() for picture in pictures}) == num_frames, "the same picture came twice"
    if decoder.startswith("decord"):
        only_pyav()
        np.testing.assert_array_equal(pictures, all_frames(shared(f"zoo/{name}"))[2])


def test_zoo_damaged_pictures_are_all_there():
    assert all_frames(shared("zoo/flip_mid.mp4"))[1] == list(range(120))


def test_zoo_rotation_is_honoured():
    assert all_frames(shared("zoo/rot90.mp4"))[2].shape == (120, 320, 240, 3)


@pytest.mark.parametrize(
    "name, num_sampled", [("ok_h264.mp4", 120), ("cut_editlist.mp4", 88), ("oneframe.mp4", 1), ("interl.mpg", 120), ("vp9.webm", 120)]
)
def test_zoo_sampled_at_24_fps(name, num_sampled):
    assert len(sampled_at_24_fps(shared(f"zoo/{name}"))) == num_sampled


@pytest.mark.parametrize(
    "name, kind",
    [
        ("trunc_nomoov.mp4", "unreadable"),
        ("zero.mp4", "unreadable"),
        ("random.mp4", "unreadable"),
        ("ftyp_random.mp4", "unreadable"),
        ("html.mp4", "unreadable"),
        ("audio_only.mp4", "no_video"),
        ("audio_coverart.mp4", "no_video"),
        ("m3u8_local.mp4", "unreadable"),
        ("m3u8_local.m3u8", "unreadable"),
        ("m3u8_http.mp4", "unreadable"),
        ("concat_rel.mp4", "unreadable"),
        ("concat_abs.mp4", "unreadable"),
        ("timescale0.mp4", "bad_times"),
        ("dup_ts.ts", "bad_times"),
    ],
)
def test_zoo_failures(name, kind):
    with pytest.raises(VideoError) as failed:
        all_frames(shared(f"zoo/{name}"))
    assert failed.value.kind == kind and str(failed.value)


# Whole videos


def assert_rows_follow_the_plan(made: VideoFeatures, info: VideoInfo, name: str) -> None:
    profile = PROFILES[name]
    indices, first_slot = sample_frames(info.pts, info.end, info.time_base, profile.fps)
    starts, ends, valid = window_times(len(indices), first_slot, profile.window, profile.fps, info.duration_seconds)
    assert made.features.shape == (len(starts), profile.dimension) and np.isfinite(made.features).all()
    np.testing.assert_array_equal(made.start_seconds, starts)
    np.testing.assert_array_equal(made.end_seconds, ends)
    np.testing.assert_array_equal(made.valid_frames, valid)
    assert made.duration_seconds == info.duration_seconds


def sampled_at_24_fps(path: Path) -> np.ndarray:
    info = probe_video(path)
    return sample_frames(info.pts, info.end, info.time_base, 24)[0]


def test_rows_times_and_tail_of_a_short_video(recordings, s3d):
    """0.8 s at 24 fps: 19 frames, one full window and one of 3 frames that is filled up with black."""
    path = recordings["25"]
    made = extract_video(path, [s3d])["s3d"]
    assert_rows_follow_the_plan(made, probe_video(path), "s3d")
    np.testing.assert_allclose(made.start_seconds, [0, 16 / 24])
    np.testing.assert_allclose(made.end_seconds, [16 / 24, 0.8])
    assert made.valid_frames.tolist() == [16, 3]
    assert (made.video_id, made.source) == ("25", file_identity(path))

    pictures = all_frames(path)[2][sampled_at_24_fps(path)]
    tail = np.zeros((1, 16, 224, 224, 3), dtype=np.uint8)
    tail[0, :3] = np.stack([s3d.prepare(picture).numpy() for picture in pictures[16:]])
    np.testing.assert_allclose(s3d.features(tail).numpy()[0], made.features[1], rtol=1e-4, atol=1e-4 * np.abs(made.features).max())


def test_a_slow_videos_frames_come_several_times(tmp_path, s3d):
    render_video(scene(0.6, fps="10"), tmp_path / "slow.mp4")
    indices = sampled_at_24_fps(tmp_path / "slow.mp4")
    assert indices.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5]
    window = np.zeros((1, 16, 224, 224, 3), dtype=np.uint8)
    window[0, :14] = np.stack([s3d.prepare(picture).numpy() for picture in all_frames(tmp_path / "slow.mp4")[2][indices]])
    made = extract_video(tmp_path / "slow.mp4", [s3d])["s3d"]
    assert made.valid_frames.tolist() == [14]
    np.testing.assert_allclose(made.features, s3d.features(window).numpy(), rtol=1e-4, atol=1e-4 * np.abs(made.features).max())


def test_two_extractors_share_one_decode_and_change_nothing(short_video, s3d, monkeypatch):
    resnet152 = load_extractor("resnet152", weights="random")
    alone = extract_video(short_video, [s3d]) | extract_video(short_video, [resnet152])
    decodes = []
    monkeypatch.setattr(video_module, "read_frames", lambda *args: decodes.append(args) or read_frames(*args))
    together = extract_video(str(short_video), [resnet152, s3d], video_id="mine")
    assert len(decodes) == 1 and sorted(together) == ["resnet152", "s3d"]
    for name, made in together.items():
        assert_rows_follow_the_plan(made, probe_video(short_video), name)
        assert made.video_id == "mine"
        np.testing.assert_array_equal(made.features, alone[name].features)
        np.testing.assert_array_equal(made.valid_frames, alone[name].valid_frames)


def test_one_frame_is_one_row(tmp_path, s3d):
    render_video(scene(0.04), tmp_path / "one.mp4")
    assert len(probe_video(tmp_path / "one.mp4").pts) == 1
    made = extract_video(tmp_path / "one.mp4", [s3d])["s3d"]
    assert made.features.shape == (1, 1024) and made.features.std() > 0
    assert made.valid_frames.tolist() == [1] and made.start_seconds.tolist() == [0.0]
    assert made.end_seconds.tolist() == pytest.approx([1 / 24])


@pytest.mark.parametrize("name", ["co:lon.mp4", "-dash id.mp4", "pct%03d.mp4", "http:/127.0.0.1:9/ünï'code.mp4"])
def test_awkward_names_are_names(short_video, tmp_path, monkeypatch, s3d, name):
    """Given as relative paths, which leaves nothing before what looks like a protocol, an option or a pattern."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(short_video, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert all_frames(Path(name))[1] == list(range(15))
    made = extract_video(name, [s3d])["s3d"]
    assert (made.video_id, made.source, made.features.shape) == (Path(name).stem, file_identity(short_video), (1, 1024))
    assert made.valid_frames.tolist() == [14]


def test_thumbnails_come_with_the_features(short_video, s3d):
    _, thumbnails = video_module.extract_with_thumbnails(short_video, [s3d], "id")
    assert [t.video_id for t in thumbnails] == ["id"] * 3
    assert [t.seconds for t in thumbnails] == pytest.approx([0.04, 0.28, 0.52])
    assert all(t.jpeg[:3] == b"\xff\xd8\xff" for t in thumbnails)


# What there is to do


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def test_a_folders_videos_get_their_paths_as_ids(tmp_path):
    touch(tmp_path, "b.mp4", "a.MKV", "sub/deep/a.webm", "sub/-dash id.mp4", "v1.2.mp4", "notes.txt", "cover.jpg", "c.mp4.partial")
    (tmp_path / "folder.mp4").mkdir()
    problems = Problems()
    found = list_folder(tmp_path, problems)
    assert {v.video_id: v.path for v in found} == {
        "a": str(tmp_path / "a.MKV"),
        "b": str(tmp_path / "b.mp4"),
        "sub/-dash id": str(tmp_path / "sub/-dash id.mp4"),
        "sub/deep/a": str(tmp_path / "sub/deep/a.webm"),
        "v1.2": str(tmp_path / "v1.2.mp4"),
    }
    assert [v.path for v in found] == sorted(v.path for v in found) and problems.count == 0


def test_a_file_name_that_is_no_text_is_left_out_and_said(tmp_path, capsys):
    for name in ("a.mp4", "b\udcff.mp4", "c\n.mp4"):
        (tmp_path / name).write_bytes(b"")
    problems = Problems()
    assert [v.video_id for v in list_folder(tmp_path, problems)] == ["a"]
    assert problems.count == 2
    assert "characters that are not printable; left out" in capsys.readouterr().err


def test_a_relative_folder_gives_absolute_paths(tmp_path, monkeypatch):
    touch(tmp_path, "videos/a.mp4")
    monkeypatch.chdir(tmp_path)
    assert list_folder(Path("videos"), Problems()) == [VideoRecord(video_id="a", path=str(tmp_path / "videos/a.mp4"))]


def test_of_two_files_with_one_id_the_first_counts_and_the_second_is_named(tmp_path, capsys):
    touch(tmp_path, "a.mp4", "a.webm", "b.mp4")
    problems = Problems()
    assert [v.path for v in list_folder(tmp_path, problems)] == [str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")]
    assert problems.count == 1
    warning = capsys.readouterr().err
    assert f"{tmp_path / 'a.webm'}: has the same id, 'a', as {tmp_path / 'a.mp4'}" in warning and "rename" in warning


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda folder: None, "no such folder"),
        (lambda folder: folder.write_text("x"), "no such folder"),
        (lambda folder: folder.mkdir(), "no video files in it; expected names ending in .3gp .avi"),
        (lambda folder: touch(folder, "readme.md", "sub/a.wav"), "no video files in it"),
    ],
    ids=["missing", "a file", "empty", "nothing of the kind"],
)
def test_a_folder_without_videos_is_refused(tmp_path, make, complaint):
    make(tmp_path / "videos")
    with pytest.raises(UserError, match=complaint) as refused:
        list_folder(tmp_path / "videos", Problems())
    assert str(tmp_path / "videos") in str(refused.value)


def rows_of(video_id: str, source: str, dimension: int) -> VideoFeatures:
    return VideoFeatures(
        video_id=video_id,
        features=np.ones((1, dimension), dtype=np.float32),
        start_seconds=np.zeros(1),
        end_seconds=np.ones(1),
        valid_frames=np.full(1, 16),
        duration_seconds=1.0,
        source=source,
    )


STORED = Weights(name="random (seed 5)", sha256="5" * 64)


@pytest.fixture
def half_done(tmp_path) -> DatasetFolder:
    """S3D has "done", "changed" and "vanished"; it failed on "broken", "mended" and "lost"; ResNet-152 has nothing."""
    dataset = DatasetFolder(tmp_path / "root", "mine")
    touch(dataset.path / "videos", *(f"{name}.mp4" for name in ("done", "changed", "vanished", "broken", "mended", "lost", "new")))
    source = {p.stem: file_identity(p) for p in (dataset.path / "videos").iterdir()}
    stored = [rows_of(name, source[name], 1024) for name in ("done", "changed", "vanished")]
    write_shard(dataset.features("s3d"), PROFILES["s3d"], STORED, stored, made_with={})
    failures = [
        {"video_id": name, "path": f"videos/{name}.mp4", "kind": "unreadable", "message": "why", "source": source[name]}
        for name in ("broken", "mended", "lost")
    ]
    write_jsonl(dataset.features("s3d") / "failures.jsonl", failures)
    for name in ("changed", "mended"):
        (dataset.path / "videos" / f"{name}.mp4").write_bytes(b"another content")
    for name in ("vanished", "lost"):
        (dataset.path / "videos" / f"{name}.mp4").unlink()
    return dataset


@pytest.mark.parametrize(
    "name, left, left_with_retry",
    [
        ("done", [], []),
        ("changed", ["s3d"], ["s3d"]),
        ("vanished", [], []),
        ("broken", [], ["s3d"]),
        ("mended", ["s3d"], ["s3d"]),
        ("lost", ["s3d"], ["s3d"]),
        ("new", ["s3d"], ["s3d"]),
    ],
)
def test_what_is_left_of_a_video(half_done, name, left, left_with_retry):
    video = VideoRecord(video_id=name, path=f"videos/{name}.mp4")
    work = WorkList(half_done, ["s3d"])
    assert work.left(video, retry_failed=False) == left
    assert work.left(video, retry_failed=True) == left_with_retry
    assert WorkList(half_done, ["resnet152", "s3d"]).left(video, retry_failed=False) == ["resnet152", *left]


def test_recorded_failures_are_there_for_the_next_run_until_they_are_gone(half_done):
    new = Failure(video_id="new", path="videos/new.mp4", kind="no_video", message="söund only", source="7-x")
    work = WorkList(half_done, ["s3d"])
    work.record("s3d", "new", new)
    work.record("s3d", "broken", None)
    work.record("s3d", "never failed", None)
    again = WorkList(half_done, ["s3d"])
    assert list(again.failures["s3d"]) == ["mended", "lost", "new"] and again.failures["s3d"]["new"] == new


# The command


@pytest.mark.parametrize(
    "values, features, expected",
    [
        ([], ["s3d"], {"s3d": "pretrained"}),
        ([], ["resnet152", "s3d"], {"resnet152": "pretrained", "s3d": "pretrained"}),
        (["random"], ["resnet152", "s3d"], {"resnet152": "random", "s3d": "random"}),
        (["pretrained"], ["resnet152", "s3d"], {"resnet152": "pretrained", "s3d": "pretrained"}),
        (["my/s3d.pth"], ["s3d"], {"s3d": "my/s3d.pth"}),
        (["s3d=my/s3d.pth"], ["resnet152", "s3d"], {"resnet152": "pretrained", "s3d": "my/s3d.pth"}),
        (["s3d=random", "resnet152=r.pth"], ["resnet152", "s3d"], {"resnet152": "r.pth", "s3d": "random"}),
        (["random", "s3d=s.pth"], ["resnet152", "s3d"], {"resnet152": "random", "s3d": "s.pth"}),
        (["s3d=x/lr=0.1/s.pth"], ["s3d"], {"s3d": "x/lr=0.1/s.pth"}),
        (["./lr=0.1/s.pth"], ["s3d"], {"s3d": "./lr=0.1/s.pth"}),
    ],
    ids=[
        "default",
        "default for two",
        "one for both",
        "pretrained",
        "file",
        "file for one",
        "each its own",
        "one for both but one",
        "named, = in the path",
        "= in the path",
    ],
)
def test_weights_options(values, features, expected):
    assert parse_weights(values, features) == expected


@pytest.mark.parametrize(
    "values, complaint",
    [
        (["w.pth"], "which features are they for? Pass --weights NAME=w.pth, NAME being resnet152 or s3d"),
        (["c3d=w.pth"], "'c3d' is not among --features resnet152,s3d"),
    ],
    ids=["a file for two", "features not asked for"],
)
def test_weights_options_that_are_refused(values, complaint):
    with pytest.raises(UserError) as refused:
        parse_weights(values, ["resnet152", "s3d"])
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "options, complaint",
    [
        (["--dataset", "mine", "--features", "s3d,c3d"], "--features s3d,c3d: 'c3d' not known; expected resnet152,s3d"),
        (["--dataset", "mine", "--features", ""], "'' not known"),
        (["--features", "s3d"], "--dataset is missing"),
        (["--dataset", "mine"], "videos.jsonl: not found; run vlalign-preprocess --dataset mine first, or pass your own: --videos FOLDER"),
        (["--dataset", "mine", "--videos", "nowhere"], "nowhere: no such folder"),
        (["--dataset", "../mine", "--videos", "videos"], "data set name '../mine'"),
        (["--dataset", "mine", "--videos", "videos", "--weights", "c3d=x.pth"], "'c3d' is not among --features s3d"),
        (["--dataset", "mine", "--videos", "videos", "--weights", "x.pth"], "weights x.pth: no such file"),
    ],
    ids=["unknown features", "no features", "no data set", "not prepared", "no folder", "no name", "other features", "no weights"],
)
def test_a_mistake_in_the_call_is_one_line_and_exit_2(tmp_path, capsys, monkeypatch, options, complaint):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "videos/a.mp4")
    assert main(["--root", str(tmp_path / "root"), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("vlalign-extract: error: ") and printed.err.count("\n") == 1
    assert complaint in printed.err
    assert not list(tmp_path.rglob("*.h5"))


def test_published_weights_out_of_reach_are_exit_2_and_say_where_to_put_the_file(tmp_path, capsys):
    touch(tmp_path, "videos/a.mp4")
    assert main(["--root", str(tmp_path / "root"), "--dataset", "mine", "--videos", str(tmp_path / "videos")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    for part in ("s3d_howto100m.pth", str(tmp_path / "cache" / "weights"), "put the file there", "--weights FILE", "--weights random"):
        assert part in printed
    assert not (tmp_path / "root/mine/features").exists(), "nothing was tried"


def test_only_the_demo_falls_back_to_random_weights_and_says_so(tmp_path, capsys):
    work = WorkList(DatasetFolder(tmp_path, "demo"), ["s3d"])
    made = make_extractor("s3d", "pretrained", Namespace(dataset="demo", device="cpu"), work)
    assert made.weights.is_random
    notes = capsys.readouterr().err
    assert "s3d_howto100m.pth" in notes and "seeded random weights for s3d" in notes


def test_a_store_made_with_other_weights_is_not_added_to(half_done):
    with pytest.raises(UserError, match=r"was made with .* weights random \(seed 5\), now asked for: .* random \(seed 0\)") as refused:
        make_extractor("s3d", "random", Namespace(dataset="mine", device="cpu"), WorkList(half_done, ["s3d"]))
    assert str(half_done.features("s3d")) in str(refused.value)


def test_a_broken_video_is_recorded_passed_over_and_tried_again_on_request(tmp_path, capsys, short_video):
    folder, dataset = tmp_path / "videos", DatasetFolder(tmp_path / "root", "mine")
    (folder / "sub").mkdir(parents=True)
    shutil.copy(short_video, folder / "good.mp4")
    render_video(scene(0.6, width=180, height=240, fps="30"), folder / "sub" / "-good too.mp4")
    (folder / "broken.mp4").write_bytes(short_video.read_bytes()[:9000])
    call = ["--root", str(dataset.root), "--dataset", "mine", "--videos", str(folder), "--features", "s3d", "--weights", "random"]

    def stored() -> dict[str, str]:
        store = FeatureStore(dataset.features("s3d"))
        return {video_id: store.source(video_id) for video_id in store.video_ids()}

    assert main(call) == 1
    printed = capsys.readouterr().err
    assert "'broken'" in printed and "features s3d of 2 of 3 videos" in printed
    failures_file = dataset.features("s3d") / "failures.jsonl"
    (failure,) = read_jsonl(failures_file)
    assert (failure["video_id"], failure["path"], failure["kind"]) == ("broken", str(folder / "broken.mp4"), "unreadable")
    assert failure["message"] and failure["source"] == file_identity(folder / "broken.mp4")
    good = {"good": file_identity(folder / "good.mp4"), "sub/-good too": file_identity(folder / "sub" / "-good too.mp4")}
    assert stored() == good
    row = FeatureStore(dataset.features("s3d")).get("good")
    assert row.features.shape == (1, 1024) and row.valid_frames.tolist() == [14]
    assert [json.loads(line)["video_id"] for line in dataset.videos_file.read_text().splitlines()] == ["broken", "good", "sub/-good too"]

    before = {p: p.stat().st_mtime_ns for p in dataset.path.rglob("*") if p.is_file()}
    assert main(call) == 1
    printed = capsys.readouterr().err
    assert "tried" not in printed and "--retry-failed" in printed
    assert {p: p.stat().st_mtime_ns for p in dataset.path.rglob("*") if p.is_file()} == before

    assert main([*call, "--retry-failed"]) == 1
    assert "1 videos tried, 1 problems" in capsys.readouterr().err
    assert len(read_jsonl(failures_file)) == 1

    shutil.copy(short_video, folder / "broken.mp4")
    assert main([*call, "--retry-failed"]) == 0
    assert "1 videos tried, 0 problems" in capsys.readouterr().err
    assert read_jsonl(failures_file) == []
    assert stored() == good | {"broken": file_identity(short_video)}
