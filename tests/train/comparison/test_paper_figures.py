"""Figures of papers, drawn again by vlalign-runs --figure."""

import csv
import re

import numpy as np
import pytest
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.comparison import paper_figures, ssml_figures
from vlalign.train.comparison.density_bound import error_bound
from vlalign.train.evaluation.tsne import conditional_probabilities, squared_distances, tsne


@pytest.fixture
def small(monkeypatch):
    """Sweeps and t-SNE that take a second."""
    monkeypatch.setattr(ssml_figures, "FIXED", {"K": 2, "eta": 0.5, "M": 120, "T": 10})
    sweeps = {"K": (1, 2, 8), "eta": (0.2, 0.5), "M": (60, 120), "T": (5, 10)}
    monkeypatch.setattr(ssml_figures, "SWEEPS", sweeps)
    monkeypatch.setattr("vlalign.train.evaluation.tsne.NUM_STEPS", 3)


def drawn(root, name, capsys):
    assert runs_main(["--root", str(root), "--figure", name]) == 0
    return capsys.readouterr().out


def read(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_figure_2_of_ssml_is_a_picture_and_its_numbers(small, tmp_path, capsys):
    out = drawn(tmp_path, "SSML, Figure 2", capsys)
    svg = (tmp_path / "figures" / "ssml-figure2.svg").read_text(encoding="utf-8")
    assert str(tmp_path / "figures" / "ssml-figure2.svg") in out and "<svg" in svg
    rows = read(tmp_path / "figures" / "ssml-figure2.csv")
    assert [row["swept"] for row in rows] == ["K"] * 3 + ["eta"] * 2 + ["M"] * 2 + ["T"] * 2
    assert float(rows[2]["bound"]) == error_bound(8, 120, 10, 0.5)
    assert all(0 <= float(row["simulated error"]) <= float(row["bound"]) for row in rows)
    limits = {row["swept"]: float(row["value where K = M / T (1 - eta)"]) for row in rows}
    for name, limit in limits.items():
        at = ssml_figures.FIXED | {name: limit}
        assert at["K"] == pytest.approx(at["M"] / at["T"] * (1 - at["eta"]))
    assert re.search(r"^K: .* at 6$", out, re.MULTILINE)
    drawn(tmp_path, "SSML, Figure 2", capsys)
    assert (tmp_path / "figures" / "ssml-figure2.svg").read_text(encoding="utf-8") == svg, "the same each time"


def test_figure_3_of_ssml_has_the_papers_threshold(small, tmp_path, capsys):
    out = drawn(tmp_path, "SSML, Figure 3", capsys)
    rows = read(tmp_path / "figures" / "ssml-figure3.csv")
    assert len(rows) == 1250
    right = np.array([float(row["p"]) for row in rows]) == 1
    probability = np.array([float(row["p-hat"]) for row in rows])
    taken = probability > 0.48
    precision, recall = (right & taken).sum() / taken.sum(), (right & taken).sum() / right.sum()
    assert f"precision {precision:.2f}, recall {recall:.2f};" in out
    assert min(precision, recall) > 0.85 and probability.min() == 0 and probability.max() == 1


def test_t_sne_places_clusters_apart():
    rng = np.random.default_rng(0)
    of = np.repeat(np.arange(4), 30)
    vectors = 10 * np.eye(4, 20)[of] + rng.standard_normal((120, 20))
    places = tsne(vectors, perplexity=10)
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (of[distances.argmin(axis=1)] == of).all() and np.isfinite(places).all()
    centres = np.stack([places[of == number].mean(axis=0) for number in range(4)])
    spread = max(np.linalg.norm(places[of == number] - centres[number], axis=1).mean() for number in range(4))
    apart = np.linalg.norm(centres[:, None] - centres, axis=2)[~np.eye(4, dtype=bool)].min()
    assert apart > 2 * spread
    np.testing.assert_array_equal(places, tsne(vectors, perplexity=10))


def test_affinities_have_the_perplexity():
    vectors = np.random.default_rng(1).standard_normal((50, 6))
    shares = conditional_probabilities(squared_distances(vectors), 7.0)
    entropy = [-sum(p * np.log(p) for p in row if p > 0) for row in shares]
    np.testing.assert_allclose(np.exp(entropy), 7.0, rtol=1e-3)


def test_an_unknown_figure_is_one_line(tmp_path, capsys):
    assert runs_main(["--root", str(tmp_path), "--figure", "SSML, Figure 9"]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "SSML, Figure 9" in line and all(name in line for name in paper_figures.FIGURES)
    assert not (tmp_path / "figures").exists()
