"""Objectives and encoders of one's own: from their module by name, recorded with their code, run only if trusted."""

import hashlib
import importlib
import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from helpers.toy import make_toy
from helpers.training import EIGHT_STEPS, TWO_STEPS, at
from vlalign.storage.common import plugins
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.common.plugins import load_plugin
from vlalign.storage.common.programs import python_command
from vlalign.train import SearchSource, build_index, evaluate, export_run, load_run, open_search, train, train_seeds
from vlalign.train.cli import train as train_cli
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.index import main as index_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.serve import main as serve_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.runs.run_json import check_run, is_edited

MARGIN = """
    from dataclasses import dataclass
    from typing import ClassVar

    from vlalign.storage.common.settings import setting
    from vlalign.train.objectives.base import Objective

    open({mark!r}, "a").close()

    @dataclass(frozen=True, kw_only=True)
    class Margin(Objective):
        description: ClassVar[str] = "a caption is closer to its clip than to the next one"
        loss_terms: ClassVar[tuple[str, ...]] = ("margin",)
        margin_of_mine: float = setting(0.2, "how much closer", ge=0)

        def compute_loss(self, model, batch):
            text_BD, video_BD = batch.all_vectors(self, model)
            right_B = (text_BD * video_BD).sum(dim=1)
            wrong_B = (text_BD * video_BD.roll(1, dims=0)).sum(dim=1)
            return {{"margin": (self.margin_of_mine + wrong_B - right_B).clamp(min=0).mean()}}
"""
POOLED = """
    from dataclasses import replace
    from vlalign.train.models.words import WordPair

    class Pooled(WordPair):
        traits = replace(WordPair.traits, description="one token of each clip")

        def encode_videos(self, features_BMF, mask_BM, lengths_B=None):
            tokens = super().encode_videos(features_BMF, mask_BM, lengths_B)
            return replace(tokens, tokens_BMD=tokens.tokens_BMD[:, :1], mask_BM=mask_BM[:, :1], lengths_B=None)
"""
SHORT = ["--features", "s3d", "--encoder", "gated", "--embedding-size", "16", *EIGHT_STEPS]


def forget() -> None:
    """Do as a new process does: know no own part, and have none of their modules."""
    for known in (plugins._LOADED, plugins._SHA256, plugins._TRUSTED):
        known.clear()
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def new_process():
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a data set, modules of one's own, a run of the package's, and later a run of an own objective."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "own_margin.py").write_text(textwrap.dedent(MARGIN.format(mark=str(folder / "mark"))), encoding="utf-8")
    (folder / "own_pooled.py").write_text(textwrap.dedent(POOLED), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        toy = make_toy(folder)
        assert train_main([*at(toy), *TWO_STEPS, "--run-name", "plain"]) == 0
        forget()
        own = ["--objective", "own_margin:Margin", "--margin-of-mine", "0.3"]
        assert train_main([*at(toy), *SHORT, *own, "--run-name", "mine"]) == 0
    return folder


@pytest.fixture
def toy(place, monkeypatch):
    from vlalign.storage.dataset.folder import DatasetFolder

    monkeypatch.chdir(place)
    (place / "mark").unlink(missing_ok=True)
    return DatasetFolder(place, "toy")


def code_of(call) -> int:
    """Return a command's exit code."""
    try:
        return call()
    except SystemExit as error:
        return error.code


def test_a_run_records_its_own_objective_with_its_settings_and_its_code(toy, place):
    about = read_json(toy.runs / "mine" / "run.json")
    assert (about["config"]["objective"], about["config"]["margin_of_mine"]) == ("own_margin:Margin", 0.3)
    digest = hashlib.sha256((place / "own_margin.py").read_bytes()).hexdigest()
    facts = {"name": "own_margin:Margin", "module": "own_margin", "sha256": digest}
    assert about["inputs"]["plugins"] == {"objective": facts}
    assert "plugins" not in read_json(toy.runs / "plain" / "run.json")["inputs"]
    losses = [event["margin"] for event in read_jsonl(toy.runs / "mine" / "events.jsonl")]
    assert losses[-1] < losses[0]


def test_the_help_has_the_options_of_an_own_objective(toy, capsys):
    assert code_of(lambda: train_main(["--objective", "own_margin:Margin", "--help-all"])) == 0
    output = capsys.readouterr().out
    assert "--margin-of-mine" in output
    assert "how much closer" in output
    forget()
    assert code_of(lambda: train_main(["--help-all"])) == 0
    assert "--margin-of-mine" not in capsys.readouterr().out


def test_an_edited_loss_is_trained_again(toy, place, capsys):
    call = [*at(toy), "--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--objective", "own_margin:Margin"]
    source = (place / "own_margin.py").read_text(encoding="utf-8")
    try:
        assert train_main(call) == 0
        before = set(toy.runs.iterdir())
        forget()
        assert train_main(call) == 0
        assert set(toy.runs.iterdir()) == before
        assert "nothing to do" in capsys.readouterr().err
        (place / "own_margin.py").write_text(source.replace("clamp(min=0)", "clamp(min=0.0)"), encoding="utf-8")
        forget()
        assert train_main(call) == 0
        [new] = set(toy.runs.iterdir()) - before
        assert hashlib.sha256((place / "own_margin.py").read_bytes()).hexdigest()[:8] in new.name
        forget()
        named = ["--objective", "own_margin:Margin", "--margin-of-mine", "0.3", "--run-name", "mine"]
        assert train_main([*at(toy), *SHORT, *named]) == 2
        assert "another version" in capsys.readouterr().err
        forget()
        assert evaluate_main([*at(toy), "mine", "--split", "validation", "--trust", "own_margin"]) == 0
        assert "own_margin is not the version" in capsys.readouterr().err
    finally:
        (place / "own_margin.py").write_text(source, encoding="utf-8")


def test_no_command_imports_what_a_run_names_unless_it_is_trusted(toy, place, capsys):
    run = str(toy.runs / "mine")
    calls = {
        "evaluate": lambda: evaluate_main([*at(toy), run]),
        "search": lambda: search_main([*at(toy), run, "cut the onion"]),
        "index": lambda: index_main([*at(toy), run]),
        "serve": lambda: serve_main([*at(toy), run]),
        "train": lambda: train_main([*at(toy), "--features", "s3d", "--num-steps", "1", "--init", "mine"]),
    }
    for name, call in calls.items():
        forget()
        assert code_of(call) == 2, name
        assert "--trust own_margin" in capsys.readouterr().err, name
        assert not (place / "mark").exists(), name
    assert code_of(lambda: runs_main(at(toy))) in (0, 1)
    assert not (place / "mark").exists()
    assert search_main([*at(toy), run, "cut the onion", "--trust", "own_margin"]) == 0
    assert (place / "mark").exists()


def test_commands_that_name_no_run_skip_it_with_a_line(toy, place, capsys):
    (toy.runs / "mine" / "run.json").touch()  # the last one finished
    assert evaluate_main([*at(toy), "--split", "validation"]) == 0
    captured = capsys.readouterr()
    assert any("runs/mine/" in line and "skipped" in line for line in captured.err.splitlines())
    assert not captured.out.startswith("mine:")
    assert not (place / "mark").exists()


def test_an_option_file_is_as_untrusted_as_a_run_and_cannot_trust_itself(toy, place, capsys, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("objective: own_margin:Margin\nmargin_of_mine: 0.4\nnum_steps: 1\n", encoding="utf-8")
    call = [*at(toy), "--features", "s3d", "--batch-size", "4", "--config", str(file), "--run-name", "from_file"]
    assert code_of(lambda: train_main(call)) == 2
    assert "--trust own_margin" in capsys.readouterr().err
    assert not (place / "mark").exists()
    assert train_main([*call, "--trust", "own_margin"]) == 0
    assert read_json(toy.runs / "from_file" / "run.json")["config"]["margin_of_mine"] == 0.4
    (place / "mark").unlink()
    forget()
    file.write_text("objective: own_margin:Margin\ntrust: own_margin\n", encoding="utf-8")
    assert code_of(lambda: train_main(call)) == 2
    assert not (place / "mark").exists()


FORMS = ["objective: [own_margin:Margin]", "encoder: [own_margin:Margin]", "? encoder\n: - own_margin:Margin"]


@pytest.mark.parametrize("text", FORMS)
def test_a_list_in_an_option_file_is_no_way_around_trust(toy, place, capsys, tmp_path, text):
    file = tmp_path / "options.yaml"
    file.write_text(text, encoding="utf-8")
    call = [*at(toy), "--features", "s3d", "--num-steps", "1", "--config", str(file)]
    assert code_of(lambda: train_main(call)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{file}, line 1" in line and "--trust own_margin" in line
    assert not (place / "mark").exists()


def test_an_option_file_that_changes_while_it_is_read_is_no_way_around_trust(toy, place, capsys, tmp_path, monkeypatch):
    file = tmp_path / "options.yaml"
    file.write_text("encoder: gated", encoding="utf-8")
    load = train_cli.load_own_parts

    def change(*args):
        load(*args)
        file.write_text("encoder: own_margin:Margin", encoding="utf-8")

    monkeypatch.setattr(train_cli, "load_own_parts", change)
    assert code_of(lambda: train_main([*at(toy), "--features", "s3d", "--config", str(file)])) == 2
    assert "--trust own_margin" in capsys.readouterr().err and not (place / "mark").exists()


def test_no_option_file_chooses_the_module_of_stores(toy, place, capsys, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("stores: own_margin:Margin", encoding="utf-8")
    call = [*at(toy), "--config", str(file)]
    calls = {
        "train": lambda: train_main(call),
        "evaluate": lambda: evaluate_main([*call, "plain"]),
        "search": lambda: search_main([*call, "plain", "cut the onion"]),
        "index": lambda: index_main([*call, "plain"]),
        "serve": lambda: serve_main([*call, "plain"]),
    }
    for name, command in calls.items():
        assert code_of(command) == 2, name
        [line] = capsys.readouterr().err.splitlines()
        assert f"{file}, line 1: stores: " in line and "--stores" in line, name
        assert not (place / "mark").exists(), name


def test_an_option_file_gives_no_option_of_another_name_and_no_consent(toy, place, capsys, tmp_path):
    file, trusting = tmp_path / "options.yaml", '"--trust=own_margin"'
    texts = {
        f"compare: [plain, mine, {trusting}]": "--trust=own_margin",
        f"compare: [{trusting}, plain, mine]": "--trust=own_margin",
        f"delete: [plain, {trusting}]": "--delete",
        "delete: [plain, --yes]": "--delete",
        'delete: [plain]\n"yes": true': "--delete",
        '"yes": true\ndelete: plain': "--yes",
        "rename: [plain, other]": "--rename",
        f"sort: {trusting}": "--sort",
    }
    for text, named in texts.items():
        forget()
        file.write_text(text, encoding="utf-8")
        assert code_of(lambda: runs_main([*at(toy), "--config", str(file)])) == 2, text
        assert named in capsys.readouterr().err.splitlines()[-1], text
        assert (toy.runs / "plain").is_dir() and not (place / "mark").exists(), text


def test_a_run_that_names_its_objective_in_a_list_is_refused(toy, place, capsys):
    shutil.copytree(toy.runs / "mine", toy.runs / "listed")
    try:
        about = read_json(toy.runs / "listed" / "run.json")
        about["config"]["objective"] = ["own_margin:Margin"]
        (toy.runs / "listed" / "run.json").write_text(json.dumps(about))
        assert evaluate_main([*at(toy), "listed"]) == 2
    finally:
        shutil.rmtree(toy.runs / "listed")
    [line] = capsys.readouterr().err.splitlines()
    assert "listed/run.json" in line and not (place / "mark").exists()


def test_trust_is_a_list_of_modules_and_no_text(toy, place, tmp_path):
    run = toy.runs / "mine"
    calls = [
        lambda trust: train(toy.path, settings={"features": "s3d", "num_steps": 1}, init="mine", trust=trust),
        lambda trust: train_seeds(toy.path, seeds=[0], settings={"features": "s3d"}, init="mine", trust=trust),
        lambda trust: evaluate(run, trust=trust),
        lambda trust: open_search(toy.path, run=run, device="cpu", trust=trust),
        lambda trust: build_index(SearchSource(toy.path, run=run, device="cpu", trust=trust)),
        lambda trust: load_run(run, "cpu", trust=trust),
        lambda trust: export_run(run, tmp_path / "exported", trust=trust),
    ]
    for number, call in enumerate(calls):
        for trust in ("own_margin", "an own_margin too"):
            with pytest.raises(SettingError) as raised:
                call(trust)
            assert raised.value.setting == "trust" and "list" in str(raised.value), number
            assert not plugins._TRUSTED and not (place / "mark").exists(), number


def test_a_run_of_a_missing_module_names_it(toy, place, capsys):
    source = (place / "own_margin.py").read_text(encoding="utf-8")
    (place / "own_margin.py").unlink()
    try:
        with pytest.raises(UserError) as raised:
            evaluate(toy.runs / "mine", trust=["own_margin"])
    finally:
        (place / "own_margin.py").write_text(source, encoding="utf-8")
    assert all(words in str(raised.value) for words in ("run.json", "own_margin.py", "no module"))


def test_python_takes_the_class_itself(toy):
    objective = load_plugin("objectives", "own_margin:Margin").value
    settings = {"features": "s3d", "num_steps": 1, "batch_size": 4}
    run = train(toy.path, settings={**settings, "objective": objective}, run_name="by_class")
    assert run.config.objective.name == "own_margin:Margin"
    forget()
    with pytest.raises(SettingError) as raised:
        open_search(toy.path, run=run.folder, device="cpu")
    assert raised.value.setting == "trust"
    assert open_search(toy.path, run=run.folder, device="cpu", trust=["own_margin"])("cut the onion")


def test_two_processes_import_the_same_module(toy):
    call = [*at(toy), *SHORT, "--objective", "own_margin:Margin", "--margin-of-mine", "0.3", "--run-name", "two"]
    assert train_main([*call, "--device", "cpu,cpu"]) == 0
    one, two = (read_jsonl(toy.runs / name / "events.jsonl") for name in ("mine", "two"))
    for name in ("loss", "margin"):
        torch.testing.assert_close(
            torch.tensor([event[name] for event in one]),
            torch.tensor([event[name] for event in two]),
            rtol=1e-3,
            atol=1e-4,
        )


def test_words_step_aside_if_an_encoder_makes_another_number_of_tokens(toy, capsys):
    call = [*at(toy), "--features", "s3d", "--num-steps", "2", "--encoder", "own_pooled:Pooled", "--run-name", "pooled"]
    assert train_main(call) == 0
    assert evaluate_main([*at(toy), "pooled", "--split", "validation"]) == 0
    assert "words are not shown over time" in capsys.readouterr().err
    metrics = read_json(toy.runs / "pooled" / "evaluations" / "validation" / "metrics.json")
    assert metrics["metrics"]["text_to_video"]["R@1"] >= 0


def test_a_report_that_fails_loses_no_metrics(toy, monkeypatch):
    from vlalign.train.evaluation import report

    def fail(*_):
        raise RuntimeError("no picture")

    monkeypatch.setattr(report, "write_report", fail)
    folder = toy.runs / "plain" / "evaluations" / "train"
    with pytest.raises(RuntimeError, match="no picture"):
        evaluate_main([*at(toy), "plain", "--split", "train"])
    assert read_json(folder / "metrics.json")["metrics"]["text_to_video"]["R@1"] >= 0
    monkeypatch.undo()
    monkeypatch.chdir(toy.root)
    assert evaluate_main([*at(toy), "plain", "--split", "train"]) == 0  # is not taken as finished
    assert (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("class Bad: pass", "Objective"),
        ("@dataclass(frozen=True, kw_only=True)\nclass Bad(Objective): pass", "description"),
        ("class Bad(Objective):\n    description, loss_terms = 'x', ('x',)\n    size: float = 1.0", "dataclass"),
        ("@dataclass(frozen=True, kw_only=True)\nclass Bad(Objective):\n    dropout: float = 1.0\n" + "", "dropout"),
        ("@dataclass(frozen=True, kw_only=True)\nclass Bad(Objective):\n    sizes: list = None\n", "sizes"),
        ("from vlalign.train.objectives.taco import TacoObjective as Bad", "built in"),
    ],
)
def test_what_is_no_objective_is_refused_in_one_line(body, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    head = "from dataclasses import dataclass\nfrom vlalign.train.objectives.base import Objective\n"
    if words in ("dropout", "sizes"):
        body += "\nBad.description, Bad.loss_terms = 'x', ('x',)"
    (tmp_path / "own_bad.py").write_text(head + body, encoding="utf-8")
    assert code_of(lambda: train_main(["--objective", "own_bad:Bad"])) == 2
    error = capsys.readouterr().err
    assert "own_bad:Bad" in error
    assert words in error
    assert error.count("\n") == 1


def test_a_changed_run_json_runs_nothing(toy, place, tmp_path):
    mark = tmp_path / "mark"
    (place / "own_mark.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Thing: pass\n", encoding="utf-8")
    for setting in ("objective", "encoder"):
        folder = toy.runs / f"changed_{setting}"
        folder.mkdir()
        about = read_json(toy.runs / "plain" / "run.json")
        about["config"][setting] = "own_mark:Thing"
        (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
        with pytest.raises(SettingError):
            evaluate(folder)
        assert not mark.exists()
        with pytest.raises(UserError):
            evaluate(folder, trust=["own_mark"])  # it is neither
        assert mark.exists()
        mark.unlink()
        forget()


WRONG = {
    "another term": ("{'wrong': text.sum()}", "wrong"),
    "no dict": ("text.sum()", "Tensor"),
    "a vector": ("{'margin': text.sum(dim=1)}", r"margin.*\[\d+\]"),
    "a number": ("{'margin': 1.0}", "margin.*float"),
    "detached": ("{'margin': text.sum().detach()}", "no trained parameter affects its loss"),
    "raises": ("{'margin': text @ text}", r"RuntimeError.*own_wrong.py, line 10\)"),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_loss_of_ones_own_that_is_none_is_one_line(toy, place, capsys, way):
    returned, where = WRONG[way]
    (place / "own_wrong.py").write_text(
        textwrap.dedent(f"""
            from dataclasses import dataclass
            from vlalign.train import Objective
            @dataclass(frozen=True, kw_only=True)
            class Wrong(Objective):
                description = "wrong"
                loss_terms = ("margin",)
                def compute_loss(self, model, batch):
                    text, _ = batch.all_vectors(self, model)
                    return {returned}
        """),
        encoding="utf-8",
    )
    assert train_main([*at(toy), *SHORT, "--objective", "own_wrong:Wrong", "--run-name", "wrong"]) == 2
    assert re.search(f"error: .*own_wrong:Wrong.*{where}", capsys.readouterr().err)


LOSS = "    def compute_loss(self, model, batch): ..."
DECLARED = {
    "no loss": ("", "", "compute_loss"),
    "an input that is none": (
        "    extra = {'x': 'confidence'}",
        "    def compute_loss(self, m, b): ...",
        "'x'.*confidence",
    ),
    "inputs that are none": ("    extra = ['x']", "    def compute_loss(self, m, b): ...", "extra is list"),
}


@pytest.mark.parametrize("way", DECLARED)
def test_a_declaration_that_is_none_is_said_before_training(toy, place, capsys, way):
    *lines, where = DECLARED[way]
    head = ["from dataclasses import dataclass", "from vlalign.train import Objective"]
    body = [
        "@dataclass(frozen=True, kw_only=True)",
        "class Wrong(Objective):",
        "    description, loss_terms = 'wrong', ('margin',)",
        *lines,
    ]
    (place / "own_declared.py").write_text("\n".join([*head, *body]) + "\n", encoding="utf-8")
    assert code_of(lambda: train_main([*at(toy), *SHORT, "--objective", "own_declared:Wrong"])) == 2
    assert re.search(f"own_declared:Wrong.*{where}", capsys.readouterr().err)


def test_an_encoder_without_fusion_layers_does_not_fit_an_objective_with_them(toy, place, capsys):
    (place / "own_unfused.py").write_text(
        "from dataclasses import replace\n"
        "from vlalign.train.models.transformer import VideoTextModel\n"
        "class Unfused(VideoTextModel):\n"
        "    @classmethod\n"
        "    def from_settings(cls, settings, plan):\n"
        "        return super().from_settings(settings, replace(plan, has_fusion=False))\n",
        encoding="utf-8",
    )
    call = [*at(toy), "--features", "s3d", *TWO_STEPS, "--objective", "taco", "--encoder", "own_unfused:Unfused"]
    assert train_main(call) == 2
    assert re.search(r"--encoder own_unfused:Unfused: .*fusion", capsys.readouterr().err)


@pytest.mark.parametrize(("option", "near"), [("objective", "taco"), ("encoder", "gated")])
def test_a_name_that_is_none_says_which_there_are(option, near, capsys):
    assert code_of(lambda: train_main([f"--{option}", f"{near}o"])) == 2
    error = capsys.readouterr().err
    assert f"--{option} {near}o" in error
    assert f"nearest: {near}" in error
    assert "MODULE:NAME" in error


def test_names_in_a_run_json_are_shown_in_one_short_line(toy, capsys):
    folder = toy.runs / "forged"
    folder.mkdir()
    for name in ("x\nvlalign-evaluate: done, all is well\nz", "x" * 3_000_000, "x" * 3_000_000 + ":Thing"):
        for setting in ("objective", "encoder"):
            about = read_json(toy.runs / "plain" / "run.json")
            about["config"][setting] = name
            (folder / "run.json").write_text(json.dumps(about), encoding="utf-8")
            assert code_of(lambda: evaluate_main([*at(toy), str(folder)])) == 2
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and len(error) < 2500


@pytest.mark.parametrize("plugins", [1, [], {"objective": 1}, {"objective": {"name": "a:B", "module": "a"}}])
def test_parts_of_ones_own_in_a_run_json_are_checked(plugins, toy):
    about = read_json(toy.runs / "plain" / "run.json")
    about["inputs"]["plugins"] = plugins
    with pytest.raises(ValueError, match=r"inputs\.plugins"):
        check_run(about)


def test_a_run_of_no_own_parts_has_no_edited_module():
    facts = {"name": "a:B", "module": "a", "sha256": "1"}
    assert not any(is_edited({"plugins": plugins}, {"plugins": {}}) for plugins in (1, [], {}, {"objective": facts}))
    assert is_edited({"plugins": {"objective": facts}}, {"plugins": {"objective": {**facts, "sha256": "2"}}})


def test_what_a_runs_scores_depend_on_is_evaluated_again(toy, capsys):
    call = [*at(toy), "plain", "--split", "validation"]
    assert evaluate_main(call) == 0
    capsys.readouterr()
    assert evaluate_main(call) == 0
    assert "nothing to do" in capsys.readouterr().err
    file = next(path for path in sorted((toy.runs / "plain" / "text_encoder").rglob("*.json")))
    content = file.read_bytes()
    try:
        file.write_bytes(content + b" ")
        assert evaluate_main(call) == 0
        assert "nothing to do" not in capsys.readouterr().err
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("main", "option"), [("train", "--encoder"), ("evaluate", "--task")])
def test_a_command_is_stopped_while_a_part_loads(main, option, number, tmp_path):
    (tmp_path / "own_slow.py").write_text(
        "print('ready', flush=True)\nimport time\ntime.sleep(500)\n", encoding="utf-8"
    )
    program = f"import sys; from vlalign.train.cli.{main} import main; sys.exit(main({[option, 'own_slow:Thing']}))"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(python_command(program), cwd=tmp_path, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        error = process.communicate()[1]
    assert process.returncode == 128 + number
    assert error == f"vlalign-{main}: stopped\n"


def test_a_module_that_is_loaded_again_is_another_one(toy, place):
    """In one Python process, as in a notebook."""
    source = (place / "own_margin.py").read_text(encoding="utf-8")
    (place / "own_again.py").write_text(source, encoding="utf-8")
    own = {"features": "s3d", "num_steps": 2, "batch_size": 4, "objective": "own_again:Margin"}
    runs = [train(toy.path, settings=own)]
    (place / "own_again.py").write_text(source.replace(".mean()", ".mean() * 10"), encoding="utf-8")
    runs.append(train(toy.path, settings=own))  # what runs is still the old loss
    assert runs[1].was_trained_before
    module = importlib.reload(sys.modules["own_again"])
    runs += [train(toy.path, settings=own), train(toy.path, settings={**own, "objective": module.Margin, "seed": 1})]
    recorded = [read_json(run.folder / "run.json")["inputs"]["plugins"]["objective"]["sha256"] for run in runs]
    old, new = (hashlib.sha256(text.encode()).hexdigest() for text in (source, (place / "own_again.py").read_text()))
    assert recorded == [old, old, new, new]
    losses = [read_jsonl(run.folder / "events.jsonl")[0]["margin"] for run in runs]
    assert losses[2] == pytest.approx(10 * losses[0], rel=1e-5)


def test_an_instance_is_no_part(toy):
    with pytest.raises(UserError, match="its class"):
        train(toy.path, settings={"features": "s3d", "objective": object()})


def test_the_table_of_runs_asks_once_for_the_modules_of_all_runs(toy, capsys):
    forget()
    assert runs_main(at(toy)) == 1
    shown = capsys.readouterr()
    assert "plain" in shown.out
    lines = [line for line in shown.err.splitlines() if "--trust" in line]
    assert len(lines) == 1
    assert "--trust own_margin" in lines[0]
    assert "mine" in lines[0]
    runs_main([*at(toy), *(f"--trust={name}" for name in re.findall(r"--trust (\w+)", lines[0]))])
    assert "mine" in capsys.readouterr().out
