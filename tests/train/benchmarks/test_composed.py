"""Texts with an example: MomentSeeker's files, the metrics by hand, and what search ranks first in made videos."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.clips_of_text import save_clip_with_processor
from helpers.planted_search import open_planted, plant
from helpers.videos import encode_frames
from PIL import Image
from vlalign.extract.cli.extract import main as extract_main
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.train.benchmarks.composed import (
    measure_composed,
    query_metrics,
    random_metrics,
    read_composed,
    span_of,
)
from vlalign.train.benchmarks.ground_truth import file_below, ids_by_name
from vlalign.train.cli.benchmark import main as measure_main

WORDS = ["cat", "dog", "bird", "fish", "horse", "cow", "sheep", "goat", "duck", "frog"]
SECONDS, NUM_PARTS = 10, 8


def part(video: str, number: int, seconds: int = SECONDS) -> str:
    return f"/share/made/{video}/{number * seconds:.2f}_{(number + 1) * seconds:.2f}.mp4"


def row(text="cat", image="", clip="", right=(0,), video="movie1", count=NUM_PARTS, seconds=SECONDS) -> dict:
    candidates = [{"output_path": part(video, n, seconds)} for n in range(count)]
    return {
        "qry_text": text,
        "qry_img_path": image,
        "qry_video_path": clip,
        "candidate_video_list": candidates,
        "gt_indices": list(right),
    }


def write(folder: Path, rows, name="made_tv2v.json") -> Path:
    path = folder / name
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    return path


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """A long video of eight parts: pairs of a thing and a colour; and a video of each thing alone."""
    scenes = {
        "movies/movie1": [(SECONDS, f"{thing} {colour}") for colour in ("red", "blue") for thing in WORDS[:4]],
        **{f"clips/{thing}": [(4, thing)] for thing in WORDS[:4]},
    }
    return open_planted(plant(tmp_path_factory.mktemp("root"), scenes))


def measured(search, folder, rows, like_weight=0.5):
    problems = Problems(quiet=True)
    return measure_composed(search, read_composed(write(folder, rows)), like_weight, problems), problems


def test_text_and_clip_together_find_the_part_that_shows_both(search, tmp_path):
    rows = [
        row(text=colour, clip=f"/share/queries/{thing}.mp4", right=[4 * (colour == "blue") + n])
        for n, thing in enumerate(WORDS[:4])
        for colour in ("red", "blue")
    ]
    result, problems = measured(search, tmp_path, rows)
    assert problems.count == 0 and result.what == "8 of 8 queries"
    assert list(result.metrics) == ["text and clip", "random baseline"]
    assert result.metrics["text and clip"] == {"R@1": 100, "R@5": 100, "R@10": 100, "mAP@5": 100}
    assert result.metrics["random baseline"]["R@1"] == pytest.approx(100 / NUM_PARTS)
    for weight in (0, 1):  # the text alone fits four parts, the clip alone two
        alone = measured(search, tmp_path, rows, weight)[0].metrics["text and clip"]
        assert alone["R@1"] < 100 and alone["R@5"] > alone["R@1"]


def test_a_clip_is_a_part_of_a_video_too_and_a_text_may_be_alone(search, tmp_path):
    rows = [row(text="blue", clip=part("movie1", 0), right=[4]), row(text="dog red", right=[1])]
    result, _ = measured(search, tmp_path, rows)
    assert list(result.metrics) == ["text", "text, random baseline", "text and clip", "text and clip, random baseline"]
    assert result.metrics["text"]["R@1"] == 100
    assert result.metrics["text and clip"]["R@5"] == 100


def test_queries_that_cannot_be_asked_are_skipped_by_name(search, tmp_path):
    rows = [
        row(right=[0]),
        row(text="a", video="movie2"),
        row(text="b", image="images/none.png"),
        row(text="c", image="../../etc/passwd"),
        row(text="d", clip="/share/queries/none.mp4"),
        {**row(text="e"), "candidate_video_list": [{"output_path": "movie1/first.mp4"}]},
    ]
    result, problems = measured(search, tmp_path, rows)
    assert result.what == "1 of 6 queries" and problems.count == 5
    for message, words in zip(
        problems.messages, ("'movie2'", "'images/none.png'", "passwd", "none.mp4", "VIDEO/START_END"), strict=True
    ):
        assert words in message
    with pytest.raises(UserError, match="every query was skipped"):
        measured(search, tmp_path, rows[1:])


def test_metrics_by_hand():
    spans = [("v", 30.0 * n, 30.0 * n + 30) for n in range(6)]
    metrics = query_metrics(np.array([1, 3, 2, 0, 4, 5]), spans, {2, 3})
    assert metrics["R@1"] == 0 and metrics["R@5"] == 1
    # The right span is 60 to 120 s: 90-120 and 60-90 overlap it by a half, at ranks 2 and 3; 30-60 touches it.
    assert metrics["mAP@5"] == pytest.approx(0.5 * 0.5 / 2 + 0.5 * (0.5 + 0.5) / 3)
    assert query_metrics(np.arange(6), spans, {0})["mAP@5"] == 1


def test_the_random_baseline_is_the_share_of_random_orders():
    rng = np.random.default_rng(0)
    first = [rng.permutation(9)[:5] for _ in range(20_000)]
    baseline = random_metrics(9, 2)
    assert baseline["R@5"] == pytest.approx(np.mean([bool({0, 1} & set(order.tolist())) for order in first]), abs=0.015)
    assert baseline["R@1"] == pytest.approx(2 / 9) and baseline["R@10"] == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "not valid JSON"),
        ("{}", "dict"),
        ("[" * 100_000, "not valid JSON"),
        ([7], "query 1"),
        ([{}], "query 1: no 'candidate_video_list'"),
        ([row(), row(right=[])], "query 2: gt_indices []"),
        ([row(right=[NUM_PARTS])], f"0 to {NUM_PARTS - 1}"),
        ([row(right=["0"])], "gt_indices"),
        ([row(right=[1.0])], "gt_indices [1.0], expected whole numbers"),
        ([row(right=[True, 0])], "gt_indices"),
        ([row(text=7)], "qry_text"),
        ([row(image=["x"])], "qry_img_path"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, named):
    path = write(tmp_path, content)
    with pytest.raises(UserError) as refused:
        read_composed(path)
    message = str(refused.value)
    assert message.startswith(str(path)) and named in message and "\n" not in message


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: cannot be read"):
        read_composed(tmp_path / "none.json")


@pytest.mark.parametrize("path", ["", "a.mp4", "v/3.mp4", "v/5_2.mp4", "v/-1_2.mp4", "1_2.mp4", f"v/1_{'9' * 400}.mp4"])
def test_other_names_have_no_span(path):
    assert span_of(path) is None


def test_images_are_looked_for_below_the_folder_only(tmp_path):
    home = tmp_path / "home"
    (home / "images").mkdir(parents=True)
    for path in (tmp_path / "secret.png", home / "images" / "a.png"):
        path.write_bytes(b"")
    (home / "link.png").symlink_to(tmp_path / "secret.png")
    assert file_below(home, "/share/set/images/a.png") == home / "images" / "a.png"
    strange = ("", "/", "images", "a\0.png", f"{'a' * 300}.png", "a/" * 10**6)
    for named in (
        "/share/b.png",
        "../secret.png",
        "link.png",
        str(tmp_path / "secret.png"),
        "",
        "/",
        "images",
        *strange,
    ):
        assert file_below(home, named) is None


def test_names_that_several_videos_have_are_nobodys():
    assert ids_by_name(["a/x", "b/x", "c/x", "y"]) == {"y": "y"}


def test_images_find_their_parts_in_a_made_video(tmp_path, capsys):
    """With the image alone, the part that it is a frame of is first, whatever the model's random weights say."""
    model = save_clip_with_processor(tmp_path / "small")
    rng, fps, seconds = np.random.default_rng(0), 4, 4
    pictures = [np.kron(rng.integers(0, 256, (6, 8, 3)), np.ones((20, 20, 1))).astype(np.uint8) for _ in range(6)]
    (tmp_path / "videos").mkdir()
    shown = [picture for picture in pictures for _ in range(fps * seconds)]
    encode_frames(tmp_path / "videos" / "movie1.mp4", shown, fps)
    (tmp_path / "truth" / "images").mkdir(parents=True)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / "truth" / "images" / f"{number}.png")
    rows = [
        row(text="a red ball", image=f"/share/images/{n}.png", right=[n], count=6, seconds=seconds) for n in range(6)
    ]
    truth = write(tmp_path / "truth", rows, "made_ti2v.json")
    at = ["--root", str(tmp_path), "--dataset", "mine", "--features", f"hf:{model}"]
    assert extract_main([*at, "--videos", str(tmp_path / "videos")]) == 0
    call = ["composed", *at, "--ground-truth", str(truth), "--like-weight"]
    capsys.readouterr()
    assert measure_main([*call, "1"]) == 0
    assert "weight of the example beside the text: 1" in capsys.readouterr().out
    assert measure_main([*call, "0"]) == 0
    image, text = (
        json.loads((tmp_path / "mine" / "benchmarks" / f"composed-small-like={w}" / "metrics.json").read_text())
        for w in (1, 0)
    )
    assert image["metrics"]["text and image"]["R@1"] == 100
    assert text["metrics"]["text and image"]["R@1"] == pytest.approx(100 / 6), "the same text finds the same part"
    assert image["settings"] == {"like_weight": 1.0}
