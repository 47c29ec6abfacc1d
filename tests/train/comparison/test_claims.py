"""The five papers' tables, figures and theorems: each has its line, its state is true, and its command exists."""

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from helpers.needs import shared
from vlalign.storage.common.problems import Problems
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.comparison import claims as claims_module
from vlalign.train.comparison import run_metrics
from vlalign.train.comparison.claims import ITEM, NOTHING_REPRODUCED, Claim, all_claims, rows_with_a_run
from vlalign.train.comparison.records import RunRecord
from vlalign.train.comparison.suite_files import all_suites, read_suite, row_config

TOP = Path(__file__).resolve().parents[3]
PAPERS = ("CMCM", "NCL", "SSML", "TACo", "ToCo")
CLAIMS = {claim.name: claim for claim in all_claims()}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_caption_of_a_paper_has_a_claim(paper):
    """The text of the papers is not part of the repository."""
    text = shared(f"papers/{paper.lower()}.txt").read_text(encoding="utf-8")
    printed = set(re.findall(r"^(?:\W*)((?:Table|Figure|Theorem) \d+)[.:]", text, re.MULTILINE))
    assert len(printed) >= 5
    assert printed <= {claim.item for claim in all_claims() if claim.paper == paper}
    assert all(
        re.search(rf"{item.replace('Figure', 'Fig(ure|.)').replace('Table', 'Tab(le|.)')}", text)
        for item in (claim.item for claim in all_claims() if claim.paper == paper)
    )


def test_each_claim_has_one_line_and_each_suite_one_claim():
    assert len(CLAIMS) == len(all_claims()) and {claim.paper for claim in all_claims()} == set(PAPERS)
    named = [suite for claim in all_claims() for suite in claim.suites]
    assert sorted(named) == sorted(suite.name for suite in all_suites())
    for claim in all_claims():
        assert {read_suite(name).source for name in claim.suites} <= {claim.name}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_test_of_a_claim_that_runs_is_there(name):
    if not CLAIMS[name].test:
        return
    file, _, function = CLAIMS[name].test.partition("::")
    assert re.search(rf"^def {re.escape(function)}\(", (TOP / file).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", CLAIMS)
def test_the_commands_of_a_claim_are_commands(name):
    scripts = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    for command in CLAIMS[name].commands:
        program, *arguments = shlex.split(command)
        assert f"\n{program} = " in scripts
        [module] = re.findall(rf"^{program} = \"([\w.]+):", scripts, re.MULTILINE)
        parser = importlib.import_module(module).make_parser()
        parser.parse_args(arguments)  # exits if an option is unknown


def test_a_claim_needs_its_state_its_number_and_its_reason():
    good = {"paper": "TACo", "item": "Table 1", "title": "t", "state": "missing", "why": "because"}
    assert Claim(**good).name == "TACo, Table 1" and Claim(**good).commands == ()
    wrongs = ({"state": "done"}, {"item": "Section 1"}, {"why": ""}, {"test": "tests/x.py::y"}, {"state": "runs"})
    for wrong in wrongs:
        with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}|^test"):
            Claim(**(good | wrong))
    assert not ITEM.fullmatch("Table A")


def test_a_run_with_a_rows_settings_is_counted(tmp_path, monkeypatch):
    suite = read_suite("taco-table3")
    config = row_config(suite, suite.row("L1"), "youcook2", {})
    test = run_metrics.TestSet("youcook2", "retrieval", "test", "0" * 16, "3,350 captions", is_whole=True)
    metrics = run_metrics.RunMetrics("r", "retrieval", test, {"ties": "average"}, {"R@1": 14.0}, {}, ("R@1",), ())
    record = RunRecord(tmp_path / "r", config, {}, tmp_path, metrics)
    monkeypatch.setattr(claims_module, "read_records", lambda dataset, problems: [record])
    (tmp_path / "youcook2").mkdir()
    rows = {("TACo, Table 3", "L1", "youcook2"), ("TACo, Table 11", "Early stage only", "youcook2")}
    assert rows_with_a_run(tmp_path, Problems()) == rows, "two tables have this row"
    assert rows_with_a_run(tmp_path / "nowhere", Problems()) == set()


def test_the_command_has_a_line_for_each(tmp_path, capsys):
    assert runs_main(["--root", str(tmp_path), "--claims"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in CLAIMS if not re.search(rf"^{re.escape(name)}  ", shown, re.MULTILINE)] == []
    assert NOTHING_REPRODUCED in shown
    assert list(tmp_path.iterdir()) == []


def test_the_page_lists_all_of_them_with_their_rows():
    """docs/claims.md is made by docs/make_claims.py."""
    spec = importlib.util.spec_from_file_location("make_claims", TOP / "docs" / "make_claims.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (TOP / "docs" / "claims.md").read_text(encoding="utf-8")
    assert page == module.make_page(), "run python docs/make_claims.py"
    assert [name for name in CLAIMS if f"| {name} |" not in page] == []
    plain = page.replace("\\", "")
    assert [row.name for suite in all_suites() for row in suite.rows if row.published and row.name not in plain] == []
