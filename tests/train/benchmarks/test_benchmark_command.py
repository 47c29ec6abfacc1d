"""The command vlalign-benchmark: options, mistakes, and moments from the annotation files to the metrics."""

import json
from pathlib import Path

import pytest
from helpers.captions import call
from helpers.clips_of_text import save_clip_with_processor
from helpers.videos import extract_two_shapes
from vlalign.storage.common.errors import EXIT_INCOMPLETE, SettingError
from vlalign.train.benchmarks import BENCHMARKS
from vlalign.train.benchmarks.run import _RUNS, USES, MeasureSettings, measure
from vlalign.train.cli.benchmark import main, make_parser
from vlalign.train.search.search_source import SearchSource

NOWHERE = SearchSource("nowhere", features="none")


def test_every_benchmark_can_be_run():
    assert set(BENCHMARKS) == set(USES) == set(_RUNS)


@pytest.mark.parametrize(
    "words", ["moments --dataset d my-run", "moments my-run --dataset d", "--dataset d moments my-run"]
)
def test_a_run_is_named_anywhere(words):
    args = make_parser().parse_args(words.split())
    assert (args.benchmark, args.run, args.dataset) == ("moments", "my-run", "d")


@pytest.mark.parametrize(
    ("benchmark", "settings", "named"),
    [
        ("none", {}, "benchmark"),
        ("moments", {"ground_truth": [Path("a.csv")]}, "ground_truth"),
        ("moments", {"like_weight": 0.2}, "like_weight"),
        ("copies", {}, "ground_truth"),
        ("copies", {"ground_truth": [Path("a"), Path("b")]}, "ground_truth"),
        ("copies", {"ground_truth": [Path("a")], "split": "test"}, "split"),
        ("composed", {}, "ground_truth"),
        ("composed", {"ground_truth": [Path("nowhere/gt.json")]}, "ground_truth"),
        ("composed", {"ground_truth": [Path("a")], "like_weight": 1.5}, "like_weight"),
    ],
)
def test_settings_without_effect_are_refused(benchmark, settings, named):
    with pytest.raises(SettingError) as refused:
        measure(benchmark, NOWHERE, MeasureSettings(**settings))
    assert refused.value.setting == named and "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two videos, and Charades-STA's files about them and a third one."""
    folder = tmp_path_factory.mktemp("root")
    model = save_clip_with_processor(folder / "small")
    dataset = extract_two_shapes(folder, "--features", f"hf:{model}")
    dataset.path.rename(folder / "charades_sta")
    annotations = folder / "charades_sta" / "annotations"
    annotations.mkdir()
    (annotations / "charades_sta_train.txt").write_text("v0 0.0 0.5##a box falls\n")
    (annotations / "charades_sta_test.txt").write_text("v0 0.0 0.5##a red ball falls\nv1 0.0 0.4##a box\ngone 0 1##x\n")
    return folder


def test_official_files_are_measured_from_the_command_line(root, capsys):
    at = ["--dataset", "charades_sta"]
    assert call(root, *at) == EXIT_INCOMPLETE, "a video is missing"
    capsys.readouterr()
    measured = ["moments", "--root", str(root), *at, "--features", f"hf:{root / 'small'}"]
    assert main(measured) == EXIT_INCOMPLETE, "a video is missing"
    out, errors = capsys.readouterr()
    assert "small: moments of charades_sta, 2 of 3 queries in 2 videos" in out and "'gone'" in errors
    assert "not comparable with published numbers" in out and "R@1, IoU 0.5" in out
    folder = root / "charades_sta" / "benchmarks" / "moments-small"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["left_out"] == 1 and metrics["settings"] == {"split": None, "protocol": None}
    assert metrics["identity"] and metrics["metrics"].keys() == {"search", "random baseline"}
    rows = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    assert [row["video_id"] for row in rows] == ["v0", "v1"]
    assert main([*measured, "--split", "validation"]) == 2
    assert "no caption with times has split 'validation'" in capsys.readouterr().err
    assert main([*measured, "--split", "train"]) == 0
    assert (folder.with_name("moments-small-train") / "metrics.json").exists()


def test_a_folder_that_leads_out_is_not_written(root, tmp_path, capsys):
    folder = root / "charades_sta" / "benchmarks"
    aside = folder.with_name("aside")
    if folder.exists():
        folder.rename(aside)
    folder.symlink_to(tmp_path, target_is_directory=True)
    try:
        call(root, "--dataset", "charades_sta")
        measured = ["moments", "--root", str(root), "--dataset", "charades_sta", "--features", f"hf:{root / 'small'}"]
        assert main(measured) == 2
        assert list(tmp_path.iterdir()) == [] and "benchmarks" in capsys.readouterr().err
    finally:
        folder.unlink()
