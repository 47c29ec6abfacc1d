"""NCL's biases of search windows, beside plain numpy from the index and the queue in the run's file."""

import numpy as np
import pytest
from helpers.toy import make_toy
from helpers.training import at
from safetensors.numpy import load_file
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import open_search
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.search import window_biases

GAMMA = 0.2
QUERY = "a person slices the onion"


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    settings = ["--objective", "ncl", "--normalized-loss", "--query-queue", "50", "--temperature", str(GAMMA)]
    common = ["--features", "s3d", "--batch-size", "6", "--num-steps", "20", "--validate-every", "10"]
    assert train_main([*at(toy), *settings, *common, "--run-name", "r"]) == 0
    return toy


def figure_4(similarity: np.ndarray) -> np.ndarray:
    """The biases of the columns as NCL's Figure 4 has them: 4 iterations on the matrix exp(S)."""
    matrix = np.exp(similarity.astype(np.float64) / GAMMA)
    beta = np.ones(matrix.shape[1])
    for _ in range(4):
        alpha = (1 / matrix.shape[0]) / (matrix @ beta)
        beta = (1 / matrix.shape[1]) / (matrix.T @ alpha)
    return GAMMA * np.log(beta / beta.sum())


def test_a_search_adds_the_biases_of_section_3_4(toy):
    search, plain = open_search(run=toy.runs / "r"), open_search(run=toy.runs / "r", normalize="none")
    vectors = search.index.vectors_of(np.arange(len(search.index.video)))
    texts = load_file(toy.runs / "r" / "model.safetensors")["queries.texts"]
    biases = figure_4(texts @ vectors.T)
    assert np.ptp(biases) > 1e-3
    expected = vectors @ search.encode_query(QUERY) + biases
    best = expected.argmax()
    [moment] = search(QUERY, num_results=1, by="video")
    assert moment.window == tuple(search.index.spans_of(np.array([best]))[0])
    assert moment.video_id == search.index.video_ids[search.index.video[best]]
    assert moment.score == pytest.approx(expected[best], abs=2e-3)  # the index has float16
    found = {(m.video_id, m.window): m.score for m in search(QUERY, num_results=9, by="video")}
    unbiased = {(m.video_id, m.window): m.score for m in plain(QUERY, num_results=99, by="video")}
    both = found.keys() & unbiased.keys()
    assert both and max(found[key] - unbiased[key] for key in both) < -0.1  # a bias is about -GAMMA log W
    curve, bare = search.score_curve(QUERY, moment.video_id), plain.score_curve(QUERY, moment.video_id)
    rows = search.index.rows_of(moment.video_id)
    differences = curve.scores - bare.scores
    assert len(differences) and all(np.isclose(biases[rows], each, atol=1e-3).any() for each in differences)
    # An example is no text: nothing is known about how often examples find a window.
    assert search.like(moment.video_id)[0].score == plain.like(moment.video_id)[0].score


def test_a_window_of_a_caption_has_the_bias_that_it_has_in_the_index(toy):
    search = open_search(run=toy.runs / "r")
    assert search.biases is not None
    vectors = search.index.vectors_of(np.arange(7))
    np.testing.assert_allclose(search.biases.of_vectors(vectors), search.biases.bias_W[:7], rtol=1e-6)


def test_biases_are_stored_and_computed_again_when_windows_change(toy, monkeypatch, capsys):
    first = open_search(run=toy.runs / "r").biases
    assert first is not None
    monkeypatch.setattr(window_biases, "fit_window_biases", None)
    again = open_search(run=toy.runs / "r").biases
    assert again is not None and np.array_equal(again.bias_W, first.bias_W)
    monkeypatch.undo()
    [path] = (toy.path / "index" / "r" / "biases").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="not the biases of an index"):
        open_search(run=toy.runs / "r")
    path.unlink()
    monkeypatch.setattr("vlalign.train.search.search.MAX_WINDOWS_BY_SEARCH", 3)
    assert open_search(run=toy.runs / "r").biases is None and not path.exists()
    assert "vlalign-index" in capsys.readouterr().err
    monkeypatch.undo()
    assert np.array_equal(open_search(run=toy.runs / "r").biases.bias_W, first.bias_W)


def test_the_output_says_which(toy, capsys):
    assert search_main([*at(toy), "r", QUERY]) == 0
    assert "normalised by ncl" in capsys.readouterr().out
    assert search_main([*at(toy), "r", QUERY, "--normalize", "none"]) == 0
    assert "normalised" not in capsys.readouterr().out
    with pytest.raises(SettingError, match=r"^normalize ncl: "):
        open_search(toy.path, features="s3d", normalize="ncl")
