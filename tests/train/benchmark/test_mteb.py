"""mteb's scores of a model and a task of ours, beside our own evaluation of the same data."""

import shutil
import sys

import numpy as np
import pytest
from helpers.clips_of_text import save_clip_with_processor
from helpers.toy import make_toy
from helpers.training import GATED
from vlalign.extract import ExtractionSettings, extract_dataset
from vlalign.storage import Caption, FeatureStore, UserError, read_captions
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import EvaluationSettings, evaluate, mteb_model, mteb_task, open_search, train
from vlalign.train.metrics import retrieval_metrics

mteb = pytest.importorskip("mteb", reason="no such package in this environment: mteb needs Python 3.11")

SHORT = {"features": "s3d", "batch_size": 4, "num_steps": 2, "validate_every": 1}
CASES = {
    "taco": {"objective": "taco", "num_negatives": 2},  # three stages, one of them with fusion layers
    "mil-nce": {"objective": "mil-nce", **GATED},  # one vector for each side
}
SAME = {"hit_rate_at_1": "R@1", "hit_rate_at_5": "R@5", "hit_rate_at_10": "R@10", "ndcg_at_10": "nDCG@10"}
"""{measure of mteb: of ours}"""


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))


@pytest.fixture(scope="module", params=CASES)
def evaluated(request, tmp_path_factory):
    """A data set with one run, evaluated here."""
    toy = make_toy(tmp_path_factory.mktemp("mteb"), num_videos=80)
    run = train(toy.path, run_name="mine", device="cpu", settings=SHORT | CASES[request.param])
    return toy, run.folder, evaluate(run.folder, settings=EvaluationSettings(device="cpu")).metrics["metrics"]


def scores_of(model, task) -> dict[str, float]:
    return mteb.evaluate(model, task, cache=None, show_progress_bar=False)[0].scores["test"][0]


@pytest.mark.parametrize("direction", ["text_to_video", "video_to_text"])
def test_a_run_has_the_scores_of_our_evaluation(evaluated, direction):
    toy, run, own = evaluated
    found = scores_of(mteb_model(run, dataset=toy.path, device="cpu"), mteb_task(toy.path, direction=direction))
    of_ours = own[direction]
    assert of_ours["num_queries"] == of_ours["num_candidates"] == 20
    assert 5 < of_ours["R@5"] < 100
    for theirs, ours in SAME.items():
        print(direction, theirs, 100 * found[theirs], ours, of_ours[ours])
        assert 100 * found[theirs] == pytest.approx(of_ours[ours], abs=0.01), theirs
    assert found["main_score"] == found["ndcg_at_10"]
