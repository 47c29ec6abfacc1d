"""The commands from end to end on real videos, and how they report mistakes."""

import json
import re
import shutil

import numpy as np
import pytest
from vlalign.extract.cli.extract import main as extract_main
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.storage import FeatureStore
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.stores.thumbnails import ThumbnailStore
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main

pytestmark = pytest.mark.portable

RUN = "words-s3d-seed0"
TRAIN = ["--features", "s3d", "--num-steps", "12", "--batch-size", "4"]
COMMANDS = {
    "vlalign-extract": extract_main,
    "vlalign-preprocess": preprocess_main,
    "vlalign-train": train_main,
    "vlalign-evaluate": evaluate_main,
    "vlalign-runs": runs_main,
    "vlalign-search": search_main,
}


def at(dataset: DatasetFolder) -> list[str]:
    return ["--root", str(dataset.root), "--dataset", dataset.name]


@pytest.fixture(scope="module")
def trained(small_demo, tmp_path_factory):
    """A copy of the small demo with a trained and evaluated run."""
    root = tmp_path_factory.mktemp("trained")
    shutil.copytree(small_demo.path, root / "demo")
    dataset = DatasetFolder(root, "demo")
    assert train_main([*at(dataset), *TRAIN, "--run-name", RUN]) == 0
    assert evaluate_main(at(dataset)) == 0
    return dataset


def run_folder(dataset: DatasetFolder):
    return dataset.runs / RUN


def test_stores_have_every_video_and_record_how_they_were_made(small_demo):
    videos = {video.video_id: video for video in small_demo.read_videos()}
    for name, rows_per_second, dimension in (("s3d", 24 / 16, 1024), ("resnet152", 1, 2048)):
        store = FeatureStore(small_demo.features(name))
        assert set(store.video_ids()) == set(videos)
        assert store.weights.name == "random (seed 0)"
        for video_id, video in videos.items():
            features = store.get(video_id)
            assert features.duration_seconds == pytest.approx(video.scene["duration_seconds"], abs=0.1)
            # Windows that have begun count, and so do a last second that is at least half full and every first frame.
            assert abs(len(features.features) - video.scene["duration_seconds"] * rows_per_second) <= 1.0
            assert features.features.shape[1] == dimension
            assert np.isfinite(features.features).all() and features.features.std() > 0
            assert features.decoder.startswith(("decord", "PyAV"))


def test_every_video_has_thumbnails(small_demo):
    thumbnails = ThumbnailStore(small_demo.thumbnails)
    for video in small_demo.read_videos():
        pictures = thumbnails.get(video.video_id)
        assert len(pictures) == 3
        assert all(picture.jpeg.startswith(b"\xff\xd8") for picture in pictures)


def test_a_second_extraction_does_nothing(small_demo, capsys):
    before = {path: path.stat().st_mtime_ns for path in small_demo.path.rglob("*") if path.is_file()}
    assert extract_main([*at(small_demo), "--features", "resnet152,s3d"]) == 0
    assert {path: path.stat().st_mtime_ns for path in small_demo.path.rglob("*") if path.is_file()} == before
    err = capsys.readouterr().err
    assert "14 of 14" in err and f"\nnow: vlalign-train {' '.join(at(small_demo))}\n" in err


def test_a_run_records_what_it_was_made_with(trained):
    about = read_json(run_folder(trained) / "run.json")
    assert about["config"]["num_steps"] == 12
    assert about["inputs"]["features"][0]["weights"] == "random (seed 0)"
    assert about["inputs"]["captions"]["tagger"].startswith("en_core_web_sm")
    events = read_jsonl(run_folder(trained) / "events.jsonl")
    assert [event["step"] for event in events] == list(range(1, 13))
    assert all(event["loss"] == pytest.approx(event["word"]) for event in events)


def test_the_same_seed_trains_the_same_model(trained):
    assert train_main([*at(trained), *TRAIN, "--run-name", "again"]) == 0
    assert train_main([*at(trained), *TRAIN, "--run-name", "other", "--seed", "1"]) == 0
    losses = {
        name: [e["loss"] for e in read_jsonl(trained.runs / name / "events.jsonl")] for name in (RUN, "again", "other")
    }
    assert losses["again"] == losses[RUN] != losses["other"]


def test_metrics_equal_a_count_over_search_results(trained, capsys):
    """Search for each test caption as a user would; the position of the right video is the rank."""
    from vlalign.storage import read_captions
    from vlalign.storage.captions.files import caption_table
    from vlalign.train.data.pairs import make_pairs
    from vlalign.train.runs.load import open_run
    from vlalign.train.scoring.scorer import stage_scores

    metrics = read_json(run_folder(trained) / "metrics.json")["metrics"]["text_to_video"]
    run = open_run(run_folder(trained))
    pairs = make_pairs(caption_table(c for c in read_captions(trained.captions) if c.split == "test"))
    ranks = []
    for caption, right in zip(pairs.captions, pairs.clip_of_caption, strict=True):
        scores = stage_scores(run.scorer, [caption], pairs.clips).fused(run.score_weights)[0][0]
        ranks.append(1 + sum(score > scores[right] for score in scores))
    assert metrics["num_queries"] == len(ranks) == 15
    assert metrics["R@1"] == pytest.approx(100 * np.mean(np.array(ranks) == 1))
    assert metrics["mean_rank"] == pytest.approx(np.mean(ranks))
    assert metrics["chance"]["R@1"] == pytest.approx(100 / 3)


def test_each_query_is_kept_with_its_rank(trained):
    folder = run_folder(trained)
    queries, result = read_jsonl(folder / "queries.jsonl"), json.loads((folder / "metrics.json").read_text())
    metrics = result["metrics"]["text_to_video"]
    clips = [query for query in queries if query["direction"] == "video_to_text"]
    queries = queries[: -len(clips)]
    assert len(queries) == result["num_captions"] and len(clips) == result["num_clips"]
    assert np.mean([clip["rank"] for clip in clips]) == pytest.approx(result["metrics"]["video_to_text"]["mean_rank"])
    assert all(clip["found"][0]["score"] >= clip["score"] for clip in clips)
    assert np.mean([query["rank"] for query in queries]) == pytest.approx(metrics["mean_rank"])
    assert 100 * np.mean([query["rank"] == 1 for query in queries]) == pytest.approx(metrics["R@1"])
    for query in queries:
        assert (query["rank"] == 1) == (query["first"] == query["clip"]) == (query["first_score"] == query["score"])
        assert query["found"][0] == {**query["first"], "score": query["first_score"]}
        assert [of["score"] for of in query["found"]] == sorted((of["score"] for of in query["found"]), reverse=True)


def test_a_second_training_and_evaluation_do_nothing(trained, capsys):
    before = {path: path.stat().st_mtime_ns for path in run_folder(trained).rglob("*") if path.is_file()}
    assert train_main([*at(trained), *TRAIN, "--run-name", RUN]) == 0
    assert evaluate_main([*at(trained), RUN]) == 0
    assert {path: path.stat().st_mtime_ns for path in run_folder(trained).rglob("*") if path.is_file()} == before
    shown = capsys.readouterr()
    assert shown.err.count(f"{run_folder(trained)}") == 2
    assert "random weights" in shown.out


def test_another_run_with_the_same_name_is_rejected(trained, capsys):
    assert train_main([*at(trained), "--features", "s3d", "--num-steps", "5", "--run-name", RUN]) == 2
    assert "--run-name NAME" in capsys.readouterr().err


@pytest.mark.parametrize("by, found_by", [("video", "video +"), ("both", "(?:video|text|both) +")])
def test_search_prints_the_best_moments_with_times_and_scores(trained, by, found_by, capsys):
    call = ["--root", str(trained.root), RUN, "a red circle falls", "--num-results", "3", "--by", by, "--no-fold"]
    assert search_main(call) == 0
    # After so few steps, the model may say that nothing fits; the nearest moments are shown all the same.
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("nothing fits: ")]
    assert lines[0].startswith("'a red circle falls' ") and lines[0].endswith(" 14 videos of demo")
    row = rf"\s*(-?\d+\.\d{{3}})\s+\d\.\d\d -\s+(\d\.\d\d)\s+\d+\.\d\d  {found_by} (demo\d{{4}})(  \".*\")?"
    rows = [re.fullmatch(row, line) for line in lines[2:5]]
    assert rows[0]
    if by == "video":
        scores = [float(row[1]) for row in rows]
        assert scores == sorted(scores, reverse=True)
        assert not any(row[4] for row in rows)
    else:
        assert any(re.search(r"\d  (text|both) ", line) for line in lines[2:5])
    assert "random" in lines[5]


def test_a_users_videos_and_captions(small_demo, tmp_path, capsys):
    """Follow the README with clips, a damaged video and captions of a video that does not exist."""
    folder = tmp_path / "videos"
    folder.mkdir()
    names = ["cat", "dog", "fish", "bird"]
    for name, video in zip(names, small_demo.read_videos(), strict=False):
        shutil.copy(small_demo.video_path(video), folder / f"{name}.mp4")
    (folder / "broken.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(2000))
    splits = dict(zip(names, ["train", "train", "test", "test"], strict=True))
    rows = ["video_id,caption,start_seconds,end_seconds,split"]
    rows += [f"{n},a {n} moves,0,0.7,{splits[n]}" for n in names] + [f"{n},the {n} again,,,{splits[n]}" for n in names]
    rows += [
        "ghost,nobody is here,,,test",
        "broken,a broken thing,,,train",
        "cat,,,,train",
        "dog,much too late,90,95,train",
    ]
    captions = tmp_path / "captions.csv"
    captions.write_text("\n".join(rows), encoding="utf-8")
    root = ["--root", str(tmp_path / "root"), "--dataset", "mine"]

    assert extract_main([*root, "--videos", str(folder), "--features", "s3d", "--weights", "random"]) == 1
    err = capsys.readouterr().err
    assert re.search(r"warning: video 'broken', .*broken\.mp4: unreadable: .*failures\.jsonl", err)
    assert "4 of 5" in err

    assert preprocess_main([*root, "--annotations", str(captions)]) == 1
    err = capsys.readouterr().err
    assert "captions.csv, line 12: caption is ''" in err
    assert "'ghost'" in err

    assert train_main([*root, *TRAIN, "--run-name", RUN]) == 1
    err = capsys.readouterr().err
    assert "captions of video 'ghost': " in err and "captions of video 'broken': " in err
    assert "caption dog#90.0-95.0: " in err
    assert "Traceback" not in err
    assert evaluate_main(root) == 1
    assert evaluate_main([*root, "--split", "validation"]) == 2
    err = capsys.readouterr().err
    assert "'validation'" in err and "(train, test)" in err
    assert search_main([*root, RUN, "a fish"]) == 0
    out = capsys.readouterr().out
    assert "4 videos of mine" in out and re.search(r"0\.00 -\s+\d\.\d\d", out)


@pytest.mark.parametrize(
    ("command", "call", "named"),
    [
        ("vlalign-extract", [], "--dataset"),
        ("vlalign-extract", ["--dataset", "demo"], "vlalign-preprocess --dataset demo"),
        ("vlalign-extract", ["--dataset", "../up"], "'../up'"),
        ("vlalign-extract", ["--dataset", "x", "--videos", "nowhere"], "nowhere: "),
        ("vlalign-preprocess", [], "--dataset"),
        ("vlalign-preprocess", ["--dataset", "mine"], "--annotations FILE"),
        ("vlalign-preprocess", ["--dataset", "mine", "--annotations", "no.csv"], "--annotations no.csv: "),
        ("vlalign-train", ["--features", "s3d"], "vlalign-preprocess"),
        ("vlalign-train", ["--features", "s3d", "--dataset", "mine"], "vlalign-preprocess"),
        ("vlalign-evaluate", [], "vlalign-train"),
        ("vlalign-evaluate", ["gone"], "run gone: "),
        ("vlalign-search", ["gone", "a cat"], "run gone: "),
        ("vlalign-search", ["gone", " "], "' '"),
    ],
)
def test_mistakes_in_options_are_reported_in_one_line(command, call, named, tmp_path, capsys):
    assert COMMANDS[command](["--root", str(tmp_path), *call]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{command}: error: ") and named in lines[0]


def test_training_reports_missing_features_or_captions(small_demo, tmp_path, capsys):
    shutil.copytree(small_demo.path / "captions", tmp_path / "demo" / "captions")
    assert train_main(["--root", str(tmp_path), "--features", "s3d"]) == 2
    assert "'s3d'" in (error := capsys.readouterr().err) and "--dataset demo --features s3d first" in error


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_names_the_command(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        COMMANDS[command](["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"example:\n  {command} " in shown
    assert "--root" in shown and "--dataset" in shown


def test_the_demo_falls_back_to_random_weights_and_reports_it(small_demo, tmp_path, capsys):
    root = tmp_path / "root"
    shutil.copytree(small_demo.path / "videos", root / "demo" / "videos")
    lines = small_demo.videos_file.read_text(encoding="utf-8").splitlines()[:2]
    (root / "demo" / "videos.jsonl").write_text("\n".join(lines), encoding="utf-8")
    call = ["--root", str(root), "--dataset", "demo", "--features", "s3d"]
    assert extract_main(call) == 0
    err = capsys.readouterr().err
    assert "s3d_howto100m.pth: " in err
    assert re.search(r"random .*\bs3d\b", err)
    assert FeatureStore(root / "demo" / "features" / "s3d").weights.name == "random (seed 0)"
    # For another data set, the same call stops and writes nothing.
    shutil.copytree(root / "demo", root / "mine", ignore=shutil.ignore_patterns("features", "thumbnails"))
    assert extract_main([*call[:2], "--dataset", "mine", "--features", "s3d"]) == 2
    assert "--weights FILE" in capsys.readouterr().err
    assert not list((root / "mine").rglob("*.h5"))


def test_metrics_file_is_plain_json(trained):
    """Not even NaN and Infinity, which parsers of other languages reject."""
    text = (run_folder(trained) / "metrics.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["num_clips"] == 3
