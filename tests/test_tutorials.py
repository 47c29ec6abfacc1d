"""Slow: every command of the tutorials runs, and prints what the page shows, figures apart."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.clusters import APART
from helpers.demo_query import demo_query, fits
from helpers.needs import PROGRAM, SYSTEM, missing_programs, missing_rights, need
from helpers.small_clip import train_clip
from timm import create_model
from timm.models import save_for_hf
from transformers import AutoTokenizer, CLIPImageProcessor, CLIPProcessor
from vlalign.extract.cli.extract import main as extract_main
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.train import open_search
from vlalign.train.cli.train import main as train_main

TOP = Path(__file__).resolve().parents[1]
TUTORIALS = TOP / "docs" / "tutorials"
FOUND_IN_SEARCH = ("demo0003", "demo0080", "demo0101", "demo0210", "demo0250")
"""The videos that stand for the reader's in the tutorial about search."""


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, TOP / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = load("run_tutorial")


def put_into_cache(home: Path, repository: str, folder: Path) -> None:
    """Lay out a folder as the hub's cache would after a download."""
    cache, commit = home / "hub" / f"models--{repository.replace('/', '--')}", "0" * 40
    shutil.copytree(folder, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The hub's cache with the models that the tutorials name: small or random ones of the same kind."""
    home = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)  # what is found by random features is the same in any order of the tests
    save_for_hf(create_model("efficientnet_lite0", pretrained=False), home / "lite0", safe_serialization=True)
    put_into_cache(home, "timm/tf_efficientnet_lite0.in1k", home / "lite0")
    clip = train_clip(home / "clip")
    tokenizer = AutoTokenizer.from_pretrained(clip)
    CLIPProcessor(image_processor=CLIPImageProcessor(), tokenizer=tokenizer).save_pretrained(clip)
    put_into_cache(home, "openai/clip-vit-large-patch14", clip)
    return home


@pytest.fixture(scope="module")
def made_demo(tmp_path_factory):
    """What ``make demo`` makes, but for the evaluation."""
    root = tmp_path_factory.mktemp("demo")
    call = ["--root", str(root), "--dataset", "demo"]
    assert preprocess_main(call) == 0
    assert extract_main([*call, "--features", "resnet152,s3d"]) == 0
    assert train_main([*call, "--features", "resnet152+s3d"]) == 0
    return root / "demo"


def check(page: str, folder: Path, home: Path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wrong = runner.differences(TUTORIALS / page, folder)
    assert wrong == [], "\n\n".join(wrong)


def with_demo(folder: Path, made_demo: Path) -> Path:
    shutil.copytree(made_demo, folder / "vlalign_data" / "demo")
    return folder


@pytest.mark.slow
def test_the_queries_of_make_demo_and_of_the_first_picture_find_such_a_scene_first(made_demo):
    search = open_search(made_demo, run="words-resnet152+s3d-seed0")
    scenes = {video.video_id: video.scene for video in search.encoder.dataset.read_videos()}
    shown = re.search(r'^DEMO_QUERY.* = "(.+)"', (TOP / "docs" / "take_pictures.py").read_text("utf-8"), re.MULTILINE)
    assert shown
    for query, by in ((demo_query(), "video"), (shown[1], "both")):
        first = search(query, num_results=1, by=by)[0]
        assert fits(query, scenes[first.video_id]), (query, first.video_id)


@pytest.mark.slow
def test_search(tmp_path, home, made_demo, monkeypatch):
    with_demo(tmp_path, made_demo)
    (tmp_path / "videos").mkdir()
    for name in FOUND_IN_SEARCH:
        (video,) = (made_demo / "videos").glob(f"{name}-*.mp4")
        shutil.copy(video, tmp_path / "videos" / f"{name}.mp4")
    check("search.md", tmp_path, home, monkeypatch)


@pytest.mark.slow
def test_train_and_then_paper(tmp_path, home, made_demo, monkeypatch):
    """The second tutorial goes on with the videos of the first."""
    with_demo(tmp_path, made_demo)
    check("train.md", tmp_path, home, monkeypatch)
    check("paper.md", tmp_path, home, monkeypatch)


@pytest.mark.slow
def test_table(tmp_path, home, made_demo, monkeypatch):
    check("table.md", with_demo(tmp_path, made_demo), home, monkeypatch)


@pytest.mark.slow
def test_cluster(tmp_path, home, made_demo):
    """Apart from other networks and processes: ``ray stop`` ends every Ray that it sees."""
    need(SYSTEM, missing_rights())
    need(PROGRAM, missing_programs("unshare", "ip"))
    with_demo(tmp_path, made_demo)
    program = 'ip link set lo up && mkdir -p /tmp/ray && mount -t tmpfs ray /tmp/ray && exec "$@"'
    call = [sys.executable, TOP / "docs" / "run_tutorial.py", TUTORIALS / "cluster.md", tmp_path]
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*APART, "bash", "-c", program, "bash", *call], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_notebook_shows_what_it_keeps(tmp_path, made_demo):
    """Figures apart, as for tutorials; pictures are counted."""
    with_demo(tmp_path, made_demo)
    kept, again = TUTORIALS / "notebook.ipynb", tmp_path / "again.ipynb"
    shutil.copy(kept, again)
    call = [sys.executable, TOP / "docs" / "run_notebook.py", again, tmp_path, "--write"]
    environment = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    notebooks = load("run_notebook")
    (page, pictures), (new_page, new_pictures) = (notebooks.as_markdown(notebooks.read(of)) for of in (kept, again))
    assert list(map(runner.outline, new_page.splitlines())) == list(map(runner.outline, page.splitlines()))
    assert new_pictures.keys() == pictures.keys() and len(pictures) == 3


@pytest.mark.parametrize(("name", "num_figures"), [("own_features", 2)])
def test_a_notebook_that_the_site_runs_shows_what_it_keeps(tmp_path, name, num_figures):
    kept, again = TUTORIALS / f"{name}.ipynb", tmp_path / "again.ipynb"
    shutil.copy(kept, again)
    call = [sys.executable, TOP / "docs" / "run_notebook.py", again, tmp_path, "--write"]
    environment = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    notebooks = load("run_notebook")
    (page, figures), (new_page, new_figures) = (notebooks.as_markdown(notebooks.read(of)) for of in (kept, again))
    assert list(map(runner.outline, new_page.splitlines())) == list(map(runner.outline, page.splitlines()))
    assert new_figures.keys() == figures.keys() and len(figures) == num_figures


def test_every_tutorial_is_run():
    text = Path(__file__).read_text(encoding="utf-8")
    assert [page.name for page in TUTORIALS.glob("*.md") if f'"{page.name}"' not in text] == []


PAGE = """
```console
$ printf 'one 1\\nleft out\\ntwo "x" 2.5\\n'
one 7
...
two "y" 3
$ cat > file <<END
> a line
> END
$ cat file; (exit 3)
a line
$ echo never
```
"""


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ([], [], True),
        ([], ["a"], False),
        (["a 1"], ["a 2"], True),
        (["a"], ["a", "a"], False),
        (["..."], ["a", "b"], True),
        (["a", "..."], ["a"], True),
        (["a", "..."], ["b", "a"], False),
        (["...", "a"], ["a", "b"], False),
        (["...", "a 1", "b"], ["a 1", "a 2", "a 3", "b"], True),
        (["a", "...", "b", "...", "c"], ["a", "x", "b", "y", "c"], True),
        (["a", "...", "b", "...", "c"], ["a", "x", "c"], False),
        (["work: 100% 3/3", "a"], ["a"], True),
        (["a"], ["work:  50% 1/2", "a"], True),
        (['a "x y"'], ['a "z"'], True),
    ],
)
def test_lines_may_be_left_out_and_progress_is_not_compared(shown, printed, same):
    assert (runner.matched(shown, printed) is not None) == same


def test_lines_are_compared_without_figures_and_a_failure_ends_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    (ended,) = runner.differences(page, tmp_path)
    assert ended == "$ cat file; (exit 3)\nended with an error, and nothing after it was run"
    page.write_text(PAGE.replace("; (exit 3)", "").replace("left out", "one 2").replace("...\n", ""))
    found = runner.differences(page, tmp_path, write=True)
    assert [of.splitlines()[0] for of in found] == ["$ printf 'one 1\\none 2\\ntwo \"x\" 2.5\\n'", "$ echo never"]
    assert "\na line\n" in page.read_text() and (tmp_path / "file").read_text() == "a line\n"
