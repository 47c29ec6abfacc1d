"""Runs of the hub: downloaded by the library itself from a small hub on this machine, then read from its cache."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from helpers.toy import make_toy
from helpers.training import GATED
from vlalign.storage import UserError
from vlalign.train import export_run, load_run, train
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.runs.folder import find_run, run_in

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "hf:me/mine-of.toy"
TEXT = "cut the onion"


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does about one model."""

    folder: Path
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/me/mine-of.toy"):
            files = {str(of.relative_to(self.folder)): of for of in sorted(self.folder.rglob("*")) if of.is_file()}
            siblings = [{"rfilename": name} for name in files]
            about = {"id": "me/mine-of.toy", "sha": COMMIT, "siblings": siblings}
            if "/tree/" in path:
                about = [{"type": "file", "path": n, "size": of.stat().st_size, "oid": "0"} for n, of in files.items()]
            body, headers = json.dumps(about).encode(), {"Content-Type": "application/json"}
        else:
            body = (self.folder / path.partition(f"/resolve/{COMMIT}/")[2]).read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self.send_response(200)
        for name, value in headers.items() | {("Content-Length", str(len(body)))}:
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("hub") / "root")


@pytest.fixture(scope="module")
def exported(toy):
    settings = {"features": "s3d", "batch_size": 4, "num_steps": 2, "validate_every": 1, "objective": "mil-nce"}
    run = train(toy.path, run_name="mine", device="cpu", settings=settings | GATED)
    return export_run(run.folder, toy.root.parent / "exported")


@pytest.fixture(scope="module")
def home(exported, tmp_path_factory):
    """A home folder whose hub cache the library has filled from a server; files that no run has are on it, too."""
    served = tmp_path_factory.mktemp("served")
    shutil.copytree(exported, served, dirs_exist_ok=True)
    (served / "pytorch_model.bin").write_bytes(b"a pickle")
    (served / "setup.py").write_text("raise SystemExit")
    home = tmp_path_factory.mktemp("home")
    handler = type("Handler", (Hub,), {"folder": served, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        loaded_elsewhere(home, {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"})
    finally:
        server.shutdown()
        server.server_close()
    assert not [path for path in handler.asked if path.endswith((".bin", ".py"))]
    return home


def loaded_elsewhere(home: Path, more: dict[str, str], name: str = NAME) -> str:
    """Load a run in a new process; return what that says, and its vector of ``TEXT`` as the last line."""
    program = (
        f"from vlalign.train import load_run; print(load_run({name!r}, device='cpu').encode_text([{TEXT!r}]).tolist())"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {"NO_PROXY": "*"}
    environment |= {"HF_HOME": str(home / "hf"), "VLALIGN_CACHE": str(home / "cache"), **more}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    return f"{done.stderr}\n{done.stdout.strip()}"


@pytest.fixture
def offline(home, monkeypatch):
    """This process without the hub, with that cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hf" / "hub"))
    monkeypatch.setenv("VLALIGN_CACHE", str(home / "cache"))
    return home


def test_a_downloaded_run_is_that_of_the_folder(exported, home, tmp_path):
    told = loaded_elsewhere(home, {"HF_HUB_OFFLINE": "1", "VLALIGN_CACHE": str(tmp_path / "cache")})
    expected = load_run(exported, device="cpu").encode_text([TEXT])
    np.testing.assert_array_equal(np.array(json.loads(told.splitlines()[-1]), dtype=np.float32), expected)
    [folder] = (tmp_path / "cache" / "runs" / COMMIT).iterdir()
    assert folder.name == "me--mine-of.toy"
    assert {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == {
        p.relative_to(exported): p.read_bytes() for p in exported.rglob("*") if p.is_file()
    }
    snapshot = home / "hf" / "hub" / "models--me--mine-of.toy" / "snapshots" / COMMIT
    assert (snapshot / "run.json").is_symlink() and not any(path.is_symlink() for path in folder.rglob("*"))


def test_commands_and_calls_take_the_name(toy, offline, capsys):
    folder = find_run(toy.root, None, NAME)
    assert (
        folder
        == run_in(toy.path, NAME)
        == find_run(toy.root, "toy", f"{NAME}@main")
        == run_in(None, f"{NAME}@{COMMIT}")
    )

    at = ["--root", str(toy.root), "--dataset", "toy"]
    assert evaluate_main([NAME, *at, "--device", "cpu"]) == 0
    assert (toy.path / "evaluations" / "me--mine-of.toy" / "metrics.json").is_file()
    assert f"run {NAME}: revision {COMMIT}" in capsys.readouterr().err
    assert search_main([NAME, TEXT, *at, "--device", "cpu"]) == 0


def test_a_run_that_is_not_there_ends_in_one_line(offline):
    with pytest.raises(UserError, match=r"run hf:me/other: not in the hub's cache .* hf download me/other"):
        load_run("hf:me/other")
    with pytest.raises(UserError, match="--revision v2"):
        load_run(f"{NAME}@v2")


@pytest.fixture
def copied(offline, tmp_path, monkeypatch):
    """The snapshot in a copy of that cache, whose files may be changed."""
    from huggingface_hub import constants

    shutil.copytree(offline / "hf" / "hub", tmp_path / "hub", symlinks=True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("VLALIGN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "hub" / "models--me--mine-of.toy" / "snapshots" / COMMIT


def test_a_link_out_of_the_repository_is_refused(copied, tmp_path):
    (tmp_path / "secret").write_text("{}")
    (copied / "labels.json").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"labels\.json: links to .*secret"):
        load_run(NAME)
    assert not list((tmp_path / "cache").rglob("run.json"))  # what is not complete is no run


@pytest.mark.parametrize("content", [b"{", b"[]", b"[" * 100_000, b"\xff\xfe{", None], ids=repr)
def test_a_damaged_or_gigantic_description_is_refused_in_one_line(copied, content):
    (copied / "run.json").unlink()
    if content is None:
        with open(copied / "run.json", "wb") as file:
            file.truncate(1 << 40)
    else:
        (copied / "run.json").write_bytes(content)
    with pytest.raises(UserError, match=r"run.json is not a valid file of vlalign-runs export \(") as caught:
        load_run(NAME)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", ["itself", "nothing", "pipe", "folder"])
def test_what_is_no_file_in_the_cache_is_refused(copied, tmp_path, kind):
    path = copied / "labels.json"
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = copied / "text_encoder" / "more.json"
        path.symlink_to("more.json" if kind == "itself" else copied.parents[1] / "blobs" / "none")
    with pytest.raises(UserError, match=f"{path.name}: links to no file"):
        load_run(NAME)
    assert not list((tmp_path / "cache").rglob("run.json"))


def test_a_model_and_a_run_that_was_not_exported_are_refused(copied):
    model = copied.parents[2] / "models--me--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    (model / "snapshots" / COMMIT / "README.md").write_text("a model")
    with pytest.raises(UserError, match=r"has no run\.json; .*vlalign-runs export"):
        load_run("hf:me/model")
    about = json.loads((copied / "run.json").read_text())
    del about["exported"]
    (copied / "run.json").unlink()
    (copied / "run.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="is not an exported run"):
        load_run(NAME)


def test_files_that_no_run_has_are_not_taken(copied, tmp_path):
    (copied / "text_encoder" / ".hidden").write_text("x")
    (copied / "more.py").write_text("x")
    folder = find_run(tmp_path, None, NAME)
    assert not [path for path in folder.rglob("*") if path.name in (".hidden", "more.py")]
