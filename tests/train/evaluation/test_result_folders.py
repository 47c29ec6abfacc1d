"""Each question to a run has results of its own, and ``vlalign-runs`` shows those of the default question."""

import csv
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.labelled import make_steps
from helpers.toy import make_toy
from helpers.training import NCL, TWO_STEPS, at, options
from vlalign.storage.common.files import read_json, write_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.train import main as train_main

FILES = ("metrics.json", "queries.jsonl", "report.html")
QUESTIONS = {
    "validation": ["--split", "validation"],
    "train": ["--split", "train"],
    "ties=optimistic": ["--ties", "optimistic"],
    "ties=ce": ["--ties", "ce"],
    "rerank=2": ["--rerank", "2"],
    "normalize=dsl": ["--normalize", "dsl"],
    "normalize=dsl-temperature=0.5": ["--normalize", "dsl", "--temperature", "0.5"],
    "token=0.25": ["--token-weight", "0.25"],
    "validation-sentence=0-ties=ce": ["--ties", "ce", "--split", "validation", "--sentence-weight", "0"],
}
"""{folder in ``evaluations``: options}"""
SAME = [["--split", "test"], ["--ties", "average"], ["--normalize", "none"], ["--sentence-weight", "1"]]
"""Options that are the defaults of the run."""


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory) -> DatasetFolder:
    """Two runs, asked by default."""
    toy = make_toy(tmp_path_factory.mktemp("results"))
    toy.write_videos([VideoRecord(video_id=f"v{n:03d}", path=f"videos/v{n:03d}.mp4") for n in range(24)])
    (toy.path / "videos").mkdir()
    for n in range(24):
        (toy.path / "videos" / f"v{n:03d}.mp4").write_bytes(b"")
    for name in ("a-seed0", "b-seed0"):
        features = [*TWO_STEPS, "--seed", "0", "--run-name", name]
        assert train_main([*at(toy), *features, *(["--dropout", "0.3"] if name[0] == "b" else [])]) == 0
        assert evaluate_main([*at(toy), name]) == 0
    return toy


@pytest.fixture
def toy(evaluated, tmp_path) -> DatasetFolder:
    shutil.copytree(evaluated.path, tmp_path / "toy")
    return DatasetFolder(tmp_path, "toy")


def content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def times(folder: Path) -> list[int]:
    """When the results were written."""
    return [(folder / name).stat().st_mtime_ns for name in FILES]


def ask(dataset: DatasetFolder, run: str, *call: str) -> None:
    assert evaluate_main([*at(dataset), run, *call]) == 0


def runs(dataset: DatasetFolder, capsys) -> tuple[dict[str, dict[str, str]], str]:
    """The rows of vlalign-runs by name, and its table as text."""
    capsys.readouterr()
    assert runs_main([*at(dataset), "--format", "csv"]) == 0
    rows = {row["run"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines()) if row.get("R@1")}
    assert runs_main([*at(dataset)]) == 0
    return rows, capsys.readouterr().out


def test_no_setting_overwrites_the_results_of_another(toy, capsys):
    run = toy.runs / "a-seed0"
    of = {run: content(run)}
    for name, call in QUESTIONS.items():
        capsys.readouterr()
        ask(toy, "a-seed0", *call)
        folder = run / "evaluations" / name
        shown = capsys.readouterr().out
        assert f"metrics: {folder / 'metrics.json'}\n" in shown and f"report:  {folder / 'report.html'}\n" in shown
        of[folder] = content(folder)
        for earlier, kept in of.items():
            assert content(earlier) == kept
    assert len({metrics for metrics, *_ in of.values()}) == 1 + len(QUESTIONS)
    assert sorted(path.name for path in (run / "evaluations").iterdir()) == sorted(QUESTIONS)
    for name, call in QUESTIONS.items():
        before = times(run / "evaluations" / name)
        ask(toy, "a-seed0", *call)
        assert capsys.readouterr().err.startswith(f"{run / 'evaluations' / name}: "), "evaluated before"
        assert times(run / "evaluations" / name) == before


@pytest.mark.parametrize("call", SAME)
def test_the_defaults_in_other_words_are_the_defaults(toy, capsys, call):
    before = times(toy.runs / "a-seed0")
    ask(toy, "a-seed0", *call)
    assert f"{toy.runs / 'a-seed0'}: " in capsys.readouterr().err and times(toy.runs / "a-seed0") == before
    assert not (toy.runs / "a-seed0" / "evaluations").exists()


def test_the_table_shows_the_test_split_and_names_the_other_results(toy, capsys):
    before, text = runs(toy, capsys)
    assert set(before) == {"a-seed0", "b-seed0"} and not any(name in text for name in ("validation", "ties=ce"))
    for name in ("validation", "ties=ce"):
        ask(toy, "a-seed0", *QUESTIONS[name])
    after, text = runs(toy, capsys)
    assert after == before
    value = read_json(toy.runs / "a-seed0" / "evaluations" / "validation" / "metrics.json")["metrics"]["text_to_video"]
    [line] = [line for line in text.splitlines() if "validation" in line]
    assert "a-seed0" in line and f"R@1 {value['R@1']:.1f}" in line and "ties=ce" not in line
    assert sum("ties=ce" in line for line in text.splitlines()) == 1


def test_a_run_with_other_results_only_has_no_figure(toy, capsys):
    for name in FILES:
        (toy.runs / "a-seed0" / name).unlink()
    ask(toy, "a-seed0", "--split", "validation")
    rows, text = runs(toy, capsys)
    assert set(rows) == {"b-seed0"}
    [row] = [line for line in text.splitlines() if line.startswith("a-seed0 ")]
    assert re.search(r"R@1 \d", row) is None and "no test result" in row
    capsys.readouterr()
    assert runs_main([*at(toy), "--compare", "a-seed0", "b-seed0"]) == 2
    assert "vlalign-evaluate" in capsys.readouterr().err


def as_before(toy: DatasetFolder, run: str, name: str) -> None:
    """Results as the version before wrote them: in the run's folder, whatever was asked."""
    for file in FILES:
        shutil.move(toy.runs / run / "evaluations" / name / file, toy.runs / run / file)
    shutil.rmtree(toy.runs / run / "evaluations")


@pytest.mark.parametrize("name", ["validation", "ties=ce", "token=0.25"])
def test_results_that_an_older_version_wrote_are_what_they_say(toy, capsys, name):
    ask(toy, "a-seed0", *QUESTIONS[name])
    figures = read_json(toy.runs / "a-seed0" / "evaluations" / name / "metrics.json")
    as_before(toy, "a-seed0", name)
    rows, text = runs(toy, capsys)
    assert set(rows) == {"b-seed0"} and any(name in line and "a-seed0" in line for line in text.splitlines())
    ask(toy, "a-seed0")
    assert read_json(toy.runs / "a-seed0" / "metrics.json")["split"] == "test"
    assert read_json(toy.runs / "a-seed0" / "evaluations" / name / "metrics.json") == figures, "kept"
    rows, text = runs(toy, capsys)
    assert set(rows) == {"a-seed0", "b-seed0"} and any(name in line for line in text.splitlines())
    ask(toy, "a-seed0", *QUESTIONS[name])
    assert (toy.runs / "a-seed0" / "evaluations" / name / "report.html").exists()


def test_default_results_that_an_older_version_wrote_are_shown_as_before(toy, capsys):
    before, _ = runs(toy, capsys)
    path = toy.runs / "a-seed0" / "metrics.json"
    figures = read_json(path)
    write_json(path, figures)
    assert runs(toy, capsys)[0] == before
    written = times(toy.runs / "a-seed0")
    ask(toy, "a-seed0")
    assert f"{toy.runs / 'a-seed0'}: " in capsys.readouterr().err and times(toy.runs / "a-seed0") == written


def test_links_of_a_report_lead_to_the_videos(toy):
    ask(toy, "a-seed0", "--split", "validation")
    for folder in (toy.runs / "a-seed0", toy.runs / "a-seed0" / "evaluations" / "validation"):
        html = (folder / "report.html").read_text(encoding="utf-8")
        links = set(re.findall(r'[">]([^"<>]*v\d{3}\.mp4)', html))
        assert links and all((folder / unquote(link)).is_file() for link in links)


def test_another_data_set_has_results_of_each_setting_too(toy, capsys):
    make_toy(toy.root, name="other")
    run = toy.runs / "a-seed0"
    before = content(run)
    for call in ([], ["--split", "validation"], ["--ties", "ce"]):
        ask(toy, "a-seed0", "--on", "other", *call)
    on = run / "on" / "other"
    assert read_json(on / "metrics.json")["split"] == "test"
    assert sorted(path.name for path in (on / "evaluations").iterdir()) == ["ties=ce", "validation"]
    assert content(run) == before
    (toy.root / "other" / "runs").mkdir()
    capsys.readouterr()
    assert runs_main(["--root", str(toy.root), "--dataset", "other"]) == 0
    shown = capsys.readouterr().out
    assert sum("validation" in line for line in shown.splitlines()) == 1


def test_another_task_has_results_of_its_own(tmp_path):
    dataset = make_steps(tmp_path)
    train = ["--features", "resnet152", "--objective", "ncl", "--num-steps", "2", "--batch-size", "4"]
    assert train_main([*at(dataset), *train, "--run-name", "r"]) == 0
    ask(dataset, "r")
    before = content(dataset.runs / "r")
    ask(dataset, "r", "--task", "retrieval")
    assert content(dataset.runs / "r") == before
    assert read_json(dataset.runs / "r" / "evaluations" / "retrieval" / "metrics.json")["task"] == "retrieval"


def test_a_renamed_run_is_renamed_in_all_its_results(toy, capsys):
    make_toy(toy.root, name="other")
    ask(toy, "a-seed0", "--split", "validation")
    ask(toy, "a-seed0", "--on", "other", "--ties", "ce")
    assert runs_main([*at(toy), "--rename", "a-seed0", "new"]) == 0
    files = sorted((toy.runs / "new").rglob("metrics.json"))
    assert len(files) == 3 and {read_json(path)["run"] for path in files} == {"new"}


@pytest.mark.parametrize("place", ["evaluations", "evaluations/validation", "on"])
def test_results_are_not_written_through_a_link(toy, tmp_path, capsys, place):
    make_toy(toy.root, name="other")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = toy.runs / "a-seed0" / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    capsys.readouterr()
    call = ["--on", "other"] if place == "on" else ["--split", "validation"]
    assert evaluate_main([*at(toy), "a-seed0", *call]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert str(link) in line and not list(elsewhere.iterdir())


@pytest.fixture
def normalised(tmp_path) -> DatasetFolder:
    """A data set with a run "r" that was trained with NCL's biases."""
    toy = make_toy(tmp_path)
    settings = options({"objective": "ncl", **NCL, "num_steps": 2, "batch_size": 4, "features": "s3d"})
    assert train_main([*at(toy), *settings, "--run-name", "r"]) == 0
    return toy


def test_normalisations_of_ncl_lie_beside_each_other(normalised):
    toy = normalised
    for call in ([], *(["--normalize", name] for name in ("ncl", "none", "ncl-tuned", "qbnorm"))):
        ask(toy, "r", *call)
    folders = sorted(p.name for p in (toy.runs / "r" / "evaluations").iterdir())
    assert folders == ["normalize=ncl-tuned", "normalize=none", "normalize=qbnorm"]
    assert read_json(toy.runs / "r" / "metrics.json")["normalization"]["name"] == "ncl"


def as_1_0_0(path: Path, name: str) -> None:
    """The figures of a file as 1.0.0 wrote them, whose "ncl" was the rule that is "ncl-tuned" now."""
    figures = read_json(path)
    figures["fingerprint"]["normalize"] = figures["normalization"]["name"] = name
    del figures["normalization"]["num_queries"]
    write_json(path, figures)


def test_results_of_the_rule_before_are_not_taken_for_the_published_one(normalised, capsys):
    run = normalised.runs / "r"
    ask(normalised, "r", "--normalize", "none")
    ask(normalised, "r", "--normalize", "ncl-tuned")
    for name, old in ("none", None), ("ncl-tuned", "normalize=ncl"):
        folder = run / "evaluations" / f"normalize={name}"
        as_1_0_0(folder / "metrics.json", "ncl" if name == "ncl-tuned" else name)
        for file in FILES:
            target = run if old is None else folder.with_name(old)
            target.mkdir(exist_ok=True)
            shutil.move(folder / file, target / file)
        folder.rmdir()
    _, text = runs(normalised, capsys)
    assert "normalize=ncl-tuned" in text and "normalize=none" in text
    assert all("normalize=ncl:" not in line and "normalize=ncl " not in line for line in text.splitlines())

    ask(normalised, "r")
    assert "already evaluated" not in capsys.readouterr().err
    figures = read_json(run / "metrics.json")
    assert figures["normalization"]["name"] == "ncl" and figures["normalization"]["num_queries"] == 8
    assert read_json(run / "evaluations" / "normalize=none" / "metrics.json")["normalization"]["name"] == "none"
    ask(normalised, "r")
    assert "already evaluated" in capsys.readouterr().err
