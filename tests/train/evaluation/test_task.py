"""What all tasks share, and what it takes to add one."""

import importlib
import re
import subprocess
import sys

import pytest
from helpers.toy import make_toy
from vlalign.storage.captions.files import read_captions
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.evaluation import TASKS
from vlalign.train.evaluation.task import counted

TOY = '''
from dataclasses import dataclass

from vlalign.storage.captions.files import read_captions
from vlalign.train.evaluation.coverage import split_coverage
from vlalign.train.data.usable_captions import captions_of_split
from vlalign.storage.common.settings import Settings, setting
from vlalign.train.evaluation.task import Task, TaskResult, counted


@dataclass(frozen=True)
class ToySettings(Settings):
    letters: int = setting(1, "number of letters")


class Toy(Task[ToySettings]):
    """How often the first letters of the alphabet occur in the captions."""

    name = "toy"
    description = "letters of captions"
    settings_type = ToySettings

    def evaluate(self, run, request, problems):
        captions = captions_of_split(read_captions(run.dataset.captions), request.split)
        letters = "abcdefgh"[: request.settings.letters]
        counts = {letter: sum(c.caption.count(letter) for c in captions) for letter in letters}
        rows = ({"caption": c.caption} for c in captions)
        coverage = split_coverage(captions, captions, run.features)
        return TaskResult(coverage, {"letters": counts}, rows, {"counts": counts})

    def count(self, metrics):
        return counted(metrics, "captions")

    def summary(self, metrics):
        yield f"letters: {metrics['letters']}"

    def page_functions(self):
        return {"loud": str.upper}
'''
PAGE = "<section>{% for name, count in counts.items() %}<p>{{ loud(name) }} {{ count }}</p>{% endfor %}</section>"


@pytest.fixture
def toy_task(monkeypatch, tmp_path):
    """A task in a file of its own, with its page beside it, and its row."""
    (tmp_path / "toy_task.py").write_text(TOY)
    (tmp_path / "toy.html.jinja").write_text(PAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(TASKS, "toy", importlib.import_module("toy_task").Toy())


def test_a_task_can_be_added_with_a_file_a_page_and_a_row(toy_task, tmp_path, capsys):
    toy = make_toy(tmp_path)
    call = ["--root", str(tmp_path), "--dataset", "toy"]
    train = ["--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--run-name", "r"]
    assert train_main([*call, *train]) == 0
    assert evaluate_main([*call, "r", "--task", "toy", "--letters", "2"]) == 0
    printed = capsys.readouterr().out
    folder = toy.runs / "r" / "evaluations" / "toy-letters=2"
    figures = read_json(folder / "metrics.json")
    captions = [c.caption for c in read_captions(toy.captions) if c.split == "test"]
    assert figures["letters"] == {letter: "".join(captions).count(letter) for letter in "ab"}
    assert f"r: {len(captions)} captions of toy, test" in printed and "letters: {'a':" in printed
    assert [line["caption"] for line in read_jsonl(folder / "queries.jsonl")] == captions
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert f"<p>B {figures['letters']['b']}</p>" in report and "<h2>Training</h2>" in report
    assert evaluate_main([*call, "r", "--letters", "2"]) == 2
    assert re.search(r"--letters 2: .*\btoy\b.*\bretrieval\b", capsys.readouterr().err)


def test_every_task_has_a_page_beside_its_file():
    assert next(iter(TASKS)) == "retrieval", "what is asked if nothing says what else"
    for name, task in TASKS.items():
        assert task.name == name and task.page.is_file() and task.description


def test_the_tasks_and_their_help_need_no_torch():
    program = "import sys, vlalign.train.evaluation, vlalign.train.cli.evaluate, vlalign.train.cli.search\n"
    program += "sys.exit(bool({'torch', 'matplotlib', 'jinja2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_counts_name_the_whole_split_only_if_some_of_it_was_left_out():
    assert counted({"num_clips": 1200, "num_clips_of_split": 1200}, "clips") == "1,200 clips"
    assert counted({"num_captions": 12, "num_captions_of_split": 30}, "captions", "questions") == "12 of 30 questions"
