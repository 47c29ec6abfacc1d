"""Scores that are computed in tiles, against those of all captions and clips at once."""

import numpy as np
import pytest
from helpers.training import PAIR_CASES
from vlalign.storage.common.problems import Problems
from vlalign.train import train
from vlalign.train.data.pairs import read_pairs
from vlalign.train.runs.load import open_run
from vlalign.train.scoring import scorer, scores
from vlalign.train.scoring.scorer import TiledScores, stage_scores
from vlalign.train.scoring.scores import parts_of

SETTINGS = {"features": "s3d", "batch_size": 6, "num_steps": 2, "validate_every": 2}
CASES = {
    "taco": {"objective": "taco", "num_negatives": 2},
    "toco": {"objective": "toco", "num_negatives": 2},
    **{name: PAIR_CASES[name] for name in ("ssml", "mil-nce", "ncl", "cmcm", "words")},
}


@pytest.fixture(params=CASES)
def scored(request, toy, monkeypatch):
    """Return a scorer and the training pairs, with chunks so small that there are several."""
    run = train(toy.path, run_name=f"tiled-{request.param}", settings=SETTINGS | CASES[request.param])
    loaded = open_run(run.folder, toy, "cpu")
    with Problems(quiet=True) as problems:
        pairs = read_pairs(toy, loaded.features, problems)["train"]
    for name, size in {"TEXT_CHUNK": 4, "CLIP_CHUNK": 2, "TEXT_CHUNKS_IN_BANK": 1, "CLIP_CHUNKS_IN_BANK": 2}.items():
        monkeypatch.setattr(scorer, name, size)
    monkeypatch.setattr(scores, "PART_SIZE", 8)
    assert len(pairs.captions) > 8 < len(pairs.clips)
    return loaded.scorer, pairs


@pytest.mark.parametrize("rerank", [1, 3])
def test_tiles_are_parts_of_the_whole(scored, rerank):
    trained, pairs = scored
    rerank = rerank if trained.has_late else None
    whole = stage_scores(trained, pairs.captions, pairs.clips, rerank=rerank, both_ways=True)
    tiled = TiledScores(trained, pairs.captions, pairs.clips, rerank=rerank)
    assert tiled.stage_names == whole.stage_names
    for count, of_tiles, of_whole in (
        (len(pairs.captions), tiled.rows, whole.rows),
        (len(pairs.clips), tiled.columns, whole.columns),
    ):
        for part in parts_of(count, "", ""):
            made, expected = of_tiles(part), of_whole(part)
            for stage, values in expected.stages.items():
                if stage.startswith("fusion"):  # pairs are fused beside other pairs
                    np.testing.assert_allclose(made.stages[stage], values, rtol=1e-4, atol=1e-5)
                else:
                    np.testing.assert_array_equal(made.stages[stage], values)
            assert (made.shortlist is None) == (expected.shortlist is None)
            if made.shortlist and expected.shortlist:
                np.testing.assert_array_equal(made.shortlist.clips_of_captions, expected.shortlist.clips_of_captions)
                np.testing.assert_array_equal(made.shortlist.captions_of_clips, expected.shortlist.captions_of_clips)


def test_a_part_begins_with_a_chunk(scored):
    trained, pairs = scored
    tiled = TiledScores(trained, pairs.captions, pairs.clips, rerank=1 if trained.has_late else None)
    with pytest.raises(ValueError, match=r"2\.\.6\b.*\b4\b"):
        tiled.rows(slice(2, 6))
