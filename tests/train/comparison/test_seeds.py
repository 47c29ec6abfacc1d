"""Several seeds: a run each, kept or continued, and their mean."""

import csv
import re
import statistics

import pytest
from helpers.toy import make_toy
from helpers.training import TRAIN_COMMAND, TWO_STEPS, at, torchrun
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.files import read_json
from vlalign.train.cli.train import main as train_main
from vlalign.train.comparison.seeds import parse_seeds, shown_seeds, train_seeds

SETTINGS = {"objective": "taco", "features": "s3d", "num_steps": 2, "batch_size": 4, "num_negatives": 2}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("toy"))


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds("0-4") == (0, 1, 2, 3, 4)
    assert parse_seeds("7,2,5-6") == (7, 2, 5, 6)
    assert [shown_seeds(parse_seeds(text)) for text in ("0-4", "3", "7,2")] == ["0-4", "3", "7_2"]


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "4-2", "1,1", "0-99999999999", "1.5"])
def test_what_is_no_list_of_seeds_is_refused(text):
    with pytest.raises(SettingError, match=f"^seeds {re.escape(text or '(empty)')}: "):
        parse_seeds(text)


def test_each_seed_gets_a_run_and_the_table_has_their_mean(toy, capsys):
    assert train_main([*at(toy), *TWO_STEPS, "--seeds", "0,3"]) == 0
    folders = sorted(toy.runs.iterdir())
    assert [folder.name.rpartition("-")[2] for folder in folders] == ["seed0", "seed3"]
    recalls = [read_json(folder / "metrics.json")["metrics"]["text_to_video"]["R@1"] for folder in folders]
    [path] = toy.comparisons.glob("*-seeds0_3.csv")
    *rows, mean = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    assert [float(row["R@1"]) for row in rows] == recalls and [row["seed"] for row in rows] == ["0", "3"]
    assert float(mean["R@1"]) == pytest.approx(statistics.mean(recalls))
    assert float(mean["R@1 deviation"]) == pytest.approx(statistics.stdev(recalls))
    shown = capsys.readouterr().out
    assert "mean of 2" in shown and f"table: {path.with_suffix('.md')} and {path}" in shown
    assert path.with_suffix(".md").read_text(encoding="utf-8").count("| taco-s3d-") == 2


@pytest.mark.slow
def test_complete_runs_are_kept_and_unfinished_ones_continue(toy, capsys):
    train_seeds(toy.path, seeds=[5, 6], settings=SETTINGS, run_name="kept")
    first, second = (toy.runs / f"kept-seed{seed}" for seed in (5, 6))
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    (second / "run.json").unlink()
    capsys.readouterr()
    result = train_seeds(toy.path, seeds=[5, 6], settings=SETTINGS, run_name="kept")
    assert [run.was_trained_before for run in result.runs] == [True, False]
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()} == before
    assert (second / "run.json").exists() and capsys.readouterr().out == ""
    assert [file.name for file in result.files] == ["kept-seeds5-6.md", "kept-seeds5-6.csv"]


@pytest.mark.slow
def test_several_processes_train_one_seed_after_the_other(toy):
    done = torchrun(2, "--no-python", TRAIN_COMMAND, *at(toy), *TWO_STEPS, "--seeds", "0-1", "--run-name", "two")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("mean of 2") == 1, "the first process evaluates"
    assert sorted(path.name for path in toy.runs.glob("two-*")) == ["two-seed0", "two-seed1"]


def test_seed_and_seeds_exclude_each_other(toy, capsys):
    assert train_main([*at(toy), *TWO_STEPS, "--seed", "1", "--seeds", "0-1"]) == 2
    assert "--seed 1: " in (error := capsys.readouterr().err) and "--seeds" in error
