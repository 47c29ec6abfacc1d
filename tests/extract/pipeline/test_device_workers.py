"""Extraction in a process for each device, with two processes on this machine's CPU in place of two GPUs."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.extractors import Means, stub
from helpers.videos import scene
from vlalign.extract.cli.extract import main
from vlalign.extract.pipeline import store_extractor
from vlalign.extract.pipeline.store_extractor import choose_devices, has_features_of
from vlalign.extract.settings import ExtractionSettings
from vlalign.extract.videos.demo import render_video
from vlalign.storage import FeatureStore
from vlalign.storage.dataset.folder import DatasetFolder

NUM_VIDEOS = 40


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    render_video(scene(0.6), folder / "v00.mp4")
    for number in range(1, NUM_VIDEOS):
        shutil.copy(folder / "v00.mp4", folder / f"v{number:02d}.mp4")
    return folder


def call(root, videos, features: str, *options: str) -> list[str]:
    at = ["--root", str(root), "--dataset", "mine", "--videos", str(videos)]
    return [*at, "--features", features, "--weights", "random", *options]


@pytest.mark.parametrize("features", ["logmel", pytest.param("resnet152,logmel", marks=pytest.mark.slow)])
def test_two_devices_make_one_store_with_the_rows_of_one(tmp_path, videos, features, capsys):
    (videos / "broken.mp4").write_bytes(b"no video")
    assert main(call(tmp_path / "two", videos, features, "--device", "cpu,cpu")) == 1
    said = capsys.readouterr().err.splitlines()
    assert main(call(tmp_path / "one", videos, features, "--device", "cpu")) == 1
    two, one = (DatasetFolder(tmp_path / name, "mine") for name in ("two", "one"))
    lines = "\n".join(said)
    assert re.search(rf"^{re.escape(str(two.path))}: .*\b2 .*: cpu, cpu$", lines, re.MULTILINE)
    assert re.search(rf"^{re.escape(str(two.path))}: {NUM_VIDEOS + 1} videos .*\b1 ", lines, re.MULTILINE)
    if "resnet152" in features:  # which takes long enough that each process gets videos
        assert len(list(two.features("resnet152").glob("*.h5"))) == 2
    for name in features.split(","):
        of_two, of_one = FeatureStore(two.features(name)), FeatureStore(one.features(name))
        assert set(of_two.video_ids()) == set(of_one.video_ids()) and len(of_two) == NUM_VIDEOS
        for video_id in of_one.video_ids():
            np.testing.assert_array_equal(of_two.get(video_id).features, of_one.get(video_id).features)
        failures = [(dataset.features(name) / "failures.jsonl").read_text() for dataset in (two, one)]
        assert failures[0] == failures[1] != ""
        assert {shard.made_with["device"] for shard in of_two.shards} == {"cpu"}
    (videos / "broken.mp4").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cuda:77", "gpu"])
def test_a_mistake_that_a_process_finds_is_one_line(tmp_path, videos, device, capsys):
    assert main(call(tmp_path, videos, "resnet152,logmel", "--device", f"cpu,{device}")) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"vlalign-extract: error: --device {device}: ")


# Apple's GPU: chosen only where it computes what the CPU does


@pytest.mark.parametrize(("factor", "chosen"), [(1.0, ["mps"]), (1.0001, ["mps"]), (1.1, ["cpu"]), (None, ["cpu"])])
def test_the_gpu_of_apple_is_used_only_if_its_features_are_right(tmp_path, monkeypatch, capsys, factor, chosen):
    class Other(Means):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if factor is None:
                raise NotImplementedError("aten::avg_pool3d is not implemented for MPS")
            return factor * super().forward(x)

    made = {"cpu": {"s3d": stub()}, "mps": {"s3d": replace(stub(), network=Other())}}
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(store_extractor, "make_extractors", lambda worker: made[worker.device])
    settings = ExtractionSettings(dataset=tmp_path / "mine")
    assert choose_devices(settings, {"s3d": "random"}) == chosen
    assert ("Apple's GPU" in capsys.readouterr().err) == (chosen == ["cpu"])
    assert choose_devices(replace(settings, device="mps"), {"s3d": "random"}) == ["mps"]


def test_features_of_sound_are_the_same_on_all_devices():
    sound = store_extractor.load_extractor("logmel")
    assert has_features_of(sound, sound)


def test_all_gpus_are_chosen_before_any_other_device(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    settings = ExtractionSettings(dataset=tmp_path / "mine")
    assert choose_devices(settings, {"s3d": "random"}) == ["cuda:0", "cuda:1", "cuda:2"]
