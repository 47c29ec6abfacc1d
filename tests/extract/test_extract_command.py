"""vlalign-extract, from the command line."""

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from helpers.videos import scene, touch
from vlalign.extract.cli.extract import main
from vlalign.extract.pipeline.store_extractor import make_extractor
from vlalign.extract.settings import ExtractionSettings, WorkerSettings, parse_weights
from vlalign.extract.videos.demo import render_video
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.common.files import file_identity, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.stores.failure_log import read_failures

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
        (["i3d=i.pth"], ["i3d_resnext101"], {"i3d_resnext101": "i.pth"}),
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
        "an alias",
    ],
)
def test_weights_options(values, features, expected):
    assert parse_weights(values, features) == expected


@pytest.mark.parametrize(
    "values, features",
    [(["w.pth"], "resnet152 or s3d"), (["c3d=w.pth"], "resnet152,s3d")],
    ids=["a file for two", "features not asked for"],
)
def test_weights_options_that_are_refused(values, features):
    with pytest.raises(SettingError) as refused:
        parse_weights(values, ["resnet152", "s3d"])
    assert (refused.value.setting, refused.value.value) == ("weights", values[0]) and features in refused.value.problem


@pytest.mark.parametrize(
    "options, complaint",
    [
        (
            ["--dataset", "mine", "--features", "s3d,c3d"],
            r"--features s3d,c3d: .*'c3d': .*resnet152, .*i3d_resnext101,",
        ),
        (
            ["--dataset", "mine", "--features", "c3d+i3d+tsn"],
            r"'c3d' and 'tsn': .*resnet152,",
        ),
        (["--dataset", "mine", "--features", ""], "'': "),
        (["--features", "s3d"], "--dataset"),
        (
            ["--dataset", "mine"],
            r"videos\.jsonl: .*vlalign-preprocess --dataset mine .*--videos FOLDER",
        ),
        (["--dataset", "mine", "--videos", "nowhere"], "nowhere: "),
        (["--dataset", "../mine", "--videos", "videos"], r"'\.\./mine'"),
        (["--dataset", "mine", "--videos", "videos", "--weights", "c3d=x.pth"], r"--weights c3d=x\.pth: 'c3d'"),
        (["--dataset", "mine", "--videos", "videos", "--weights", "x.pth"], r"weights x\.pth: "),
        (["--dataset", "mine", "--videos", "videos", "--precision", "fp64"], "--precision fp64: "),
        (["--dataset", "mine", "--videos", "videos", "--decoding", "fast"], "--decoding fast: "),
        (["--dataset", "mine", "--videos", "videos", "--tf32", "some"], "--tf32 some: "),
        (["--dataset", "mine", "--videos", "videos", "--trust", "os"], "--trust os: "),
        (["--dataset", "mine", "--videos", "videos", "--allow-host", "http://nas"], "--allow-host http://nas: "),
    ],
    ids=[
        "unknown features",
        "several unknown",
        "no features",
        "no data set",
        "not prepared",
        "no folder",
        "no name",
        "other features",
        "no weights",
        "no precision",
        "no decoding",
        "no TF32",
        "nothing to trust",
        "no host",
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch, options, complaint):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "videos/a.mp4")
    assert main(["--root", str(tmp_path / "root"), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("vlalign-extract: error: ") and printed.err.count("\n") == 1
    assert re.search(complaint, printed.err), printed.err
    assert not list(tmp_path.rglob("*.h5"))


def test_unreachable_weights_exit_with_2_and_name_the_path_for_the_file(tmp_path, capsys):
    touch(tmp_path, "videos/a.mp4")
    assert main(["--root", str(tmp_path / "root"), "--dataset", "mine", "--videos", str(tmp_path / "videos")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    for part in (
        "s3d_howto100m.pth",
        os.path.join(os.environ["VLALIGN_CACHE"], "weights"),
        "--weights FILE",
        "hf:/FOLDER",
    ):
        assert part in printed
    assert not (tmp_path / "root/mine/features").exists(), "nothing was tried"


def test_only_the_demo_falls_back_to_random_weights_and_says_so(tmp_path, capsys):
    made = make_extractor(WorkerSettings(dataset=DatasetFolder(tmp_path, "demo"), weights={"s3d": "pretrained"}), "s3d")
    assert made.weights.is_random
    notes = capsys.readouterr().err
    assert "s3d_howto100m.pth" in notes and "random" in notes


def test_a_store_made_with_other_weights_is_not_added_to(half_done):
    with pytest.raises(UserError, match=r" random \(seed 5\).* random \(seed 0\)") as refused:
        make_extractor(WorkerSettings(dataset=half_done, weights={"s3d": "random"}), "s3d")
    assert str(half_done.features("s3d")) in str(refused.value)


def test_a_broken_video_is_recorded_skipped_and_retried_on_request(tmp_path, capsys, short_video):
    folder, dataset = tmp_path / "videos", DatasetFolder(tmp_path / "root", "mine")
    (folder / "sub").mkdir(parents=True)
    shutil.copy(short_video, folder / "good.mp4")
    render_video(scene(0.6, width=180, height=240, fps="30"), folder / "sub" / "-good too.mp4")
    (folder / "broken.mp4").write_bytes(short_video.read_bytes()[:9000])
    call = [
        "--root",
        str(dataset.root),
        "--dataset",
        "mine",
        "--videos",
        str(folder),
        "--features",
        "s3d",
        "--weights",
        "random",
    ]

    def stored() -> dict[str, str]:
        store = FeatureStore(dataset.features("s3d"))
        return {video_id: store.source(video_id) for video_id in store.video_ids()}

    assert main(call) == 1
    printed = capsys.readouterr().err
    assert "'broken'" in printed and re.search(r"\b2 of 3 videos .*\bs3d", printed)
    failures_file = dataset.features("s3d") / "failures.jsonl"
    (failure,) = read_jsonl(failures_file)
    assert (failure["video_id"], failure["path"], failure["kind"]) == (
        "broken",
        str(folder / "broken.mp4"),
        "unreadable",
    )
    assert failure["message"] and failure["source"] == file_identity(folder / "broken.mp4")
    good = {
        "good": file_identity(folder / "good.mp4"),
        "sub/-good too": file_identity(folder / "sub" / "-good too.mp4"),
    }
    assert stored() == good
    row = FeatureStore(dataset.features("s3d")).get("good")
    assert row.features.shape == (1, 1024) and row.valid_frames.tolist() == [14]
    assert [json.loads(line)["video_id"] for line in dataset.videos_file.read_text().splitlines()] == [
        "broken",
        "good",
        "sub/-good too",
    ]

    before = {p: p.stat().st_mtime_ns for p in dataset.path.rglob("*") if p.is_file()}
    assert main(call) == 1
    printed = capsys.readouterr().err
    assert "tried" not in printed and "--retry-failed" in printed
    assert {p: p.stat().st_mtime_ns for p in dataset.path.rglob("*") if p.is_file()} == before

    assert main([*call, "--retry-failed"]) == 1
    assert re.search(r": 1 video .*\b1 ", capsys.readouterr().err)
    assert len(read_jsonl(failures_file)) == 1

    shutil.copy(short_video, folder / "broken.mp4")
    assert main([*call, "--retry-failed"]) == 0
    assert re.search(r": 1 video .*\b0 ", capsys.readouterr().err)
    assert read_failures(failures_file) == {}
    assert stored() == good | {"broken": file_identity(short_video)}

    shutil.copy(short_video, folder / "new.mp4")
    assert main([*call, "--retry-failed"]) == 1
    printed = capsys.readouterr().err
    assert "3 of 4 videos" in printed and "1 video not tried" in printed and "now: " not in printed
    assert main(call) == 0 and stored().keys() == good.keys() | {"broken", "new"}


def test_too_many_failures_end_the_call_with_the_commonest_reasons_and_accepted_ones_do_not_count(tmp_path, capsys):
    folder = tmp_path / "sounds"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.wav").write_bytes(name.encode() * 2000)
    root = ["--root", str(tmp_path / "root"), "--dataset", "mine"]
    call = [*root, "--videos", str(folder), "--features", "logmel", "--max-failures", "1"]
    assert main(call) == 1
    *_, reason, error = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"failures: \w+: 2 videos, such as .*/[abc]\.wav: .+", reason), reason
    assert re.fullmatch(r"vlalign-extract: error: 2 videos of 2 failed, more than --max-failures 1 allows; .+", error)

    failures = read_jsonl(DatasetFolder(tmp_path / "root", "mine").features("logmel") / "failures.jsonl")
    (kind,) = {failure["kind"] for failure in failures}
    accepting = [*call, "--accept-failures", kind]
    assert main(accepting) == 0, "the third has failed, too, and is accepted"
    assert main([*accepting, "--retry-failed"]) == 0
    assert main(call) == 1


@pytest.mark.parametrize(
    "line, option",
    [("precision: fp64", "--precision fp64"), ("fps: many", "--fps"), ("weights: [c3d=x.pth]", "--weights c3d=x.pth")],
)
def test_a_wrong_setting_in_an_option_file_names_file_line_and_option(tmp_path, capsys, line, option):
    path = tmp_path / "options.yaml"
    path.write_text(f"dataset: mine\n{line}\n")
    try:
        code = main(["--root", str(tmp_path / "root"), "--config", str(path)])
    except SystemExit as ended:  # a value that is no number
        code = ended.code
    printed = capsys.readouterr().err
    assert code == 2 and printed.count("\n") == 1
    assert f"{path}, line 2: " in printed and option in printed


def test_settings_that_are_copied_keep_encoders_and_weights(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    settings = ExtractionSettings(dataset=dataset.path, features="i3d,hf:a/b", fps=2.0, weights=["i3d=x.pth"])
    copied = replace(settings, dataset=tmp_path / "other" / "mine")
    assert settings.store_names == copied.store_names == ["i3d_resnext101", "a--b--2fps"]
    assert copied.encoders == settings.encoders and copied.chosen_weights == {"i3d_resnext101": "x.pth"}
