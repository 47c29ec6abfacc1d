"""NVIDIA's video engine: when it is used, what it is compared with, and what happens where it cannot be.

No test here needs a GPU. That of the real engine is in ``tests/test_on_gpu.py``.
"""

import re
from dataclasses import asdict, replace
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from helpers.decoding import REAL, any_video, ask, differences, needs_torchcodec, pictures_by, take, want
from helpers.extractors import stub
from helpers.fake_cuda import pretended
from helpers.needs import SYSTEM, skip_without
from vlalign.extract import load_extractor
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.decoding import nvdec_backend
from vlalign.extract.decoding.backends import choose_backends
from vlalign.extract.decoding.errors import DecoderRejected
from vlalign.extract.decoding.frames import DecodePass
from vlalign.extract.decoding.kernels import LIBSWSCALE, PILLOW, Size
from vlalign.extract.decoding.nvdec_backend import (
    MAX_DIFFERENCE,
    Engine,
    check_near,
    decode_with_nvdec,
    frames_of_cpu,
    frames_to_compare,
    refusal_of,
)
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.pipeline.engine import nvdec_device
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.storage.records import Profile
from vlalign.storage.stores.store_info import describe

NO_GPU = skip_without(SYSTEM, ["a CUDA that refuses"] if torch.cuda.is_available() else [])
SATURATED = ["ok_h264.mp4", list(REAL)[4]]
"""Videos on which the matrix of another standard shows."""


@pytest.fixture
def engine(monkeypatch):
    """Return a function that lets this process decode on a device."""
    return lambda device="cuda:0", refusal="": monkeypatch.setattr(nvdec_backend, "_engine", Engine(device, refusal))


# What it is compared with


@pytest.fixture(params=SATURATED)
def frames(request) -> list[np.ndarray]:
    info = probe_video(any_video(request.param))
    return frames_of_cpu(DecodePass(info, []), frames_to_compare(info, np.arange(0, len(info.pts), 10)))


def by_matrix_of_709(rgb: np.ndarray) -> np.ndarray:
    """What comes of taking YCbCr of BT.601 for that of BT.709."""
    r, g, b = np.moveaxis(rgb.astype(float), -1, 0)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    cb, cr = (b - y) / 1.772, (r - y) / 1.402
    return np.stack([y + 1.5748 * cr, y - 0.1873 * cb - 0.4681 * cr, y + 1.8556 * cb], axis=-1)


def rounded(frames: list[np.ndarray]) -> list[np.ndarray]:
    return [np.clip(np.rint(frame), 0, 255).astype(np.uint8) for frame in frames]


def test_the_same_frames_and_other_roundings_are_near(frames):
    rng = np.random.default_rng(0)
    check_near(frames, frames)
    check_near(rounded([frame + rng.integers(-1, 2, frame.shape) for frame in frames]), frames)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frames: rounded([by_matrix_of_709(frame) for frame in frames]), r"\d of 255"),
        (lambda frames: rounded([(frame - 16.0) * 255 / 219 for frame in frames]), r"\d of 255"),
        (lambda frames: [frame[..., ::-1] for frame in frames], r"\d of 255"),
        (lambda frames: [frame[1:] for frame in frames], "^[^0-9]+$"),
        (lambda frames: frames[1:], "^[^0-9]+$"),
    ],
    ids=["another matrix", "another range", "blue for red", "another size", "a frame fewer"],
)
def test_frames_of_another_meaning_are_not_near(frames, change, words):
    with pytest.raises(DecoderRejected, match=words):
        check_near(change(frames), frames)


def test_another_frame_is_not_near(frames):
    with pytest.raises(DecoderRejected):
        check_near([*frames[1:], frames[0]], frames)


def test_one_frame_too_far_is_enough():
    frames = [np.full((4, 4, 3), 100, np.uint8)] * 3
    wrong = [*frames[:2], frames[2] + np.uint8(MAX_DIFFERENCE + 1)]
    with pytest.raises(DecoderRejected, match=r"2\.0 of 255"):
        check_near(wrong, frames)


@pytest.mark.parametrize(
    ("wanted", "compared"),
    [(range(0, 250, 25), [0, 25, 50]), (range(10, 250), [10, 26, 43, 60]), ([7], [7]), ([7, 200], [7])],
)
def test_up_to_four_frames_of_two_seconds_are_compared(with_sound, wanted, compared):
    info = replace(probe_video(with_sound), pts=np.arange(250), time_base=Fraction(1, 25))
    assert frames_to_compare(info, np.array(wanted)).tolist() == compared


# The path of the frames, with torchcodec's CPU decoder in place of the GPU's


@needs_torchcodec
@pytest.mark.parametrize(
    "name, most",
    [("ok_h264.mp4", 3.5), (SATURATED[-1], 2.5), (list(REAL)[-1], 2.5)],  # a test picture has sharp edges everywhere
)
def test_frames_are_scaled_from_rgb_to_nearly_the_same_pictures(engine, name, most):
    engine("cpu")
    info, sizes = probe_video(any_video(name)), [Size(224, LIBSWSCALE), Size(112, PILLOW)]
    wanted = np.arange(0, min(len(info.pts), 100), 25)
    expected, _ = pictures_by("pyav", info, sizes, wanted)
    decoding = DecodePass(info, sizes)
    indices, found = zip(*decode_with_nvdec(decoding, wanted), strict=True)
    assert list(indices) == wanted.tolist() and list(decoding.delivered) == info.pts.tolist()
    scaled_by_ffmpeg, scaled_by_pillow = (np.stack([pictures[i] for pictures in found]) for i in range(2))
    np.testing.assert_array_equal(scaled_by_pillow, expected[1])
    assert 0 < differences(scaled_by_ffmpeg, expected[0]).max() < most


@needs_torchcodec
def test_a_file_that_it_reads_has_its_name(engine, with_sound):
    engine("cpu")
    taken = take(with_sound, want(2, 64))
    assert taken.begun == ["NVDEC"] and taken.finished.decoder.startswith("NVDEC, torchcodec ")
    assert not taken.finished.fallback_reason and not taken.finished.partial


# What it cannot read


@needs_torchcodec
@NO_GPU
def test_what_cuda_refuses_is_decoded_as_always_and_said(engine, with_sound):
    engine("cuda:0")
    taken, expected = take(with_sound, want(2, 64)), take(with_sound, want(2, 64), excluded_decoders=("NVDEC",))
    assert (taken.begun, expected.begun) == (["NVDEC", "PyAV"], ["PyAV"])
    np.testing.assert_array_equal(taken.frames, expected.frames)
    assert taken.finished.decoder == expected.finished.decoder
    reason = taken.finished.fallback_reason
    assert ("NVIDIA" in reason or "aten::empty" in reason) and "\n" not in reason  # the second: by torch 2.11
    assert expected.finished.fallback_reason not in ("", reason)


def test_files_that_it_is_not_trusted_with_are_left_with_the_reason(engine, with_sound, tmp_path):
    info, path = probe_video(with_sound), tmp_path / "full-chroma.mp4"
    with av.open(str(path), "w") as written:
        stream = written.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv444p"
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            written.mux(stream.encode(frame))
        written.mux(stream.encode(None))
    engine()
    assert refusal_of(info) == ""
    assert refusal_of(replace(info, timed=False)) != refusal_of(replace(info, missing="half of it")) != ""
    for text in ("yuv444p", "yuv420p", "yuvj420p"):
        assert text in refusal_of(probe_video(path))
    taken = take(path, want(25, 48))
    assert taken.begun == ["NVDEC", "PyAV"] and taken.finished.fallback_reason == refusal_of(probe_video(path))


def test_it_is_tried_only_where_it_was_asked_for(engine, with_sound):
    info = probe_video(with_sound)
    assert choose_backends(info, [Size(64)])[0] == "PyAV"
    engine()
    assert choose_backends(info, [Size(64)])[:2] == ["NVDEC", "PyAV"]
    assert choose_backends(info, [Size(64)], ["NVDEC"])[0] == "PyAV"


@needs_torchcodec
@NO_GPU
@pytest.mark.slow
def test_a_process_without_a_gpu_is_confined_and_decodes_as_always(with_sound):
    process, plain = DecodeProcess(gpu="cuda:0"), DecodeProcess()
    try:
        ended, again, expected = (ask(of, with_sound, want(2, 64)) for of in (process, process, plain))
    finally:
        process.close()
        plain.close()
    assert (ended.begun, expected.begun) == (["NVDEC", "PyAV"], ["PyAV"])
    assert ended.finished.fallback_reason == again.finished.fallback_reason
    assert ended.finished.fallback_reason.startswith("cuda:0 ")
    np.testing.assert_array_equal(np.stack(ended.rows), np.stack(expected.rows))


# The profile


def test_exact_profiles_keep_their_json_and_hash():
    profile = PROFILES["s3d"]
    other = replace(profile, decoding="nvdec")
    assert "decoding" not in profile.to_json() and '"decoding": "nvdec"' in other.to_json()
    assert profile.hash != other.hash
    for each in (profile, other):
        assert Profile.from_json(each.to_json()) == each
    without = {name: value for name, value in asdict(profile).items() if name != "decoding"}
    assert not Profile.faults(without) and Profile.faults(without | {"decoding": 1})


def test_profiles_of_both_kinds_are_not_decoded_together():
    exact = stub()
    other = replace(exact, profile=replace(exact.profile, decoding="nvdec"), device=torch.device("cuda:1"))
    assert (nvdec_device([exact]), nvdec_device([other])) == ("", "cuda:1")
    assert nvdec_device([replace(other, device=torch.device("cpu"))]) == ""
    with pytest.raises(ValueError, match=r"'exact'.*'nvdec'"):
        nvdec_device([exact, other])


def test_it_needs_a_gpu():
    with pytest.raises(UserError, match=r"^decoding nvdec: .*\bcpu\b"):
        load_extractor("resnet152", weights="random", decoding="nvdec")


@needs_torchcodec
@NO_GPU
@pytest.mark.slow
def test_a_store_says_so_and_refuses_other_rows(with_sound, tmp_path, capsys):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").write_bytes(with_sound.read_bytes())
    call = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(tmp_path / "videos")]
    call += ["--features", "resnet152", "--weights", "random"]
    with pretended():
        assert extract_main([*call, "--device", "cuda", "--decoding", "nvdec"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"\bCPU\b.*\bcuda\b", said)
    store = FeatureStore(DatasetFolder(tmp_path, "mine").features("resnet152"))
    assert store.profile == replace(PROFILES["resnet152"], decoding="nvdec")
    [decoder] = describe(store).decoders
    assert decoder.startswith("PyAV ")
    (tmp_path / "videos" / "b.mp4").write_bytes(with_sound.read_bytes())
    assert extract_main([*call, "--device", "cpu"]) == 2
    assert str(store.folder) in capsys.readouterr().err
