"""Which data set a command asks a run about; what does not fit is refused."""

import re
import shutil

import pytest
from helpers.toy import make_toy
from vlalign.storage import FeatureStore, Weights, write_shard
from vlalign.storage.common.files import read_json
from vlalign.storage.profiles import PROFILES
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run ``r`` of ``toy``; ``mine`` with captions, ``bare`` without, and ``unlike``, whose features have other
    weights."""
    root = tmp_path_factory.mktemp("asked")
    make_toy(root)
    mine = make_toy(root, num_videos=20, seed=5, name="mine")
    shutil.copytree(mine.path, root / "bare", ignore=shutil.ignore_patterns("captions"))
    shutil.copytree(mine.path, root / "unlike", ignore=shutil.ignore_patterns("s3d"))
    store = FeatureStore(mine.features("s3d"))
    videos = [store.get(video_id) for video_id in store.video_ids()]
    write_shard(
        root / "unlike" / "features" / "s3d",
        PROFILES["s3d"],
        Weights(name="others", sha256="1" * 64),
        videos,
        made_with={},
    )
    call = [
        "--root",
        str(root),
        "--dataset",
        "toy",
        "--features",
        "s3d",
        "--num-steps",
        "2",
        "--batch-size",
        "4",
        "--run-name",
        "r",
    ]
    assert train_main(call) == 0
    assert evaluate_main(["--root", str(root), "r"]) == 0
    return root


def run_at(root, form: str) -> str:
    return {"name": "r", "path": str(root / "toy" / "runs" / "r")}[form]


@pytest.mark.parametrize("form", ["name", "path"])
def test_search_uses_the_requested_data_set(root, form, capsys):
    at, run = ["--root", str(root)], run_at(root, form)
    for options, found in (
        ([], r"\b24\b.* toy"),
        (["--dataset", "toy"], r"\b24\b.* toy"),
        (["--dataset", "mine"], rf"\b20\b.* mine \({re.escape(str(root / 'mine'))}\), .*\br\b.* toy"),
        (["--dataset", "bare"], rf"\b20\b.* bare \({re.escape(str(root / 'bare'))}\), .*\br\b.* toy"),
    ):
        assert search_main([*at, run, "cut the onion", *options]) == 0
        first = capsys.readouterr().out.splitlines()[0]
        assert re.fullmatch(rf"'cut the onion' .*{found}", first), first


@pytest.mark.parametrize("form", ["name", "path"])
@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("nowhere", ["--dataset nowhere: ", "nowhere/", " toy"]),
        ("unlike", ["unlike/features: ", " s3d ", " r ", "weights others)", " unlike "]),
    ],
)
def test_an_unsuitable_data_set_is_refused_in_one_line(root, form, dataset, words, capsys):
    for main, call in ((search_main, ["cut"]), (evaluate_main, [])):
        assert main(["--root", str(root), run_at(root, form), *call, "--dataset", dataset]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert all(word in line for word in words), line


@pytest.mark.parametrize("form", ["name", "path"])
def test_evaluation_on_other_data_keeps_the_runs_own_metrics(root, form, capsys):
    folder = root / "toy" / "runs" / "r"
    before = [(folder / name).read_bytes() for name in ("metrics.json", "report.html", "queries.jsonl")]
    assert evaluate_main(["--root", str(root), run_at(root, form), "--dataset", "mine"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("r (trained on toy): 5 captions and 5 clips of mine, test\n")
    assert f"metrics: {folder / 'on' / 'mine' / 'metrics.json'}\n" in shown
    result = read_json(folder / "on" / "mine" / "metrics.json")
    assert (result["dataset"], result["trained_on"]) == ("mine", "toy")
    assert [(folder / name).read_bytes() for name in ("metrics.json", "report.html", "queries.jsonl")] == before
    assert evaluate_main(["--root", str(root), run_at(root, form), "--dataset", "mine", "--on", "bare"]) == 2
    assert re.search(r"--on bare: .*\bmine\b.*\btoy\b", capsys.readouterr().err)


def test_a_run_name_is_not_a_glob_pattern(root, capsys):
    assert search_main(["--root", str(root), "[r]", "cut"]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("vlalign-search: error: run [r]: ") and str(root / "*" / "runs" / "[r]") in line
