"""A run that this version does not know stands in nobody's way, and is named."""

import shutil
import time

import pytest
from helpers.runs import change
from helpers.toy import make_toy
from helpers.training import TWO_STEPS, at
from vlalign.storage.common.files import read_json, write_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.index import main as index_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.serve import main as serve_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.page import serve

UNKNOWN = {
    "objective": ({"objective": "sigtaco"}, "sigtaco"),
    "setting": ({"shiny_setting": 3}, "shiny_setting"),
    "type of a setting": ({"batch_size": "many"}, "batch_size"),
    "value of a setting": ({"schedule": "zigzag"}, "zigzag"),
}
"""{what: (settings, what the line names)}"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> DatasetFolder:
    toy = make_toy(tmp_path_factory.mktemp("unknown"))
    assert train_main([*at(toy), *TWO_STEPS, "--run-name", "known"]) == 0
    assert evaluate_main([*at(toy), "known"]) == 0
    return toy


@pytest.fixture(params=UNKNOWN)
def unknown(request, trained, tmp_path) -> tuple[DatasetFolder, str]:
    """The data set with a newer run that this version does not know, and what about it."""
    shutil.copytree(trained.path, tmp_path / "toy")
    toy = DatasetFolder(tmp_path, "toy")
    shutil.copytree(toy.runs / "known", toy.runs / "strange")
    settings, named = UNKNOWN[request.param]
    path = toy.runs / "strange" / "run.json"
    about = read_json(path)
    time.sleep(0.01)
    write_json(path, about | {"config": about["config"] | settings})
    return toy, named


def one_line(toy: DatasetFolder, err: str, named: str) -> None:
    [line] = [line for line in err.splitlines() if "strange" in line]
    assert str(toy.runs / "strange") in line and named in line and "Traceback" not in err


COMMANDS = {
    "evaluate": (evaluate_main, []),
    "search": (search_main, ["cut the onion"]),
    "index": (index_main, []),
    "serve": (serve_main, ["--port", "0"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_name_no_run_take_the_last_one_that_is_known(unknown, capsys, monkeypatch, command):
    toy, named = unknown
    monkeypatch.setattr(serve, "serve", lambda *args, **options: None)  # would wait for requests
    main, call = COMMANDS[command]
    capsys.readouterr()
    assert main([*at(toy), *call]) == 0
    shown = capsys.readouterr()
    one_line(toy, shown.err, named)
    assert shown.err.startswith("note: ") and "known" in shown.out + shown.err


@pytest.mark.parametrize("command", COMMANDS)
def test_naming_such_a_run_is_one_line(unknown, capsys, command):
    toy, named = unknown
    main, call = COMMANDS[command]
    capsys.readouterr()
    assert main([*at(toy), "strange", *call]) == 2
    err = capsys.readouterr().err
    one_line(toy, err, named)
    assert len(err.strip().splitlines()) == 1


def test_the_table_of_runs_shows_the_others(unknown, capsys):
    toy, named = unknown
    capsys.readouterr()
    assert runs_main(at(toy)) == 1, "something was left out"
    shown = capsys.readouterr()
    one_line(toy, shown.err, named)
    assert "known" in shown.out and "R@1" in shown.out


def test_if_no_run_is_known_the_line_says_so(unknown, capsys):
    toy, named = unknown
    shutil.rmtree(toy.runs / "known")
    capsys.readouterr()
    assert evaluate_main(at(toy)) == 2
    err = capsys.readouterr().err
    assert named in err and err.strip().splitlines()[-1].startswith("vlalign-evaluate: error: ")


def test_a_damaged_run_is_skipped_too(trained, tmp_path, capsys):
    shutil.copytree(trained.path, tmp_path / "toy")
    toy = DatasetFolder(tmp_path, "toy")
    shutil.copytree(toy.runs / "known", toy.runs / "strange")
    (toy.runs / "strange" / "run.json").write_text("{", encoding="utf-8")
    assert evaluate_main(at(toy)) == 0
    assert "strange" in capsys.readouterr().err
    change(toy.runs / "known" / "run.json", inputs={})
    assert evaluate_main(at(toy)) == 2
