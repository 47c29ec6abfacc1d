"""Options of evaluation and search that change nothing with the run or the features are refused."""

import pytest
from helpers.toy import make_toy
from helpers.training import at, options
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.index import main as index_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.serve import main as serve_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.page import serve

SHORT = {"features": "s3d", "num_steps": 2, "batch_size": 4, "validate_every": 1, "device": "cpu"}
RUNS = {
    "early": {"objective": "taco", "losses": "sentence"},
    "fused": {"objective": "taco", "losses": "fusion+sentence", "num_negatives": 2},
}


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    toy = make_toy(tmp_path_factory.mktemp("options"))
    for name, settings in RUNS.items():
        assert train_main([*at(toy), *options({**SHORT, **settings, "run_name": name})]) == 0
    return toy


REFUSED = {
    "no fusion layers to rerank for": (evaluate_main, ["early", "--rerank", "3"], "--rerank 3"),
    "no such stage": (evaluate_main, ["early", "--token-weight", "2"], "--token-weight 2.0"),
    "a stage of another objective": (evaluate_main, ["fused", "--bag-weight", "1"], "--bag-weight 1.0"),
    "search: no fusion layers": (search_main, ["early", "cut", "--rerank", "3"], "--rerank 3"),
    "search: captions alone": (search_main, ["fused", "cut", "--rerank", "3", "--by", "text"], "--rerank 3"),
    "search: like": (search_main, ["fused", "--like", "v000", "--rerank", "3"], "--rerank 3"),
    "search: no run": (search_main, ["cut", "--features", "s3d", "--rerank", "3"], "--rerank 3"),
    "search: a weight without an example": (search_main, ["early", "cut", "--like-weight", "0.5"], "--like-weight 0.5"),
    "search: a weight without a text": (
        search_main,
        ["early", "--like", "v000", "--like-weight", "0.5"],
        "--like-weight 0.5",
    ),
    "search: weights of a store": (search_main, ["early", "cut", "--weights", "x.pth"], "--weights x.pth"),
    "index: weights of a store": (index_main, ["early", "--weights", "x.pth"], "--weights x.pth"),
    "serve: weights of a store": (serve_main, ["early", "--weights", "x.pth"], "--weights x.pth"),
    "search: a device without a run": (search_main, ["cut", "--features", "s3d", "--device", "cuda"], "--device cuda"),
    "index: a device without a run": (index_main, ["--features", "s3d", "--device", "cuda"], "--device cuda"),
}
"""{what: (command, call, what the message begins with)}"""


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_changes_nothing_is_refused(toy, capsys, monkeypatch, case):
    monkeypatch.setattr(serve, "serve", lambda *args, **options: None)  # would wait for requests
    main, call, named = REFUSED[case]
    capsys.readouterr()
    assert main([*at(toy), *call]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert f": error: {named}: " in line


def test_options_that_change_something_are_taken(toy, capsys):
    for call in (["fused", "cut", "--rerank", "3"], ["early", "cut", "--like", "v000", "--like-weight", "0.5"]):
        assert search_main([*at(toy), *call]) == 0
    assert evaluate_main([*at(toy), "fused", "--rerank", "3", "--fusion-weight", "0.5"]) == 0
    assert "error: " not in capsys.readouterr().err
