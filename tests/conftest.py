"""What tests share. Nothing here reaches a network: weights are random, caches are empty folders."""

import ctypes
import gc
import itertools
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import setuptools  # noqa: F401  # torch's compiler imports it, which fails once a test has changed how modules are found
import torch
from filelock import FileLock
from helpers.videos import RECORDINGS, scene
from helpers.zoo import write_zoo
from hypothesis import settings
from vlalign.extract import load_extractor
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.extractor import Extractor
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.chunks import in_one_process
from vlalign.preprocess.datasets import demo
from vlalign.preprocess.prepare import prepare_records
from vlalign.preprocess.settings import SPACY_MODEL
from vlalign.preprocess.tables import Preparation
from vlalign.storage.common.problems import Problems
from vlalign.storage.common.progress import TerminalProgress, report_progress_to
from vlalign.storage.common.terminal import messages_on_terminal
from vlalign.storage.dataset.folder import DatasetFolder

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
"""How long an example takes depends on what else the machine does."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
"""Shells let background jobs ignore Ctrl-C, and the programs that tests start and interrupt would inherit that."""

TESTS = Path(__file__).parent
IMPORT_PATH = [str(TESTS), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, IMPORT_PATH))
"""Programs that tests start import the same helpers."""


FORKING = ("test_killed_writers.py", "test_disks.py", "test_damaged_shards.py", "test_maintenance.py")


def pytest_collection_modifyitems(items):
    """Tests that fork hundreds of times come first: once networks were loaded, each fork takes a tenth of a second."""
    items.sort(key=lambda item: item.path.name not in FORKING)


gc.disable()


def pytest_collection_finish():
    """Garbage is looked for among what tests make, not among a million objects of libraries and collected tests."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    """Python's end collects everything; libraries in C++ print what it leaves."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def _return_freed_memory():
    """Give freed memory back to the system after each module, as far as glibc can."""
    yield
    gc.collect()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


HOMES = itertools.count()


@pytest.fixture(autouse=True)
def _no_surprises(monkeypatch, tmp_path_factory):
    """Fixed seeds, an empty cache, no root from the environment, no source of weights but a
    closed port; torch's threads as before. Messages and progress show as in a command."""
    random.seed(0)
    np.random.seed(0)
    # torch.manual_seed also notes a stack for every kind of GPU that this machine lacks, which takes 2 ms.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)
    home = tmp_path_factory.getbasetemp() / "homes" / str(next(HOMES))  # made by those who write there
    monkeypatch.setenv("VLALIGN_CACHE", str(home / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.delenv("VLALIGN_ROOT", raising=False)
    import vlalign.extract.models.weights as weights

    closed = {name: weights.PublishedFile(("http://127.0.0.1:9/" + name,), None) for name in weights.PUBLISHED}
    monkeypatch.setattr(weights, "PUBLISHED", closed)
    num_threads = torch.get_num_threads()  # sums depend on it in their last digits
    with messages_on_terminal(), report_progress_to(TerminalProgress()):
        yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def small_demo(tmp_path_factory) -> DatasetFolder:
    """A demo set of 14 videos, prepared and extracted by the real stages. Tests that change it copy it first.

    It takes long to make, so that all processes of pytest-xdist share one.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    dataset, done = DatasetFolder(folder / "small_demo", "demo"), folder / "small_demo.done"
    with FileLock(folder / "small_demo.lock"):
        if not done.exists():
            planned = demo.plan_scenes(0, {"train": 8, "validation": 3, "test": 3})
            chunks = in_one_process(lambda _: demo.records(planned))
            prepare_records(Preparation(dataset=dataset, chunks=chunks, spacy_model=SPACY_MODEL, problems=Problems()))
            call = ["--root", str(dataset.root), "--dataset", "demo", "--features", "resnet152,s3d"]
            assert extract_main([*call, "--weights", "random"]) == 0
            done.touch()
    return dataset


@pytest.fixture(scope="session")
def recordings(tmp_path_factory) -> dict[str, Path]:
    """The same scene, recorded in many ways."""
    folder = tmp_path_factory.mktemp("recordings")
    paths = {name: folder / f"{name.replace('/', '-')}.mp4" for name in RECORDINGS}
    for name, path in paths.items():
        render_video(scene(**RECORDINGS[name]), path)
    return paths


@pytest.fixture(scope="session")
def zoo_folder(tmp_path_factory) -> Path:
    """The made-up videos of ``tests/videos``, and broken, odd and awkwardly named ones made of them."""
    folder = tmp_path_factory.mktemp("zoo")
    write_zoo(folder)
    return folder


@pytest.fixture(scope="session")
def short_video(tmp_path_factory) -> Path:
    """0.6 s: 15 frames, one window of S3D."""
    path = tmp_path_factory.mktemp("short") / "short.mp4"
    render_video(scene(0.6), path)
    return path


@pytest.fixture(scope="session")
def s3d() -> Extractor:
    return load_extractor("s3d", weights="random")


@pytest.fixture(scope="session")
def resnet152() -> Extractor:
    return load_extractor("resnet152", weights="random")
