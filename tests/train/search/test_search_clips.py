"""The Python call ``search_clips``."""

import numpy as np
import pytest
from helpers.toy import make_toy
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.train import search_clips
from vlalign.train.checkpoint import load_run
from vlalign.train.cli_search import main as search_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.scoring import stage_scores
from vlalign.train.search.search import best_clips, searchable_clips

TRAIN = ["--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--num-negatives", "2"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    assert train_main(["--root", str(toy.root), "--dataset", "toy", *TRAIN, "--run-name", "r"]) == 0
    return toy


def test_the_call_prints_nothing_and_the_command_prints_what_it_returns(toy, capsys):
    capsys.readouterr()
    result = search_clips("r", "cut the onion", root=toy.root, num_results=3)
    assert capsys.readouterr().out == ""
    assert (len(result.hits), result.num_clips, result.has_captions) == (3, 24, True)
    assert result.dataset is result.trained_on and result.run_folder == toy.runs / "r"
    scores = [hit.score for hit in result.hits]
    assert scores == sorted(scores, reverse=True)
    assert search_main(["--root", str(toy.root), "r", "cut the onion", "--num-results", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "'cut the onion' among 24 clips of toy"
    assert [line.split()[-1] for line in lines[2:5]] == [hit.video_id for hit in result.hits]


def test_a_wrong_call_is_refused(toy):
    with pytest.raises(UserError, match="the query is empty"):
        search_clips("r", "  ", root=toy.root)
    with pytest.raises(SettingError, match=r"^num_results 0: expected 1 or more"):
        search_clips("r", "onion", root=toy.root, num_results=0)
    with pytest.raises(SettingError, match=r"^rerank 0: expected 1 or more"):
        search_clips("r", "onion", root=toy.root, rerank=0)


def test_search_agrees_with_evaluation_and_reranks(toy, capsys):
    run = load_run(toy.runs / "r")
    clips = searchable_clips(run)
    caption = run.scorer.weights.tag_query("cut the onion")
    every = stage_scores(run.scorer, [caption], clips)
    hits = best_clips(run, "cut the onion", clips, num_results=len(clips), rerank=1)
    scores = every.fused(run.config.score_weights)[0][0]
    assert [hit.video_id for hit in hits] == [clips[i].video_id for i in np.argsort(-scores)]
    few = best_clips(run, "cut the onion", clips, num_results=3, rerank=4)
    shortlist = np.argsort(-every.guidance(run.config.score_weights)[0])[:4]
    assert [hit.video_id for hit in few] == [clips[i].video_id for i in sorted(shortlist, key=lambda i: -scores[i])[:3]]
    assert search_main(["--root", str(toy.root), "r", "cut the onion", "--rerank", "0"]) == 2
    assert "--rerank 0: expected 1 or more" in capsys.readouterr().err
    assert search_main(["--root", str(toy.root), "r", "cut the onion", "--device", "cuda:77"]) == 2
    assert "--device cuda:77: not available here" in capsys.readouterr().err
