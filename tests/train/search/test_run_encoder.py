"""The cache of encoded clips between queries."""

import pytest
import torch
from helpers.toy import make_toy
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.clips import Clip
from vlalign.train.models.tokens import present
from vlalign.train.runs.load import open_run
from vlalign.train.search.run_encoder import CachingScorer, VideoTokenCache


@pytest.fixture(scope="module", params=["words", "taco", "ncl"])
def scorer(request, tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    recipe = [] if request.param == "words" else ["--objective", request.param]
    call = ["--root", str(toy.root), "--dataset", "toy", "--features", "s3d", "--num-steps", "2", "--run-name", "r"]
    assert train_main([*call, *recipe]) == 0
    return open_run(toy.runs / "r").scorer


def clips_of(scorer):
    ids = scorer.features.video_ids()
    return [*(Clip(v, None, None) for v in ids[:4]), *(Clip(v, 0.0, end) for v in ids[:3] for end in (1.0, 2.5))]


@torch.inference_mode()
def test_cached_tokens_are_those_of_the_model(scorer):
    caching, clips = CachingScorer.of(scorer), clips_of(scorer)
    caching.encode_videos(clips[2:5])
    for asked in (clips, clips[::-1], [clips[0], clips[0]]):
        expected, cached = scorer.encode_videos(asked), caching.encode_videos(asked)
        assert torch.equal(cached.mask_BM, expected.mask_BM)
        for name, value in present(expected).items():
            seen = expected.mask_BM[:, :, None] if name == "tokens_BMD" else torch.ones(())
            torch.testing.assert_close(present(cached)[name] * seen, value * seen)


@torch.inference_mode()
def test_memory_is_bounded(scorer):
    caching, clips = CachingScorer.of(scorer), clips_of(scorer)
    caching.encode_videos(clips)
    max_bytes = caching.cache.num_bytes // 2
    small = CachingScorer(
        **{name: getattr(scorer, name) for name in scorer.__dataclass_fields__}, cache=VideoTokenCache(max_bytes)
    )
    for clip in clips:
        small.encode_videos([clip])
        assert small.cache.num_bytes <= max_bytes
    assert clips[-1] in small.cache and clips[0] not in small.cache
    assert torch.equal(small.encode_videos(clips).mask_BM, caching.encode_videos(clips).mask_BM)
