"""Windows that overlap, and windows with frames left out between them, against a second implementation that holds
the whole video."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.extractors import stub
from helpers.videos import scene
from vlalign.extract import extract_video
from vlalign.extract.decoding.decode import decode_video
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.sampling import FrameSpec, Window, WindowAssembler, num_windows, window_times
from vlalign.extract.extractor import Extractor, check_extractable
from vlalign.extract.pipeline.probing import probe_videos
from vlalign.extract.pipeline.video_jobs import frame_spec_of
from vlalign.extract.videos.demo import render_video
from vlalign.storage import Profile
from vlalign.storage.profiles import PROFILES

HASHES = {
    "resnet152": "d0a40256e223eb16",
    "resnet152_map": "f7d7a77f96d494a1",
    "resnet50_map": "0da00139b8bbb865",
    "i3d_resnext101": "d12017b0e7d0ca9e",
    "i3d_resnet152": "2de03a3dad17c243",
    "s3d": "b6a5d85a047bc82e",
    "s3d_univl": "ee04ecbcd6922f9c",
    "clip_vit_b32": "4362d8939c3b7537",
    "clip_vit_b32_map": "6ef1ec765c1059ec",
    "r2plus1d": "f21ced6c27c49257",
    "slowfast": "de475195098cbc94",
    "slowfast_r101": "347b55c7f8dca19e",
    "logmel": "c7223358f2d09074",
    "shots": "3f2bad328301112b",
}
SHAPES = [(16, 16), (16, 8), (16, 5), (16, 1), (16, 20), (16, 40), (1, 1), (1, 3), (4, 3), (4, 100), (100, 7)]


def plain_windows(frames: np.ndarray, window: int, stride: int, tail: str) -> list[tuple[int, int, np.ndarray]]:
    """(first frame, how many are real, frames) of each window."""
    found, first = [], 0
    while first < len(frames):
        real = list(frames[first : first + window])
        filled = [
            real[n % len(real)] if n < len(real) or tail == "loop" else np.zeros_like(real[0]) for n in range(window)
        ]
        found.append((first, len(real), np.stack(filled)))
        if first + window >= len(frames):
            break
        first += stride
    return found


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("video") / "v.mp4"
    render_video(scene(2.1), path)
    return path


def test_a_last_window_is_filled_as_heros_extractor_does():
    """Padded with its last frame to a whole second, then with that second again, at 30 frames a second; here 4."""
    tail = "last frame to a whole second, then that second"
    for num_frames, expected in (
        (1, [0, 0, 0, 0, 0, 0, 0, 0]),
        (3, [0, 1, 2, 2, 0, 1, 2, 2]),
        (4, [0, 1, 2, 3, 0, 1, 2, 3]),
        (6, [0, 1, 2, 3, 4, 5, 5, 5]),
        (8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (9, [8, 8, 8, 8, 8, 8, 8, 8]),
    ):
        windows = WindowAssembler(0, FrameSpec(4, 8, 2, None, tail), np.arange(num_frames))
        rows = []
        for number in range(num_frames):
            rows += [row.frames.copy() for row in windows.add(number, np.full((2, 2, 3), number, np.uint8))]
        rows += [row.frames.copy() for row in windows.finish()]
        assert rows[-1][:, 0, 0, 0].tolist() == expected


@pytest.mark.parametrize("tail", ["loop", "black frames"])
def test_windows_are_those_of_a_plain_loop(video, tail):
    info = probe_video(video)
    every = FrameSpec(20, 1, 32, None, "none")
    wanted = [every, *(FrameSpec(20, window, 32, None, tail, stride=stride) for window, stride in SHAPES)]
    rows: list[list[np.ndarray]] = [[] for _ in wanted]
    for part in decode_video(info, wanted):
        if isinstance(part, Window):
            rows[part.spec_index].append(part.frames.copy())
    frames = np.stack(rows[0])
    assert len(frames) == 42
    for (window, stride), made in zip(SHAPES, rows[1:], strict=True):
        expected = plain_windows(frames, window, stride, tail)
        assert len(made) == len(expected), (window, stride)
        for one, (_, _, other) in zip(made, expected, strict=True):
            np.testing.assert_array_equal(one, other[0] if window == 1 else other)


def test_times_and_numbers_of_windows_are_those_of_a_plain_loop():
    for num_frames in range(1, 60):
        for window, stride in SHAPES:
            expected = plain_windows(np.arange(num_frames), window, stride, "loop")
            starts, ends, valid = window_times(num_frames, 3, window, 24, (num_frames + 2.5) / 24, stride=stride)
            assert num_windows(num_frames, window, stride) == len(expected)
            assert valid.tolist() == [real for _, real, _ in expected]
            assert starts == pytest.approx([(3 + first) / 24 for first, _, _ in expected])
            assert ends == pytest.approx([min(3 + first + window, 3 + num_frames) / 24 for first, _, _ in expected])


@pytest.mark.parametrize("stride", [4, 16, 24])
def test_the_store_the_plan_and_the_decoder_agree_about_the_rows(video, stride):
    usual = stub("s3d")
    extractor = replace(usual, profile=replace(usual.profile, stride=stride))
    made = extract_video(video, [extractor])["s3d"]
    ((_, planned),) = probe_videos([("v", video)], [extractor.profile], 1)
    frames = 2.1 * 24
    assert planned.num_rows == {"s3d": len(made.features)} == {"s3d": num_windows(round(frames), 16, stride)}
    np.testing.assert_allclose(np.diff(made.start_seconds), stride / 24)
    assert (made.valid_frames[:-1] == 16).all() and made.valid_frames[-1] == min(
        16, round(frames) - stride * (len(made.features) - 1)
    )
    rows = [
        part.frames.copy()
        for part in decode_video(probe_video(video), [frame_spec_of(extractor.profile)])
        if isinstance(part, Window)
    ]
    again = extractor.features(np.stack(rows)).numpy()
    np.testing.assert_allclose(made.features, again, rtol=1e-5)


# The profile


def test_hashes_of_profiles_have_not_changed():
    assert {name: profile.hash for name, profile in PROFILES.items()} == HASHES
    for profile in PROFILES.values():
        check_extractable(profile)
        assert Profile.from_json(profile.to_json()) == profile


def test_all_errors_of_a_profile_are_in_one_line():
    wrong = {
        "fps": -1,
        "window": 0,
        "stride": 1.5,
        "short_side_px": None,
        "crop_px": 0,
        "mean": (1, 2),
        "std": "none",
        "tail": 3,
    }
    with pytest.raises(ValueError) as refused:
        Profile(**asdict(PROFILES["s3d"]) | wrong)
    assert "\n" not in str(refused.value) and all(f"field {name!r} is " in str(refused.value) for name in wrong)


UNKNOWN = {
    "fps": 29.97,
    "resize": "area",
    "value_range": "-1..1",
    "tail": "mirror",
    "precision": "int8",
    "crop_px": 500,
    "std": (1.0, 0.0, 1.0),
}


def test_a_profile_that_cannot_be_extracted_is_readable_and_refused_early():
    profile = replace(PROFILES["s3d"], **UNKNOWN)
    assert Profile.from_json(profile.to_json()) == profile
    with pytest.raises(ValueError) as refused:
        replace(stub("s3d"), profile=profile)
    assert "\n" not in str(refused.value) and all(f"{name} is " in str(refused.value) for name in UNKNOWN)


@pytest.mark.parametrize("field", sorted(UNKNOWN))
def test_each_unsupported_profile_field_is_refused_by_extraction(field):
    with pytest.raises(ValueError, match=f"'s3d' .*: {field} is .*{re.escape(repr(UNKNOWN[field]))}"):
        check_extractable(replace(PROFILES["s3d"], **{field: UNKNOWN[field]}))


def test_log_mel_features_are_computed_in_one_way():
    with pytest.raises(ValueError, match=r"stride is 80,.* 160"):
        check_extractable(replace(PROFILES["logmel"], stride=80))


def test_pixel_values_are_scaled_to_the_value_range():
    seen = []

    class Network(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            seen.append(values)
            return values.flatten(1)

    frames = np.full((1, 2, 2, 3), 255, np.uint8)
    for value_range, expected in (("0..1", 1.0), ("0..255", 255.0)):
        profile = replace(PROFILES["resnet152"], value_range=value_range, mean=(0.0,) * 3, std=(1.0,) * 3)
        replace(stub("resnet152"), profile=profile, network=Network()).features(frames)
        assert (seen[-1] == expected).all()
    assert isinstance(stub("resnet152"), Extractor)
