"""What departs from a paper stands under every table beside the paper's figures, in every format, and in the docs."""

import csv
import html
import importlib.util
import io
import re
from pathlib import Path

import pytest
from helpers.toy import make_toy
from helpers.training import TWO_STEPS, at
from vlalign.storage.common.files import read_json, write_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.comparison import run_metrics
from vlalign.train.comparison.groups import group_runs, runs_table
from vlalign.train.comparison.records import RunRecord
from vlalign.train.comparison.suite_files import all_suites, row_config
from vlalign.train.comparison.suites import RowResult, suite_table
from vlalign.train.comparison.table import FORMATS
from vlalign.train.recipes.departures import Departure, all_departures, departures_of
from vlalign.train.recipes.recipes import PAPER_RECIPES

TOP = Path(__file__).resolve().parents[3]
PLACE = re.compile(r"\b((sub)?sections?|appendix|appendices|Eq\.|Tables?|Figures?|pages?) [\dA-G]", re.IGNORECASE)
CASES = [(suite, dataset) for suite in all_suites() for dataset in suite.datasets]


def each_table(function):
    return pytest.mark.parametrize(
        ("suite", "dataset"), CASES, ids=[f"{suite.name}-{dataset}" for suite, dataset in CASES]
    )(function)


def words_of(text: str) -> str:
    """Return a text without what a format puts around its words, such as backslashes, to be looked for in another."""
    return re.sub(r"[^\w]+", " ", html.unescape(text.replace("\\", "")))


@each_table
def test_every_table_says_where_it_departs_from_its_paper(suite, dataset):
    """Every one of today's does. One that does not any more would print "nothing" (the next test)."""
    departures = suite.departures_for(dataset)
    assert departures and len(set(map(str, departures))) == len(departures)
    paper = suite.source.partition(",")[0]
    assert {departure.paper for departure in departures} == {paper}
    assert [d.place for d in departures if not PLACE.search(d.place)] == []
    assert all(f" {paper}, {d.place}: " in str(d) and d.text in str(d) for d in departures)


@each_table
def test_every_format_of_a_table_has_all_of_them(suite, dataset):
    rows = [row for row in suite.rows if dataset in row.published]
    results = [RowResult(row, tuple(row.published[dataset]), (None,) * len(suite.columns)) for row in rows]
    table = suite_table(suite, dataset, results, {}, 1, [])
    for name, write in FORMATS.items():
        written = words_of(write(table))
        assert [d for d in suite.departures_for(dataset) if words_of(str(d)) not in written] == [], name
    latex = FORMATS["latex"](table).splitlines()
    assert all(line.startswith("% ") for line in latex[latex.index(r"\end{tabular}") + 1 :])
    for row in csv.DictReader(io.StringIO(FORMATS["csv"](table))):
        assert bool(row["departures"]) == (row["whose"] == "ours")


def test_a_departure_needs_its_kind_its_place_and_its_text():
    good = {"paper": "TACo", "place": "section 3.1", "text": "two layers instead of one"}
    assert str(Departure(**good)) == "departs from TACo, section 3.1: two layers instead of one"
    assert str(Departure(**good, kind="open")) == "left open by TACo, section 3.1: two layers instead of one"
    for wrong in ({"kind": "other"}, {"place": "somewhere"}, {"text": ""}):
        with pytest.raises(ValueError, match=next(iter(wrong.values())) or good["place"]):
            Departure(**(good | wrong))


@pytest.mark.parametrize("recipe", [name for name in PAPER_RECIPES if not name.endswith("-small")])
def test_every_recipe_of_a_paper_has_departures_and_small_ones_have_none(recipe):
    assert departures_of([recipe])
    assert departures_of(["taco-small", "mil-nce-small", "default", ""]) == ()


def test_a_pattern_that_no_recipe_has_is_noticed():
    for departure in all_departures():
        for pattern in departure.recipes:
            assert any(departure in departures_of([name]) for name in PAPER_RECIPES), pattern


def test_a_run_of_a_papers_recipe_says_so_wherever_its_result_is_shown(tmp_path, capsys):
    toy = make_toy(tmp_path)
    recipe = [*TWO_STEPS[2:], "--recipe", "taco-youcook2", "--protocol", "toy", "--text-encoder", "small"]
    assert train_main([*at(toy), *recipe, "--run-name", "r", "--seeds", "0"]) == 0
    line = f"recipe taco-youcook2 departs from TACo in {len(departures_of(['taco-youcook2']))} points"
    assert line in capsys.readouterr().out
    [table] = toy.comparisons.glob("*.md")
    assert line in words_of_line(table.read_text(encoding="utf-8"))

    folder = toy.runs / "r-seed0"
    found = read_json(folder / "metrics.json")["departures"]
    assert found == [str(departure) for departure in departures_of(["taco-youcook2"])]
    report = html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    assert [text for text in found if text not in report] == []

    assert evaluate_main([*at(toy), "r-seed0"]) == 0, "evaluated before"
    assert line in capsys.readouterr().out
    figures = read_json(folder / "metrics.json")
    del figures["departures"]  # as written by 1.0.0
    write_json(folder / "metrics.json", figures)
    assert evaluate_main([*at(toy), "r-seed0"]) == 0
    assert line in capsys.readouterr().out


def words_of_line(text: str) -> str:
    return text.replace("\\", "")


def test_a_run_of_no_papers_recipe_says_nothing(tmp_path, capsys):
    toy = make_toy(tmp_path)
    assert train_main([*at(toy), *TWO_STEPS, "--run-name", "r"]) == 0
    assert evaluate_main([*at(toy), "r"]) == 0
    assert "departs" not in capsys.readouterr().out
    assert read_json(toy.runs / "r" / "metrics.json")["departures"] == []
    assert "departs" not in (toy.runs / "r" / "report.html").read_text(encoding="utf-8")


def test_runs_beside_a_papers_figures_have_the_departures_of_its_table(tmp_path):
    suite = next(suite for suite in all_suites() if suite.name == "taco-table3")
    row = suite.row("L1 + L3, no cascade")  # no other table has it
    config = row_config(suite, row, "youcook2", {})
    test = run_metrics.TestSet("youcook2", "retrieval", "test", "0" * 16, "3,350 captions", is_whole=True)
    metrics = run_metrics.RunMetrics("r", "retrieval", test, {"ties": "average"}, {"R@1": 14.0}, {}, ("R@1",), ())
    table = runs_table(group_runs([RunRecord(tmp_path / "r", config, {}, tmp_path, metrics)]))
    for name, write in FORMATS.items():
        written = words_of(write(table))
        assert "TACo Table 3 L1 L3 no cascade" in written
        assert [d for d in suite.departures_for("youcook2") if words_of(str(d)) not in written] == [], name
    other = row_config(suite, row, "youcook2", {"num_steps": 7})
    table = runs_table(group_runs([RunRecord(tmp_path / "r", other, {}, tmp_path, metrics)]))
    assert "departs" not in FORMATS["text"](table) and "departures" not in FORMATS["csv"](table)


def test_the_page_lists_all_of_them():
    """docs/departures.md is made by docs/make_departures.py, so it cannot say anything else than the tables."""
    spec = importlib.util.spec_from_file_location("make_departures", TOP / "docs" / "make_departures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (TOP / "docs" / "departures.md").read_text(encoding="utf-8")
    assert page == module.make_page(), "run python docs/make_departures.py"
    every = [*all_departures(), *(d for suite in all_suites() for d in suite.departures)]
    assert [d for d in every if d.text not in page.replace("\\", "") or d.place not in page] == []


def test_a_run_of_ncl_is_normalised_as_published_and_that_is_said(tmp_path, capsys):
    toy = make_toy(tmp_path)
    ncl = ["--objective", "ncl", "--normalized-loss", "--query-queue", "20", "--num-video-layers", "0"]
    common = ["--features", "s3d", "--batch-size", "4", "--num-steps", "2", "--validate-every", "2"]
    assert train_main([*at(toy), *ncl, *common, "--run-name", "r"]) == 0
    capsys.readouterr()
    for name in ("ncl", "ncl-tuned", "qbnorm", "none"):
        assert evaluate_main([*at(toy), "r", *(["--normalize", name] if name != "ncl" else [])]) == 0
        printed = capsys.readouterr().out
        written = re.findall(r"^(?:metrics|report): +(.*)$", printed, re.MULTILINE)
        assert len(written) == 2
        for shown in (printed, *(html.unescape(Path(path).read_text(encoding="utf-8")) for path in written)):
            assert ("biases of 8 training queries" in shown) == name.startswith("ncl")
            assert ("omit --normalize none" in shown) == (name == "none")
        assert f"normalised by {name}, " in printed or name == "none"
        assert ("(ours)" in printed) == (name == "ncl-tuned")
