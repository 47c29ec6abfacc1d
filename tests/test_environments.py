"""The commands under circumstances that are unlike a developer's: no home, no locks, no network, another locale."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.disks import mounted
from helpers.needs import PROGRAM, skip_without
from helpers.videos import scene
from vlalign.extract.videos.demo import render_video

NOBODY = ["unshare", "--user", "--map-user=54321", "--map-group=54321"]
"""Runs a program as a user who has no entry among the system's users, and who is held to permissions."""
OFFLINE = ["unshare", "--net"]
"""Runs a program without any network, not even this machine's own addresses."""
NO_LOCKS = """
import errno, fcntl, os
def refuse(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = fcntl.lockf = refuse
"""
"""A module that Python runs at its start: file systems refuse locks, as NFS without a lock server does."""
VLALIGN = str(Path(sys.executable).with_name("vlalign"))


def can(*command: str) -> bool:
    """Return whether this machine has a program and allows what it does."""
    return bool(shutil.which(command[0])) and not subprocess.run([*command, "true"], capture_output=True).returncode


needs_namespaces = skip_without(PROGRAM, [] if can(*NOBODY) else ["unshare, with the right to map users"])
needs_offline = skip_without(PROGRAM, [] if can(*OFFLINE) else ["unshare, with the right to make networks"])


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("videos with spaces and Umläute")
    for number in range(6):
        render_video(scene(0.6), folder / f"Vidéo {number} 猫.mp4")
    lines = ["video_id,caption,split"]
    splits = ["train"] * 4 + ["validation", "test"]
    lines += [f"Vidéo {n} 猫,a cat does thing {n} 猫,{split}" for n, split in enumerate(splits)]
    (folder / "Untertitel ü.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def calls(root: Path, videos: Path) -> dict[str, list[str]]:
    """Return the whole way, from videos to a search."""
    at = ["--root", str(root), "--dataset", "mine"]
    train = ["--features", "resnet152", "--num-steps", "2", "--batch-size", "2", "--run-name", "run"]
    return {
        "extract": ["extract", *at, "--videos", str(videos), "--features", "resnet152", "--weights", "random"],
        "preprocess": ["preprocess", *at, "--annotations", str(videos / "Untertitel ü.csv")],
        "train": ["train", *at, *train],
        "search": ["search", *at, "run", "a cat 猫"],
    }


def run(call: list[str], before: list[str] | None = None, **environment: str | None) -> tuple[int, str]:
    """Run a command; return its exit code and what it wrote. Variables that are None are taken away."""
    variables = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    done = subprocess.run([*(before or []), VLALIGN, *call], capture_output=True, env=variables)
    wrote = (done.stdout + done.stderr).decode(errors="replace")
    assert wrote and "Traceback" not in wrote and "Warning" not in wrote, wrote
    return done.returncode, wrote


def whole_way(root: Path, videos: Path, before: list[str] | None = None, **environment: str | None) -> dict[str, str]:
    """Run all commands; return what each wrote. Each must do all that it was asked."""
    root.mkdir(parents=True)
    wrote = {}
    for name, call in calls(root, videos).items():
        code, wrote[name] = run(call, before, **environment)
        assert code == 0, wrote[name]
    return wrote


NO_HOME = dict.fromkeys(["HOME", "XDG_STATE_HOME", "VLALIGN_CACHE", "HF_HOME"])


@pytest.mark.slow
@needs_namespaces
def test_without_a_home(tmp_path, videos):
    whole_way(tmp_path / "root", videos, NOBODY, **NO_HOME)


@pytest.mark.parametrize("call", [["doctor"], ["extract", "--dataset", "a", "--videos", "VIDEOS", "--features", "s3d"]])
@needs_namespaces
def test_without_a_home_the_doctor_and_weights_name_the_variable(tmp_path, videos, call):
    call = [str(videos) if word == "VIDEOS" else word for word in call]
    code, wrote = run([*call, "--root", str(tmp_path / "root")], NOBODY, **NO_HOME)
    assert code != 0 or call == ["doctor"]
    assert "VLALIGN_CACHE" in wrote, wrote


@pytest.mark.slow
@needs_namespaces
def test_with_a_home_that_cannot_be_written(tmp_path, videos):
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    whole_way(tmp_path / "root", videos, NOBODY, HOME=str(home), XDG_STATE_HOME=None, VLALIGN_CACHE=None)
    assert not list(home.iterdir())


@pytest.mark.slow
@needs_offline
def test_without_any_network_and_with_a_proxy_that_is_gone(tmp_path, videos):
    proxies = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY")}
    whole_way(tmp_path / "root", videos, OFFLINE, **proxies)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_with_a_screen_that_lacks_characters(tmp_path, videos, encoding):
    wrote = whole_way(tmp_path / "root", videos, LC_ALL="C", PYTHONIOENCODING=encoding)
    assert "\\u732b" in wrote["search"]  # 猫


@pytest.mark.slow
def test_without_locks(tmp_path, videos):
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(NO_LOCKS)
    path = os.pathsep.join([str(modules), os.environ["PYTHONPATH"]])
    wrote = whole_way(tmp_path / "root", videos, PYTHONPATH=path)
    assert wrote["train"].count("No locks available") == 1


@pytest.mark.slow
def test_with_a_full_temporary_folder(tmp_path, videos):
    with mounted(tmp_path / "full", "-t", "tmpfs", "-o", "size=64k", "tmpfs") as full:
        with contextlib.suppress(OSError):
            (full / "all").write_bytes(bytes(1 << 20))
        whole_way(tmp_path / "root", videos, TMPDIR=str(full))


@pytest.mark.slow
def test_names_with_spaces_and_umlauts(tmp_path, videos):
    whole_way(tmp_path / "Mein Gerät" / "Wurzel ü 猫", videos)
