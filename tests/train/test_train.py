"""The trainer's parts: tokens of interest, batches, clips, the model."""

import numpy as np
import pytest
import torch
from vlalign.storage import Caption, FeatureStore, IdfEntry, VideoFeatures, Weights, write_shard
from vlalign.storage.captions import CaptionTable
from vlalign.storage.common.errors import UserError
from vlalign.storage.profiles import PROFILES
from vlalign.train.config import train_config
from vlalign.train.data.batches import Batches
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.clips import Clip
from vlalign.train.data.pairs import make_pairs
from vlalign.train.data.text import TokenWeights, new_text_encoder, small_bert, small_tokenizer, tokenize
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.recipes import describe, make_config
from vlalign.train.settings import parse_tokens_of_interest
from vlalign.train.step import learning_rate_factor
from vlalign.train.trainer import set_feature_statistics

IDF = [
    IdfEntry(word="circle", part_of_speech="NOUN", document_count=9, idf=1.0),
    IdfEntry(word="falls", part_of_speech="VERB", document_count=3, idf=3.0),
    IdfEntry(word="video", part_of_speech="NOUN", document_count=99, idf=-0.1),
    IdfEntry(word="fall", part_of_speech="NOUN", document_count=1, idf=4.0),
    IdfEntry(word="fall", part_of_speech="VERB", document_count=2, idf=3.5),
]
TAGGED = Caption(
    video_id="v",
    caption="A red circle falls",
    split="train",
    words=["A", "red", "circle", "falls"],
    word_starts=[0, 2, 6, 13],
    pos_tags=["DET", "ADJ", "NOUN", "VERB"],
)


def caption(text: str, tags: str) -> Caption:
    words = text.split()
    starts = [sum(len(w) + 1 for w in words[:i]) for i in range(len(words))]
    return Caption(video_id="v", caption=text, split="train", words=words, word_starts=starts, pos_tags=tags.split())


@pytest.mark.parametrize(
    ("given", "pos_tags", "expected"),
    [
        (TAGGED, ("NOUN", "VERB"), [0, 0, 0.25, 0.75]),
        (TAGGED, ("VERB",), [0, 0, 0, 1]),
        (TAGGED, (), [0, 0, 0, 0]),
        (caption("video falls", "NOUN VERB"), ("NOUN", "VERB"), [0, 1]),
        (caption("a video", "DET NOUN"), ("NOUN", "VERB"), [0, 1]),
        (caption("zebra falls", "NOUN VERB"), ("NOUN", "VERB"), [4 / 7, 3 / 7]),
    ],
    ids=["noun and verb", "verb", "nothing", "below zero is zero", "only a zero one", "never seen is rarest"],
)
def test_word_weights_are_normalised_idfs(given, pos_tags, expected):
    assert TokenWeights(IDF, pos_tags).word_weights(given) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("noun+verb", ("NOUN", "VERB")),
        ("noun+verb+adj", ("ADJ", "NOUN", "VERB")),
        ("verb", ("VERB",)),
        ("det+adp", ("ADP", "DET")),
        ("NOUN,PROPN", ("NOUN", "PROPN")),
        ("none", ()),
    ],
)
def test_tokens_of_interest_by_name(text, tags):
    assert parse_tokens_of_interest(text) == tags
    assert train_config(dataset="d", features="s3d", tokens_of_interest=text).tokens_of_interest == text


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"batch_size": 1}, "batch_size 1: expected 2 or more"),
        ({"learning_rate": 0.0}, "learning_rate 0.0: expected more than 0"),
        ({"validate_every": 0}, "validate_every 0: expected 1 or more"),
        ({"dropout": 1.0}, "dropout 1.0"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"temperature": float("nan")}, "temperature nan"),
        (
            {"features": "clip_vit_b32_map"},
            "features clip_vit_b32_map: a map of each frame; set video_grid to TIMExHEIGHTxWIDTH",
        ),
        ({"features": "clip_vit_b32_map+s3d"}, "clip_vit_b32_map is a map of each frame, which cannot be joined"),
        (
            {"features": "clip_vit_b32_map", "video_grid": "2x2"},
            "video_grid 2x2: expected TIMExHEIGHTxWIDTH, such as 2x2x2",
        ),
        (
            {"features": "clip_vit_b32_map", "video_grid": "2x8x2"},
            "video_grid 2x8x2: a map of clip_vit_b32_map has 7 x 7 cells",
        ),
        (
            {"features": "clip_vit_b32_map", "video_grid": "12x7x7"},
            "video_grid 12x7x7: expected 512 tokens or fewer together with max_text_tokens, 30",
        ),
        (
            {"video_grid": "2x2x2"},
            "video_grid 2x2x2: features s3d are no maps",
        ),
        ({"num_video_layers": -1}, "num_video_layers -1: expected 0 or more"),
        ({"num_fusion_layers": 0}, "num_fusion_layers 0: expected 1 or more"),
        ({"objective": "taca"}, "objective taca: expected one of taco, toco"),
        ({"negatives": "hard"}, "negatives hard: expected one of cascade, random, all"),
        ({"precision": "fp16"}, "precision fp16: expected one of fp32, bf16"),
        (
            {"losses": "sentence+fuson"},
            "losses sentence.fuson: 'fuson' is no term of taco's; expected all, or sentence.token.fusion",
        ),
        ({"losses": ""}, "losses : '' is no term"),
        ({"losses": "fusion"}, "negatives cascade: no early loss finds the hard ones with losses fusion"),
        ({"losses": "pooled", "objective": "toco"}, "trains no score of ToCo's"),
        ({"losses": "token", "tokens_of_interest": "none"}, "nothing to train"),
        (
            {"max_video_tokens": 400, "max_text_tokens": 200},
            "expected 512 or fewer together with max_text_tokens, which is 200",
        ),
    ],
)
def test_an_impossible_setting_is_refused_by_its_name(setting, says):
    with pytest.raises(UserError, match=says):
        train_config(**{"dataset": "d", "features": "s3d", **setting})


@pytest.mark.parametrize("text", ["", "nouns", "noun+", "noun + verb", "none+noun"])
def test_no_part_of_speech_is_one_line(text):
    with pytest.raises(UserError, match="is no part of speech; expected 'none', or some of adj, adp"):
        train_config(dataset="d", features="s3d", tokens_of_interest=text)


def test_all_pieces_of_a_word_have_its_weight():
    tokenizer = small_tokenizer(["a red circle falls"], max_words=0)  # nothing but letters
    tokens = tokenize(tokenizer, [TAGGED], TokenWeights(IDF, ("NOUN", "VERB")), max_tokens=30)
    pieces = tokenizer.convert_ids_to_tokens(tokens["input_ids"][0].tolist())
    assert pieces[0] == "[CLS]" and pieces[-1] == "[SEP]"
    word, weight_of = "", []
    for piece in pieces[1:-1]:
        word = word + piece[2:] if piece.startswith("##") else piece
        weight_of.append(0.25 if "circle".startswith(word) else 0.75 if "falls".startswith(word) else 0.0)
    assert len(pieces) > 6, "the words should be in pieces"
    assert tokens["token_weights"][0].tolist() == pytest.approx([0.0, *weight_of, 0.0])


def test_the_small_tokenizer_knows_the_captions_words_and_spells_others():
    tokenizer = small_tokenizer(["A red circle falls.", "a circle"])
    assert tokenizer.tokenize("A circle falls.") == ["a", "circle", "falls", "."]
    assert tokenizer.tokenize("call") == ["c", "##a", "##l", "##l"]
    assert tokenizer.tokenize("zoo") == ["[UNK]"]
    assert tokenizer.get_vocab() == small_tokenizer(["A red circle falls.", "a circle"]).get_vocab()


def test_a_query_gets_the_usual_tags_of_its_words():
    query = TokenWeights(IDF, ("NOUN",)).tag_query("Circle, fall & zebra!")
    assert query.words == ["Circle", "fall", "zebra"]
    assert query.pos_tags == ["NOUN", "VERB", "X"]
    assert [query.caption[s : s + len(w)] for s, w in zip(query.word_starts, query.words, strict=True)] == query.words


def test_text_encoder_that_is_not_there():
    with pytest.raises(UserError, match=r"text encoder '/no/such': not loadable .* expected 'small'"):
        new_text_encoder("/no/such", [])


def make_store(folder, features: str, rows_of_video: dict[str, np.ndarray], seconds_per_row: float) -> FeatureStore:
    videos = []
    for video_id, rows in rows_of_video.items():
        starts = seconds_per_row * np.arange(len(rows))
        videos.append(
            VideoFeatures(
                video_id=video_id,
                features=rows,
                start_seconds=starts,
                end_seconds=starts + seconds_per_row,
                valid_frames=np.ones(len(rows), dtype=int),
                duration_seconds=seconds_per_row * len(rows),
            )
        )
    write_shard(folder / features, PROFILES[features], Weights(name="w", sha256="0"), videos, made_with={})
    return FeatureStore(folder / features)


@pytest.fixture
def clip_features(tmp_path) -> ClipFeatures:
    rng = np.random.default_rng(0)
    fine = make_store(tmp_path, "s3d", {"a": rng.normal(size=(12, 1024)), "b": rng.normal(size=(3, 1024))}, 0.5)
    coarse = make_store(tmp_path, "resnet152", {"a": rng.normal(size=(6, 2048)), "b": rng.normal(size=(2, 2048))}, 1.0)
    return ClipFeatures([coarse, fine])


def test_two_stores_are_aligned_in_time(clip_features):
    coarse, fine = (store.get("a") for store in clip_features.stores)
    joined = clip_features.rows([Clip("a", None, None)], max_rows=48)[0]
    assert joined.shape == (12, 3072)
    for row in range(12):
        np.testing.assert_array_equal(joined[row], np.concatenate([coarse.features[row // 2], fine.features[row]]))


def test_clips_of_one_store_are_its_rows_in_the_order_asked_for(clip_features):
    [_, fine] = clip_features.stores
    clips = [Clip("b", 0.5, 0.9), Clip("a", None, None), Clip("a", 9.0, 10.0)]
    rows = ClipFeatures([fine]).rows(clips, max_rows=48)
    for clip, found in zip(clips, rows, strict=True):
        expected = fine.get(clip.video_id, start_seconds=clip.start_seconds, end_seconds=clip.end_seconds).features
        np.testing.assert_array_equal(found, expected)
    features, mask = ClipFeatures([fine]).batch(clips, max_rows=48)
    assert features.shape == (3, 12, 1024) and features.dtype == torch.float32
    assert mask.sum(1).tolist() == [1, 12, 0] and (features[~mask] == 0).all()


def test_a_clip_has_its_rows_and_no_more_than_allowed(clip_features):
    whole = clip_features.rows([Clip("a", None, None)], max_rows=48)[0]
    np.testing.assert_array_equal(clip_features.rows([Clip("a", 1.0, 2.2)], 48)[0], whole[2:5])
    np.testing.assert_array_equal(clip_features.rows([Clip("a", None, None)], 3)[0], whole[[0, 6, 11]])
    assert clip_features.rows([Clip("a", 7.0, 9.0)], 48)[0].shape == (0, 3072)


@pytest.fixture
def maps(tmp_path) -> FeatureStore:
    rng = np.random.default_rng(0)
    maps = {
        video_id: rng.normal(size=(length, 7 * 7 * 512)).astype(np.float16) for video_id, length in (("a", 5), ("b", 1))
    }
    return make_store(tmp_path, "clip_vit_b32_map", maps, 1.0)


@pytest.mark.parametrize("grid", [(2, 2, 2), (3, 3, 3), (1, 7, 7)])
def test_a_grids_tokens_are_means_of_the_maps_parts(maps, grid):
    """In plain loops: part i of n of what is N long is from i N / n, rounded down, to (i + 1) N / n, rounded up."""

    def part(number: int, parts: int, size: int) -> slice:
        return slice(number * size // parts, -(-(number + 1) * size // parts))

    clips = [Clip("a", None, None), Clip("b", None, None), Clip("a", 2.0, 4.0), Clip("a", 7.0, 9.0)]
    features = ClipFeatures([maps], grid)
    found = features.timed_rows(clips, max_rows=4)
    assert features.dim == 512 and found[-1][0].shape == (0, 512)
    for clip, (rows, times) in zip(clips[:-1], found, strict=False):
        whole = maps.get(clip.video_id, start_seconds=clip.start_seconds, end_seconds=clip.end_seconds)
        chosen = [0, 1, 3, 4] if len(whole.features) == 5 else list(range(len(whole.features)))
        map_THWC = whole.features[chosen].reshape(-1, 7, 7, 512).astype(float)
        expected, spans = [], []
        for time, y, x in np.ndindex(grid):
            seconds = part(time, grid[0], len(chosen))
            inside = map_THWC[seconds, part(y, grid[1], 7), part(x, grid[2], 7)]
            expected.append(inside.mean(axis=(0, 1, 2)))
            spans.append((whole.start_seconds[chosen][seconds][0], whole.end_seconds[chosen][seconds][-1]))
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        np.testing.assert_array_equal(times, spans)


def test_pooled_maps_are_the_largest_value_of_any_place(maps):
    [pooled] = ClipFeatures([maps]).pooled([Clip("a", None, None)])
    largest = maps.get("a").features.reshape(-1, 512).max(axis=0)
    np.testing.assert_allclose(pooled, largest / np.linalg.norm(largest), atol=1e-6)


def test_a_recipes_grid_goes_with_its_features():
    assert make_config("cmcm-msrvtt", {"dataset": "msrvtt"}).grid == (2, 2, 2)
    given = {"dataset": "msrvtt", "features": "s3d"}
    config = make_config("cmcm-msrvtt", given)
    assert config.grid is None and "  video_grid" in describe(config, given)


def test_features_are_standardised_over_the_training_clips(clip_features):
    model = VideoTextModel(3072, small_bert(50), num_video_layers=1, num_fusion_layers=None, dropout=0.1)
    pairs = make_pairs(CaptionTable.of(Caption(video_id=v, caption="x", split="train") for v in ("a", "b")))
    set_feature_statistics(model, clip_features, pairs.clips, max_rows=48, seed=0)
    rows = np.concatenate(clip_features.rows(pairs.clips, 48))
    standardised = (torch.from_numpy(rows) - model.feature_mean) / model.feature_std
    torch.testing.assert_close(standardised.mean(0), torch.zeros(3072), atol=1e-4, rtol=0)
    torch.testing.assert_close(standardised.std(0, correction=0), torch.ones(3072), atol=1e-3, rtol=0)


def test_batches_hold_different_clips_and_pass_over_all_of_them():
    captions = [Caption(video_id=f"v{n // 3}", caption=f"c{n}", split="train") for n in range(30)]
    pairs = make_pairs(CaptionTable.of(captions))
    batches = Batches(pairs, 5, seed=0)
    seen = []
    for step in range(2):
        clips, captions = batches.at(step)
        assert len(set(clips)) == 5
        assert [pairs.clip_of_caption[caption] for (caption,) in captions] == clips
        seen += clips
    assert sorted(seen) == list(range(len(pairs.clips)))
    assert len({caption for step in range(60) for (caption,) in batches.at(step)[1]}) == 30


def test_a_batch_depends_on_seed_and_step_alone():
    pairs = make_pairs(
        CaptionTable.of(Caption(video_id=f"v{n // 2}", caption=f"c{n}", split="train") for n in range(40))
    )
    batches = [Batches(pairs, 6, seed=0), Batches(pairs, 6, seed=0)]
    forward = [batches[0].at(step) for step in range(12)]
    assert [batches[1].at(step) for step in reversed(range(12))] == forward[::-1]
    assert [Batches(pairs, 6, seed=1).at(step) for step in range(12)] != forward


def test_a_batch_may_be_larger_than_the_data():
    pairs = make_pairs(CaptionTable.of(Caption(video_id=v, caption="x", split="train") for v in "ab"))
    clips, _ = Batches(pairs, 64, seed=0).at(0)
    assert len(clips) == 2


def test_learning_rate_warms_up_and_decays_to_nothing():
    config = train_config(dataset="d", features="f", num_steps=100, warmup_steps=10)
    factors = [learning_rate_factor(step, config) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert factors[100] == 0.0
