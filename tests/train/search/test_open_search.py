"""``open_search``: moments of any words, with the text tower of a store or with a run."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from helpers.toy import make_toy
from vlalign.extract import load_extractor
from vlalign.extract.encoders.weights_paths import find_weights, remember_weights
from vlalign.storage import FeatureStore, UserError, VideoFeatures, Weights, write_shard
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.files import sha256_of
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train import open_search
from vlalign.train.cli.index import main as index_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.clips import Clip
from vlalign.train.runs.load import open_run
from vlalign.train.scoring.scorer import stage_scores
from vlalign.train.search.index import plan_search_windows
from vlalign.train.search.query_checks import VideoSpan, parse_example

pytestmark = pytest.mark.portable

TRAIN = ["--objective", "taco", "--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--num-negatives", "2"]
TEXTS = ["red ball", "green cube", "blue cone"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    assert train_main(["--root", str(toy.root), "--dataset", "toy", *TRAIN, "--run-name", "r"]) == 0
    return toy


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    tokenizer = word_tokenizer(TEXTS)
    return save_clip(new_clip(tokenizer), tokenizer, tmp_path_factory.mktemp("clip") / "small-clip")


def of_texts(clip, features, num_videos=6):
    """Return a data set whose videos show each text for 10 s, one after the other, in a row a second."""
    from vlalign.extract.encoders.text_tower import load_text_tower

    weights = Weights(name="small-clip", sha256=sha256_of(clip / "model.safetensors"))
    texts_TD = load_text_tower(PROFILES["clip_vit_b32"], weights, clip).encode(TEXTS)
    texts_TD = texts_TD - texts_TD.mean(axis=0)  # random towers give all texts nearly the same vector
    rng, videos = np.random.default_rng(0), []
    for number in range(num_videos):
        order = rng.permutation(3)
        rows = texts_TD[order].repeat(10, axis=0) + rng.normal(size=(30, 512)) * 1e-3
        starts = np.arange(30.0)
        videos.append(
            VideoFeatures(
                video_id=f"v{number}",
                features=rows * rng.uniform(1, 9, (30, 1)),
                start_seconds=starts,
                end_seconds=starts + 1,
                valid_frames=np.ones(30, int),
                duration_seconds=30.0,
                source=",".join(map(str, order)),
            )
        )
    write_shard(features, PROFILES["clip_vit_b32"], weights, videos, made_with={})
    return videos


@pytest.fixture
def shown(tmp_path, clip):
    dataset = DatasetFolder(tmp_path, "shown")
    of_texts(clip, dataset.features("clip_vit_b32"))
    return dataset


def test_zero_shot_finds_where_a_text_is_shown(shown, clip):
    search = open_search(shown.path, features="clip_vit_b32", weights=clip)
    assert search.index.num_windows == 6 * len(plan_search_windows(30.0))
    store = FeatureStore(shown.features("clip_vit_b32"))
    for number, text in enumerate(TEXTS):
        moments = search(text, num_results=6)
        assert len({moment.video_id for moment in moments}) == 6, "one moment of each video"
        assert [m.score for m in moments] == sorted((m.score for m in moments), reverse=True)
        for moment in moments:
            place = store.source(moment.video_id).split(",").index(str(number))
            assert (moment.start_seconds, moment.end_seconds) == (10.0 * place, 10.0 * place + 10)
            assert place * 10 < sum(moment.window) / 2 < place * 10 + 10
            assert moment.percentile > 80
            curve = search.score_curve(text, moment.video_id)
            assert place * 10 < curve.center_seconds[curve.scores.argmax()] < place * 10 + 10
            np.testing.assert_array_equal(moment.curve.scores, curve.scores[10 * place : 10 * place + 10])


def test_zero_shot_scores_are_cosines_of_means(shown, clip):
    """The definition, written as a loop."""
    search = open_search(shown.path, features="clip_vit_b32", weights=clip)
    query_D = search.encoder.encode_text("red ball")
    [best, *_] = search("red ball", num_results=1)
    rows = FeatureStore(shown.features("clip_vit_b32")).get(best.video_id).features
    start, end = best.window
    chosen = [row / np.linalg.norm(row) for second, row in enumerate(rows) if start <= second + 0.5 < end]
    mean = np.mean(chosen, axis=0)
    assert best.score == pytest.approx(float(mean @ query_D / np.linalg.norm(mean)), abs=1e-3)  # stored as float16


def test_the_place_of_the_weights_need_not_be_said_again(shown, clip):
    with pytest.raises(UserError, match=r"small-clip.*--weights"):
        open_search(shown.path, features="clip_vit_b32")
    remember_weights(FeatureStore(shown.features("clip_vit_b32")).weights, clip)
    assert open_search(shown.path, features="clip_vit_b32")("red ball", num_results=1)


def test_a_call_with_weights_tells_the_calls_after_it_where_they_lie(shown, clip, tmp_path, capsys):
    at = ["--root", str(shown.root), "--dataset", "shown", "--features", "clip_vit_b32"]
    folder = shutil.copytree(clip, tmp_path / "model")
    assert index_main([*at, "--weights", str(folder)]) == 0 and index_main(at) == 0
    assert search_main(["red ball", *at]) == 0
    capsys.readouterr()
    folder.rename(tmp_path / "moved")
    assert search_main(["red ball", *at]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{folder} no longer exists" in line and "--weights" in line
    assert search_main(["red ball", *at, "--weights", str(tmp_path / "moved")]) == 0 == search_main(["red ball", *at])


def test_imported_features_say_what_a_search_by_text_needs(tmp_path, clip):
    """Their import named no SHA-256 of the weights, so that no text tower can be told to be theirs."""
    dataset, rows = DatasetFolder(tmp_path, "foreign"), np.random.default_rng(0).normal(size=(8, 512))
    times = {"start_seconds": np.arange(8.0), "end_seconds": np.arange(8.0) + 1, "valid_frames": np.ones(8, int)}
    video = VideoFeatures(video_id="v", features=rows, duration_seconds=8.0, **times)
    weights = Weights(name="ViT-B-32.pt", sha256="")
    write_shard(dataset.features("clip_vit_b32"), PROFILES["clip_vit_b32"], weights, [video], made_with={})
    for options in ({}, {"weights": clip}):
        search = open_search(dataset.path, features="clip_vit_b32", **options)
        assert search.like("v", 0, 2)
        with pytest.raises(UserError, match=r"^features clip_vit_b32: imported without the SHA-256 .* run "):
            search("red ball")


def test_features_of_random_weights_are_searched_by_example(tmp_path):
    dataset, rows = DatasetFolder(tmp_path, "drawn"), np.random.default_rng(0).normal(size=(8, 512))
    times = {"start_seconds": np.arange(8.0), "end_seconds": np.arange(8.0) + 1, "valid_frames": np.ones(8, int)}
    video = VideoFeatures(video_id="v", features=rows, duration_seconds=8.0, **times)
    weights = Weights(name="random (seed 0)", sha256="0" * 64)
    write_shard(dataset.features("clip_vit_b32"), PROFILES["clip_vit_b32"], weights, [video], made_with={})
    search = open_search(dataset.path, features="clip_vit_b32")
    assert search.like("v", 0, 2)
    with pytest.raises(UserError, match="made with weights random"):
        search("red ball")


@pytest.mark.parametrize(
    ("like", "hint"),
    [
        ("v0@0:10-0:20", "VIDEO@START-END with times in seconds"),
        ("v7", "expected one of its ids, such as 'v0'"),
        ("v0@25-24", "the video of 30.00 s"),
        ("v0@31-40", "the video of 30.00 s"),
    ],
)
def test_a_wrong_example_says_what_was_expected(shown, clip, like, hint):
    search = open_search(shown.path, features="clip_vit_b32", weights=clip)
    with pytest.raises(UserError, match=re.escape(hint)):
        search(like=[VideoSpan("v1"), parse_example(like)])


def test_a_copy_of_a_model_under_another_name_leaves_its_place_alone(tmp_path):
    name, sha256 = "hf-clip", "0" * 64
    profile = replace(PROFILES["clip_vit_b32"], weights=name)
    for each in (name, "copy-of-clip"):
        (tmp_path / each).mkdir()
        remember_weights(Weights(name=each, sha256=sha256), tmp_path / each)
    assert find_weights(profile, Weights(name=name, sha256=sha256)) == tmp_path / name


def test_a_run_searches_windows_with_the_scores_of_evaluation(toy):
    search, run = open_search(toy.path, run="r"), open_run(toy.runs / "r")
    moments = search("cut the onion", num_results=100, rerank=1000, by="video")
    assert len(moments) >= 24
    windows = [(m.video_id, *m.window) for m in moments]
    clips = [Clip(v, None, None) if e >= run.features.duration_seconds(v) and s == 0 else Clip(v, s, e)
             for v, s, e in windows]  # fmt: skip
    scores = stage_scores(run.scorer, [run.scorer.weights.tag_query("cut the onion")], clips)
    np.testing.assert_allclose([m.score for m in moments], scores.fused(run.score_weights)[0][0], atol=1e-4)
    for stage in ("sentence", "token", "fusion"):
        np.testing.assert_allclose([m.stages[stage] for m in moments], scores.stages[stage][0], atol=1e-4)
    [unknown, not_judged] = search.warnings("cut the zeppelin")
    assert unknown.endswith(": the, zeppelin") and not_judged.startswith("whether anything fits")


def test_words_have_scores_over_time(toy, shown, clip):
    search = open_search(toy.path, run="r")
    scorer = search.encoder.run.scorer
    curves = search.word_curves("Cut the zeppelin, onion", "v003")
    assert {"cut", "the", "onion"} <= curves.keys()
    store = FeatureStore(toy.features("s3d")).get("v003")
    with torch.inference_mode():
        texts = scorer.encode_texts([scorer.weights.tag_query("Cut the zeppelin, onion")])
        videos = scorer.encode_videos([Clip("v003", None, None)])
    for curve in curves.values():
        assert curve.start_seconds.tolist() == store.start_seconds.tolist()
        assert curve.end_seconds.tolist() == store.end_seconds.tolist()
    words = scorer.text_inputs.words_of_tokens(scorer.weights.tag_query("Cut the zeppelin, onion"))
    place = next(index for index, word in words if word == "cut")
    expected = [float(texts.tokens_BND[0, place] @ row) for row in videos.tokens_BMD[0]]
    np.testing.assert_allclose(curves["cut"].scores, expected, atol=1e-4)
    assert open_search(shown.path, features="clip_vit_b32", weights=clip).word_curves("red ball", "v0") == {}
    with pytest.raises(UserError, match="'nobody'"):
        search.word_curves("onion", "nobody")


def test_like_finds_the_same_elsewhere(shown, clip):
    search = open_search(shown.path, features="clip_vit_b32", weights=clip)
    store = FeatureStore(shown.features("clip_vit_b32"))
    first = store.source("v0").split(",")[0]
    moments = search.like("v0", 2, 7, num_results=5)
    assert {moment.video_id for moment in moments} == {"v1", "v2", "v3", "v4", "v5"}
    for moment in moments:
        place = store.source(moment.video_id).split(",").index(first)
        assert (moment.start_seconds, moment.end_seconds) == (10.0 * place, 10.0 * place + 10)


def test_only_chosen_videos_are_searched(shown, clip):
    search = open_search(shown.path, features="clip_vit_b32", weights=clip)
    assert {m.video_id for m in search("red ball", videos={"v2", "v3"})} == {"v2", "v3"}
    assert search("red ball", videos=[]) == []


def test_a_wrong_call_is_refused_in_one_line(toy, shown, clip):
    search = open_search(shown.path, features="clip_vit_b32", weights=clip)
    with pytest.raises(UserError, match=re.escape(repr(" \n"))):
        search(" \n")
    with pytest.raises(UserError, match=r" 100,000 .* 2,000\b"):
        search("x" * 100_000)
    with pytest.raises(SettingError, match="num_results 0"):
        search("x", num_results=0)
    with pytest.raises(UserError, match=r"'nobody': .* shown"):
        search.like("nobody")
    with pytest.raises(UserError, match=r"v0@40-50: .* 30\.00 s"):
        search.like("v0", 40, 50)
    with pytest.raises(UserError, match=r"^search: .*\bfeatures\b.*\brun$"):
        open_search(shown.path)
    with pytest.raises(SettingError, match=r"by sound: .* both, video, text"):
        search("x", by="sound")
    with pytest.raises(SettingError, match=r"by text: shown .*vlalign-preprocess"):
        search("x", by="text")
    with pytest.raises(SettingError, match="by text: "):
        search(like=VideoSpan("v0"), by="text")
    with pytest.raises(UserError, match="features s3d: S3D-G "):
        open_search(toy.path, features="s3d")("onion", by="video")
    with pytest.raises(UserError, match="resnet152"):
        open_search(shown.path, features="resnet152")


@pytest.mark.parametrize("query", ["🙂🙂", "円を描く", "a" * 1999, "<script>alert(1)</script>", "ÀÉÎ\u202e"])
def test_any_text_is_answered(shown, toy, clip, query):
    assert len(open_search(shown.path, features="clip_vit_b32", weights=clip)(query)) == 5
    assert len(open_search(toy.path, run="r")(query)) == 5


def test_options_may_stand_between_the_run_and_the_text(toy, capsys):
    at_toy = ["--root", str(toy.root), "--dataset", "toy"]
    assert search_main([*at_toy, "r", "cut the onion", "--num-results", "3"]) == 0
    together = capsys.readouterr().out
    assert search_main(["r", *at_toy, "cut the onion", "--num-results", "3"]) == 0
    assert capsys.readouterr().out == together


def test_the_command_prints_what_the_call_returns(toy, shown, clip, capsys):
    at_toy, at_shown = ["--root", str(toy.root)], ["--root", str(shown.root), "--dataset", "shown"]
    moments = open_search(toy.path, run="r")("cut the onion", num_results=3)
    assert search_main([*at_toy, "r", "cut the onion", "--num-results", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"'cut the onion' .*\b24\b.* toy", lines[0])
    assert [line.split()[5:7] for line in lines[2:5]] == [[m.found_by, m.video_id] for m in moments]
    clip_options = ["--features", "clip_vit_b32", "--weights", str(clip)]
    assert search_main([*at_shown, "red ball", *clip_options]) == 0
    assert re.match(r"'red ball' .*\b6\b.* shown\n", capsys.readouterr().out)
    assert search_main([*at_shown, *clip_options, "--like", "v0@2-7", "--num-results", "1"]) == 0
    assert re.match(r"\w+ v0@2-7 .*\b6\b.* shown\n", capsys.readouterr().out)
    assert search_main([*at_shown, "red ball", *clip_options, "--like", "v0@2-7", "--like-weight", "0"]) == 0
    assert re.match(r"'red ball' .* v0@2-7 .*\b6\b.* shown\n", capsys.readouterr().out)
    assert search_main([*at_toy, "cut the onion", "--num-results", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == lines and err.startswith("note: ") and " r," in err
    for call, words in (
        ([*at_toy, "r", " "], "' '"),
        ([*at_toy, "r"], "vlalign-search: error: "),
        ([*at_shown, "onion"], f"{shown.root}/shown/runs"),
        ([*at_toy, "r", "x", "--num-results", "0"], "--num-results 0: "),
        ([*at_toy, "r", "x", "--rerank", "0"], "--rerank 0: "),
        ([*at_shown, "x", *clip_options, "--by", "text"], "--by text: shown "),
        ([*at_toy, "r", "x", "--device", "cuda:77"], "--device cuda:77: "),
        ([*at_toy, "r", "x", "--features", "s3d"], "--features s3d"),
        ([*at_shown, *clip_options, "--like", "nobody"], "'nobody'"),
        ([*at_shown, "x", *clip_options, "--like", "v0", "--like-weight", "2"], "--like-weight 2.0: "),
    ):
        assert search_main(call) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert words in line


def test_words_and_an_example_are_added(shown, clip):
    search = open_search(shown.path, features="clip_vit_b32", weights=clip)
    text_D = search.encoder.encode_text("red ball")
    part_D = search.encoder.encode_clips([Clip("v0", 2.0, 7.0)])[0]
    [best, *_] = search("red ball", like=VideoSpan("v0", 2.0, 7.0), like_weight=0.25, num_results=1)
    window_D = search.encoder.encode_clips([Clip(best.video_id, *best.window)])[0]
    expected = 0.25 * window_D @ (part_D / np.linalg.norm(part_D)) + 0.75 * window_D @ text_D
    assert best.score == pytest.approx(float(expected), abs=1e-3)


def test_a_picture_is_searched_by_the_model_that_made_the_features(shown, clip, tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    search = open_search(shown.path, features="clip_vit_b32", weights=clip)
    found = search.encoder.encode_image(tmp_path / "picture.png")
    expected = load_extractor("clip_vit_b32", weights=clip).features(pixels[None])[0].numpy()
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-4)
    assert parse_example(str(tmp_path / "picture.png")) == tmp_path / "picture.png"
    assert len(search(like=tmp_path / "picture.png", num_results=2)) == 2
    for content, problem in (
        (b"no picture", "not a JPEG, .*; convert it"),
        (b"", "the file is empty; expected"),
    ):
        (tmp_path / "broken.png").write_bytes(content)
        with pytest.raises(UserError, match=rf"broken.png: {problem}"):
            search(like=tmp_path / "broken.png")


def test_a_run_searches_a_picture(small_demo, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(small_demo.root, root)
    at = ["--root", str(root), "--dataset", "demo"]
    assert train_main([*at, *TRAIN, "--run-name", "r"]) == 0
    from PIL import Image

    Image.new("RGB", (224, 224), "red").save(tmp_path / "red.jpg")
    assert len(open_search(root / "demo", run="r")(like=tmp_path / "red.jpg", num_results=3)) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat", VideoSpan("cat")),
        ("a/cat@0-4", VideoSpan("a/cat", 0.0, 4.0)),
        ("me@home@1.5-2", VideoSpan("me@home", 1.5, 2.0)),
        ("cat@4", VideoSpan("cat@4")),
        ("missing.jpg", VideoSpan("missing.jpg")),
    ],
)
def test_examples_are_parsed(text, expected):
    assert parse_example(text) == expected
