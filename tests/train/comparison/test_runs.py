"""vlalign-runs: the table of runs, pairs of runs, deleting and renaming. What a run says is not trusted."""

import csv
import fcntl
import io
import json
import re
import shutil

import numpy as np
import pytest
from helpers.toy import make_toy
from helpers.training import TWO_STEPS, at
from vlalign.storage import Caption, read_captions
from vlalign.storage.captions.files import read_captions_about, write_captions_about, write_part
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_json, read_jsonl, write_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.comparison.groups import list_runs
from vlalign.train.comparison.manage import delete_run, rename_run
from vlalign.train.comparison.paired_runs import read_query_results
from vlalign.train.comparison.published import published_values
from vlalign.train.comparison.suite_files import read_suite, row_config
from vlalign.train.intervals import paired_bootstrap

CHOSEN = [*TWO_STEPS, "--stage-weights", "validation"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    assert train_main([*at(toy), *CHOSEN, "--run-name", "a", "--seeds", "0-1"]) == 0
    assert train_main([*at(toy), *CHOSEN, "--losses", "sentence+fusion", "--run-name", "b"]) == 0
    assert evaluate_main([*at(toy), "b"]) == 0
    return toy


@pytest.fixture
def toy(trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "toy")
    return type(trained)(tmp_path, "toy")


def table(toy, capsys, *call):
    capsys.readouterr()
    code = runs_main([*at(toy), "--format", "csv", *call])
    shown = capsys.readouterr()
    return code, list(csv.DictReader(shown.out.splitlines())), shown.err


def test_runs_are_grouped_over_seeds_with_settings_and_test_set(toy, capsys):
    code, rows, _ = table(toy, capsys, "--sort", "run")
    assert code == 0 and [row["run"] for row in rows] == ["a-seeds0,1", "b"]
    recalls = [read_json(toy.runs / f"a-seed{s}" / "metrics.json")["metrics"]["text_to_video"]["R@5"] for s in (0, 1)]
    assert float(rows[0]["R@5"]) == pytest.approx(np.mean(recalls))
    assert float(rows[0]["R@5 deviation"]) == pytest.approx(np.std(recalls, ddof=1))
    assert "losses=sentence" in rows[1]["settings"] and "losses" not in rows[0]["settings"]
    assert rows[0]["test set"] == read_json(toy.runs / "b" / "metrics.json")["split_checksum"]
    assert rows[0]["used"] == "whole: 6 captions and 6 clips"


def test_weights_that_validation_chose_do_not_part_seeds(toy, capsys):
    for seed, chosen in ((0, {"token": 0.0}), (1, {"token": 0.5})):
        path = toy.runs / f"a-seed{seed}" / "run.json"
        about = read_json(path)
        write_json(path, about | {"result": about["result"] | {"stage_weights": chosen}})
        assert evaluate_main([*at(toy), f"a-seed{seed}"]) == 0
    assert read_json(toy.runs / "a-seed1" / "metrics.json")["fingerprint"]["weights"]["token"] == 0.5
    rows = table(toy, capsys, "--sort", "run")[1]
    assert [(row["run"], "weights" in row["settings"]) for row in rows] == [("a-seeds0,1", False), ("b", False)]
    assert evaluate_main([*at(toy), "a-seed1", "--token-weight", "0.25"]) == 0
    assert table(toy, capsys, "--sort", "run")[1] == rows, "results of other weights have their own place"


def test_the_best_comes_first_and_conditions_choose(toy, capsys):
    for name, best in (("R@5", max), ("mean rank", min)):
        _, rows, _ = table(toy, capsys, "--sort", name)
        values = [float(row[name]) for row in rows]
        assert values[0] == best(values)
    assert [row["run"] for row in table(toy, capsys, "--filter", "losses=sent*")[1]] == ["b"]
    assert [row["run"] for row in table(toy, capsys, "--filter", "run!=b", "--filter", "seeds>1")[1]] == ["a-seeds0,1"]
    assert table(toy, capsys, "--filter", "mean rank>1000")[1] == []


@pytest.mark.parametrize(
    ("call", "place", "fix"),
    [
        (["--sort", "beauty"], "--sort beauty:", "R@1"),
        (["--filter", "R@1"], "--filter R@1:", "NAME=VALUE"),
        (["--filter", "R@1>high"], "--filter R@1>high:", ">"),
        (["--compare", "b", "nobody"], "--compare nobody:", "a-seed0, a-seed1, b"),
        (["--delete", "b"], "b:", "--yes"),
        (["--delete", "b", "nobody", "--yes"], "nobody:", "vlalign-runs"),
    ],
)
def test_mistakes_are_one_line(toy, capsys, monkeypatch, call, place, fix):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert runs_main([*at(toy), *call]) == 2
    error = capsys.readouterr().err.strip()
    assert place in error and fix in error.partition(place)[2] and "\n" not in error and (toy.runs / "b").is_dir()


def test_a_copy_of_a_run_is_no_second_seed(toy, capsys):
    shutil.copytree(toy.runs / "a-seed0", toy.runs / "copy")
    assert sorted(row["seeds"] for row in table(toy, capsys)[1]) == ["1", "1", "2"]


def test_a_run_of_another_data_set_that_was_asked_is_listed(toy, capsys):
    other = make_toy(toy.root, num_videos=20, seed=5, name="other")
    assert evaluate_main(["--root", str(toy.root), "b", "--on", "other"]) == 0
    other.runs.mkdir()
    _, [row], _ = table(other, capsys)
    assert row["run"] == "b" and row["used"] == "whole: 5 captions and 5 clips"


def test_the_papers_figure_stands_beside_exactly_its_settings():
    suite = read_suite("taco-table3")
    config = row_config(suite, suite.rows[0], "youcook2", {"seed": 7})

    class Metrics:
        request = {"normalize": "none", "ties": "average", "rerank": None}  # noqa: RUF012
        test = type("TestSet", (), {"split": "test", "dataset": "youcook2"})

    found = published_values(config, Metrics)
    assert found.values["R@1"] == 14.1 and found.source.startswith("TACo, Table")
    other = row_config(suite, suite.rows[0], "youcook2", {"num_steps": 29_999})
    assert published_values(other, Metrics) is None


# Hostile files


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {}},
        {"metrics": None},
        {"task": "x"},
        {"task": ["retrieval"]},
        {"split_checksum": 5},
        {"not_comparable": [1]},
        {"fingerprint": None},
        {"num_clips": "many"},
        {"dataset": "\ud800"},
        {"dataset": "elsewhere"},
    ],
)
def test_metrics_that_are_none_are_reported_and_skipped(toy, capsys, change):
    path = toy.runs / "b" / "metrics.json"
    path.write_text(json.dumps(read_json(path) | change))
    code, rows, said = table(toy, capsys)
    assert code == 1 and [row["run"] for row in rows] == ["a-seeds0,1"]
    assert str(toy.runs / "b") in said and "Traceback" not in said


@pytest.mark.parametrize("text", ["[]", "", "{", '{"metrics": 1e999}', "[" * 100_000])
def test_a_file_that_is_no_object_is_reported(toy, capsys, text):
    (toy.runs / "b" / "metrics.json").write_text(text)
    code, rows, said = table(toy, capsys)
    assert code == 1 and len(rows) == 1 and "metrics.json" in said and "Traceback" not in said


def test_a_link_is_no_run(toy, tmp_path, capsys):
    shutil.copytree(toy.runs / "b", tmp_path / "elsewhere")
    (toy.runs / "linked").symlink_to(tmp_path / "elsewhere")
    assert len(table(toy, capsys)[1]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 0},
        {"rank": "1"},
        {"rank": float("nan")},
        {"caption": 5},
        {"clip": None},
        {"first": {"video_id": "\ud800", "start_seconds": None, "end_seconds": None}},
        {"clip": {"video_id": "v", "start_seconds": [], "end_seconds": None}},
    ],
)
def test_queries_that_are_none_are_a_line(toy, change):
    path = toy.runs / "b" / "queries.jsonl"
    rows = read_jsonl(path)
    rows[1] |= change
    path.write_text("\n".join(json.dumps(row) for row in rows))
    if change.get("rank") == "1":  # a number after all
        assert read_query_results(path)[1].rank == 1
        return
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}, \w+ 2: "):
        read_query_results(path)


def test_evaluations_stand_side_by_side(toy, capsys):
    for options in (["--split", "validation"], ["--ties", "pessimistic"]):
        assert evaluate_main([*at(toy), "b", *options]) == 0
    code, rows, _ = table(toy, capsys, "--evaluations", "b")
    assert code == 0 and {row["run"] for row in rows} == {"b"}
    about = [(row["evaluation"], row["split"]) for row in rows]
    assert about == [("defaults", "test"), ("ties=pessimistic", "test"), ("validation", "validation")]
    folders = [toy.runs / "b", *(toy.runs / "b" / "evaluations" / name for name in ("ties=pessimistic", "validation"))]
    for row, folder in zip(rows, folders, strict=True):
        metrics = read_json(folder / "metrics.json")
        assert float(row["R@1"]) == pytest.approx(metrics["metrics"]["text_to_video"]["R@1"])
        assert row["test set"] == metrics["split_checksum"]
    assert len(table(toy, capsys, "--evaluations")[1]) == 5
    assert runs_main([*at(toy), "--evaluations", "nobody"]) == 2
    assert "--evaluations nobody: " in capsys.readouterr().err


# Two runs


def test_the_interval_is_that_of_a_plain_bootstrap():
    rng = np.random.default_rng(3)
    first, second = rng.random(60), rng.random(60) + 0.1
    found = paired_bootstrap(first, second, seed=1, num_resamples=4000)
    draws = []
    for _ in range(4000):
        chosen = rng.integers(60, size=60)
        draws.append(np.mean([second[i] - first[i] for i in chosen]))
    assert found.difference == pytest.approx(np.mean(second - first))
    assert [found.low, found.high] == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.02)
    assert paired_bootstrap(first, second, seed=1, num_resamples=4000) == found
    assert paired_bootstrap(first, first).has_zero


def test_a_page_shows_what_got_better_and_worse(toy, capsys):
    assert runs_main([*at(toy), "--compare", "a-seed0", "b"]) == 0
    shown = capsys.readouterr().out
    ranks = []
    for name in ("a-seed0", "b"):
        rows = read_jsonl(toy.runs / name / "queries.jsonl")
        ranks.append({(row["caption"], row["clip"]["video_id"]): row["rank"] for row in rows if "caption" in row})
    worse = sum(ranks[1][query] > rank for query, rank in ranks[0].items())
    better = sum(ranks[1][query] < rank for query, rank in ranks[0].items())
    assert re.search(rf"^note: {better} of 6 .*\b{worse}\b", shown, re.MULTILINE)
    assert "cannot be told apart by R@1" in shown, "six queries tell little"
    page = (toy.comparisons / "a-seed0-vs-b.html").read_text(encoding="utf-8")
    assert page.count("<article>") == better + worse and "<script" not in page


def test_hostile_captions_are_text_in_the_page(toy, capsys):
    evil = '"><script>alert(1)</script>{{ 7 * 7 }}'
    for name in ("a-seed0", "b"):
        path = toy.runs / name / "queries.jsonl"
        rows = read_jsonl(path)
        for row in rows:
            row["caption"] = evil
            row["rank"] = 1 if name == "b" else 3
        path.write_text("\n".join(json.dumps(row) for row in rows))
    assert runs_main([*at(toy), "--compare", "a-seed0", "b"]) == 0
    page = (toy.comparisons / "a-seed0-vs-b.html").read_text(encoding="utf-8")
    assert "<script" not in page and "&lt;script&gt;" in page and "{{ 7 * 7 }}" in page


def test_runs_on_other_test_sets_are_not_compared(toy, capsys):
    [known] = {c.video_id for c in read_captions(toy.captions) if c.split == "test"} & {"v013"}
    write_part(toy.captions, 1, [Caption(video_id=known, caption="cut the fish", split="test")], {})
    write_captions_about(toy.captions, read_captions_about(toy.captions) | {"changed": True})
    assert evaluate_main([*at(toy), "b"]) == 0
    assert runs_main([*at(toy), "--compare", "a-seed0", "b"]) == 2
    assert "a-seed0 and b: " in capsys.readouterr().err


# Deleting and renaming


def test_a_deleted_run_is_gone_and_what_its_links_lead_to_is_not(toy, tmp_path, capsys):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (toy.runs / "b" / "link").symlink_to(kept)
    assert runs_main([*at(toy), "--delete", "b", "--yes"]) == 0
    assert not (toy.runs / "b").exists() and (kept / "file").exists()
    assert sorted(folder.name for folder in toy.runs.iterdir()) == ["a-seed0", "a-seed1"]


@pytest.mark.parametrize("name", ["", ".", "..", "../captions", "/tmp", "a/../b", "b\0", "linked", "mine"])
def test_nothing_outside_and_nothing_that_is_no_run_is_touched(toy, tmp_path, name):
    shutil.copytree(toy.runs / "b", tmp_path / "elsewhere")
    (toy.runs / "linked").symlink_to(tmp_path / "elsewhere")
    (toy.runs / "mine").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for act in (lambda: delete_run(toy, name), lambda: rename_run(toy, name, "new")):
        place = toy.runs / name if name in ("linked", "mine") else f"run {name!r}"
        with pytest.raises(UserError, match=f"^{re.escape(str(place))}: "):
            act()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_trains_is_refused(toy):
    lock = toy.runs / "b" / "train.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for act in (lambda: delete_run(toy, "b"), lambda: rename_run(toy, "b", "new")):
            with pytest.raises(UserError, match=f"^{re.escape(str(toy.runs / 'b'))}: "):
                act()
    assert (toy.runs / "b" / "run.json").exists()


def test_a_renamed_run_is_known_by_its_new_name(toy, capsys):
    assert runs_main([*at(toy), "--rename", "b", "better"]) == 0
    assert read_json(toy.runs / "better" / "metrics.json")["run"] == "better"
    assert not (toy.runs / "b").exists() and not (toy.runs / "better" / "train.lock").exists()
    assert "better" in [row["run"] for row in table(toy, capsys)[1]]
    capsys.readouterr()
    assert evaluate_main([*at(toy), "better"]) == 0
    assert capsys.readouterr().out.startswith("better: 6 captions")


@pytest.mark.parametrize("name", ["", "..", "x/y", "../x", "-x", ".hidden", "a b", "a-seed0", "x" * 300])
def test_a_new_name_that_is_taken_or_leads_elsewhere_is_refused(toy, name):
    place = toy.runs / name if name == "a-seed0" else f"run name {name!r}"
    with pytest.raises(UserError, match=f"^{re.escape(str(place))}: "):
        rename_run(toy, "b", name)
    assert (toy.runs / "b" / "run.json").exists()


def test_unfinished_runs_are_named(toy):
    shutil.copytree(toy.runs / "b", toy.runs / "half")
    (toy.runs / "half" / "run.json").unlink()
    (toy.runs / "half" / "state.safetensors").write_bytes(b"")
    write_json(toy.runs / "half" / "x.json", {})
    assert "not finished: half" in list_runs(toy).table.notes
