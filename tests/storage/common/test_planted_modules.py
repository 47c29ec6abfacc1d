"""Processes that this package starts import nothing from the current folder, which may be a stranger's."""

import importlib
import os
import pkgutil
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.needs import SYSTEM, skip_without
from helpers.videos import scene
from torch._inductor.runtime.cache_dir_utils import cache_dir
from vlalign.extract.videos.demo import render_video
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.programs import (
    COMPILED_CODE,
    find_program,
    keep_compiled_code_private,
    python_command,
    refuse_planted_libraries,
)
from vlalign.storage.common.system import IS_WINDOWS

pytestmark = pytest.mark.portable

PROGRAMS = (
    *("cc", "ffmpeg", "ffprobe", "g++", "gcc", "git", "ld", "ldconfig", "lscpu"),
    *("nvidia-smi", "objdump", "ptxas", "ssh", "uv"),
)
INSTALLED = {module.name for module in pkgutil.iter_modules() if module.name.isidentifier()}
EVERY_MODULE = sorted({*INSTALLED, *sys.stdlib_module_names, "sitecustomize", "usercustomize", "vlalign"})
EMPTY_ENTRIES = """
import os
for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
    os.environ[name] = os.pathsep.join(["", ".", os.environ.get(name, "")])
"""
"""Such an entry means the current folder. A Python that is started with it would import its own modules from there, so
it comes later."""
POOL = (
    EMPTY_ENTRIES
    + """
from vlalign.storage.common.process_pool import map_in_processes
import on_purpose

if __name__ == "__main__":
    print(list(map_in_processes(on_purpose.double, range(4), num_processes=2, doing="doubling")))
"""
)
CHILD = (
    EMPTY_ENTRIES
    + """
import time
from vlalign.storage.common.child_process import Child

if __name__ == "__main__":
    child = Child("the process", "on_purpose")
    child.send([0, 2, 4, 6])
    print(child.receive())
    child.stop(time.monotonic() + 60)
"""
)
DECODER = (
    EMPTY_ENTRIES
    + """
import sys
from vlalign.extract import extract_video, load_extractor

if __name__ == "__main__":
    print(*extract_video(sys.argv[1], [load_extractor("logmel")]))
"""
)
IMPORTS = (
    EMPTY_ENTRIES
    + """
import subprocess
import sys
from vlalign.storage.common.programs import python_command, without_current_folder

modules = ["train.loop.processes", "extract.pipeline.device_workers", "extract.decoding.child"]
modules += ["ray_jobs.worker", "preprocess.tag"]
program = "; ".join(f"import vlalign.{name}" for name in modules)
libraries = "import transformers.modeling_utils, timm, faiss, spacy, matplotlib.figure, torch.utils.tensorboard, ray"
environment = without_current_folder(os.environ)
subprocess.run([*python_command(f"{program}; {libraries}; print(1)")], env=environment, check=True)
"""
)
"""What all kinds of processes import."""
RECORDER = """
import sys
names = open({file!r}, "a", buffering=1)
sys.addaudithook(lambda event, args: event == "import" and names.write(args[0].partition(".")[0] + "\\n"))
"""
"""Writes down each module that is tried, whether there is one or not."""
ON_PURPOSE = """
def double(number):
    return 2 * number

def main():
    from vlalign.storage.common.child_process import run_child
    run_child(lambda connection, message: connection.send(message))
"""


def plant(folder, names, programs=()):
    """Fill a folder with modules and programs that leave their names in the file ``ran`` beside it when they run."""
    folder.mkdir()
    ran = str(folder.parent / "ran")
    for name in names:
        (folder / f"{name}.py").write_text(f"open({ran!r}, 'a').write({name!r} + ' ')\n")
    for name in (*PROGRAMS, *programs):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {ran!r}\nexit 1\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def planted(tmp_path):
    """A folder with a module of each name that can be imported on this machine."""
    return plant(tmp_path / "planted", EVERY_MODULE)


def run(command, folder, **variables):
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=180)
    ran = folder.parent / "ran"
    assert not ran.exists(), f"these ran: {ran.read_text()}"
    return done


@pytest.mark.parametrize(
    ("program", "printed"),
    [(POOL, "[0, 2, 4, 6]"), (CHILD, "[0, 2, 4, 6]"), (DECODER, "logmel")],
    ids=["pool", "child", "decoder"],
)
def test_a_process_runs_nothing_from_the_current_folder_but_finds_pythonpath(tmp_path, planted, program, printed):
    video, own = tmp_path / "x.mp4", tmp_path / "own"
    render_video(scene(0.6), video)
    own.mkdir()
    (own / "on_purpose.py").write_text(ON_PURPOSE)
    (tmp_path / "program.py").write_text(program)
    path = os.pathsep.join(filter(None, (str(own), os.environ.get("PYTHONPATH"))))
    done = run([sys.executable, str(tmp_path / "program.py"), str(video)], planted, PYTHONPATH=path)
    assert done.stdout.strip() == printed, done.stderr


def test_commands_run_nothing_from_the_current_folder(tmp_path):
    """With two devices, the command starts processes of all kinds. An empty entry of PATH is the current folder."""
    planted = plant(tmp_path / "planted", EVERY_MODULE, ["uname"])  # torch starts it when it is imported
    (tmp_path / "videos").mkdir()
    for number in range(4):
        render_video(scene(0.6), tmp_path / "videos" / f"v{number}.mp4")
    at = ["--root", str(tmp_path / "root"), "--dataset", "mine"]
    call = [*at, "--videos", str(tmp_path / "videos"), "--features", "logmel", "--device", "cpu,cpu"]
    path = os.pathsep.join(["", ".", os.environ["PATH"]])
    done = run([str(Path(sys.executable).with_name("vlalign-extract")), *call], planted, PATH=path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b4 videos", done.stderr)


@pytest.mark.slow
def test_no_name_that_is_tried_is_taken_from_the_current_folder(tmp_path):
    """Libraries try many modules that are not installed, too."""
    (tmp_path / "sitecustomize.py").write_text(RECORDER.format(file=str(tmp_path / "tried")))
    (tmp_path / "program.py").write_text(IMPORTS)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    program = [sys.executable, str(tmp_path / "program.py")]
    empty = plant(tmp_path / "empty", ())
    assert run(program, empty, PYTHONPATH=path).stdout == "1\n"
    tried = {name for name in (tmp_path / "tried").read_text().split() if name.isidentifier()}
    assert {"torch", "numpy", "vlalign"} < tried and len(tried - set(EVERY_MODULE)) > 10
    (tmp_path / "sitecustomize.py").unlink()
    everything = plant(tmp_path / "everything", {*tried, *EVERY_MODULE})
    done = run(program, everything, PYTHONPATH=path)
    assert done.stdout == "1\n", done.stderr


def test_programs_are_found_in_absolute_folders_only(tmp_path, monkeypatch, planted):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(planted)
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", "../planted", str(other)]))
    assert shutil.which("ffmpeg") and find_program("ffmpeg") is None
    program = other / ("ffmpeg.exe" if IS_WINDOWS else "ffmpeg")
    program.write_text("")
    assert IS_WINDOWS or find_program("ffmpeg") is None, "it is no program"
    program.chmod(0o755)
    assert find_program("ffmpeg") == str(program)


@skip_without(SYSTEM, ["libraries that are named like this"] if IS_WINDOWS else [])
def test_a_library_that_pytorch_would_load_from_the_current_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse_planted_libraries()
    (tmp_path / "libcuda.so.1").touch()
    with pytest.raises(UserError, match=str(tmp_path / "libcuda.so.1")):
        refuse_planted_libraries()


def test_what_torch_compiles_lies_in_a_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.delenv(COMPILED_CODE, raising=False)
    monkeypatch.setenv("VLALIGN_CACHE", str(tmp_path))
    (tmp_path / "compiled").mkdir(mode=0o777)
    keep_compiled_code_private()
    folder = Path(os.environ[COMPILED_CODE])
    assert folder == tmp_path / "compiled" and (IS_WINDOWS or stat.S_IMODE(folder.stat().st_mode) == 0o700)
    assert cache_dir() == str(folder)
    monkeypatch.setenv(COMPILED_CODE, str(tmp_path / "mine"))
    keep_compiled_code_private()
    assert os.environ[COMPILED_CODE] == str(tmp_path / "mine")


OWN_PARTS = {
    "train": ("vlalign.train.cli.train", ["--encoder", "own_marking:Thing"]),
    "evaluate": ("vlalign.train.cli.evaluate", ["--task", "own_marking:Thing"]),
    "preprocess": ("vlalign.preprocess.cli", ["--config", "options.yaml", "--trust", "own_marking"]),
}


@skip_without(SYSTEM, ["libraries that are named like this"] if IS_WINDOWS else [])
@pytest.mark.parametrize("command", OWN_PARTS)
def test_such_a_library_is_refused_before_a_module_of_ones_own_imports_pytorch(tmp_path, monkeypatch, capsys, command):
    module, options = OWN_PARTS[command]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_marking.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    (tmp_path / "options.yaml").write_text("dataset: own_marking:Thing")
    (tmp_path / "libcuda.so.1").touch()
    with pytest.raises(SystemExit) as stopped:
        sys.exit(importlib.import_module(module).main(options))
    assert stopped.value.code == 2
    assert str(tmp_path / "libcuda.so.1") in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--encoder", "--objective"])
def test_a_command_with_an_installed_module_of_ones_own_runs_nothing_from_the_current_folder(tmp_path, option):
    """The module imports PyTorch, which tries modules that are not installed and reads entry points."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_part.py").write_text("import torch, torch._dynamo\nclass Thing: pass\n")
    planted = plant(tmp_path / "planted", [*EVERY_MODULE, "pynvml", "dill", "torchcomms", "evilback"])
    (planted / "evil-1.0.dist-info").mkdir()
    (planted / "evil-1.0.dist-info" / "entry_points.txt").write_text("[torch.backends]\nevil = evilback:load\n")
    program = f"import sys; from vlalign.train.cli.train import main; main([{option!r}, 'own_part:Thing'])"
    path = os.pathsep.join(filter(None, (str(tmp_path / "own"), os.environ.get("PYTHONPATH"))))
    done = run(python_command(program), planted, PYTHONPATH=path)
    assert done.returncode == 2 and "own_part:Thing" in done.stderr
