"""Captions whose clips have no feature rows: skipped by name and count, whatever is trained or asked."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.labelled import make_questions, make_segments, make_steps, video_of
from helpers.stores import PROFILE, WEIGHTS, video, write
from helpers.toy import make_toy
from helpers.training import PAIR_CASES, QUESTIONS, SEGMENTS, at, gradient, trainer
from hypothesis import given
from hypothesis import strategies as st
from vlalign.storage import Caption, FeatureStore, MemoryStore, VideoFeatures, Weights, read_captions, write_shard
from vlalign.storage.captions.files import caption_table, read_captions_about, write_captions_about, write_part
from vlalign.storage.common.files import read_json
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.clips import Clip
from vlalign.train.data.pairs import read_pairs
from vlalign.train.data.usable_captions import find_exclusions

JUST_BEFORE, JUST_AFTER = math.nextafter(10.0, 0.0), math.nextafter(10.0, 11.0)
LAST_ROWS = {
    "in the last row": (9.2, 9.8, True),
    "the last moment of the last row": (JUST_BEFORE, 10.3, True),
    "from the last row's end": (10.0, 10.3, False),
    "just after the last row's end": (JUST_AFTER, 10.3, False),
    "up to the last row's end": (9.9, 10.0, True),
    "in the last half second": (10.1, 10.35, False),
    "from the last row past the video's end": (9.5, 99.0, True),
    "until just before the first row": (0.0, math.nextafter(0.5, 0.0), False),
    "until the first row's start": (0.0, 0.5, True),
}
"""{clip of a video of 10.4 s with rows from 0.5 to 10 s: (start, end, whether it has rows)}"""


def ten_rows(video_id: str, num_rows: int = 10, **more) -> VideoFeatures:
    """A video of 10.4 s with a row a second, the first of them half a second."""
    starts = np.arange(num_rows, dtype=float)
    starts[:1] = 0.5
    times = {"start_seconds": starts, "end_seconds": np.arange(num_rows) + 1.0, "duration_seconds": 10.4}
    return video(video_id, num_rows, **times | more)


def asked(*clips: tuple[str, float | None, float | None], split: str = "train") -> list[Caption]:
    return [
        Caption(video_id=v, caption=f"caption {n}", split=split, start_seconds=start, end_seconds=end)
        for n, (v, start, end) in enumerate(clips)
    ]


def made(folder: Path, captions: list[Caption], *stores: list[VideoFeatures]) -> tuple[DatasetFolder, ClipFeatures]:
    dataset = DatasetFolder(folder, "mine")
    for number, videos in enumerate(stores):
        write(dataset.features(f"s{number}"), *videos)
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {})
    return dataset, ClipFeatures([FeatureStore(dataset.features(f"s{number}")) for number in range(len(stores))])


@pytest.mark.parametrize("case", LAST_ROWS)
def test_the_border_is_the_last_row_s_end(tmp_path, case):
    start, end, has_rows = LAST_ROWS[case]
    dataset, features = made(tmp_path, asked(("v", start, end), ("v", 1.0, 2.0)), [ten_rows("v")])
    assert bool(len(features.rows([Clip("v", start, end)], 99)[0])) == has_rows, "as the store reads the clip"
    problems = Problems()
    clips = read_pairs(dataset, features, problems)["train"].clips
    assert ([c.start_seconds for c in clips] == [start, 1.0]) == has_rows
    assert problems.count == (not has_rows)


TIMES = st.floats(0, 12) | st.sampled_from([0.0, 0.5, 1.0, 9.0, 10.0, 10.4, JUST_BEFORE, JUST_AFTER])


@given(clips=st.lists(st.tuples(TIMES, TIMES), min_size=1), num_rows=st.tuples(*[st.integers(0, 10)] * 2))
def test_a_caption_is_without_rows_exactly_if_a_store_gives_its_clip_none(clips, num_rows):
    stores = [MemoryStore(PROFILE, WEIGHTS, [ten_rows("v", number)]) for number in num_rows]
    features = ClipFeatures(stores)
    captions = asked(*(("v", min(c), max(c)) for c in clips if min(c) < max(c)), ("v", None, None))
    exclusions = find_exclusions(caption_table(captions), features, None)
    rows = features.rows([Clip(c.video_id, c.start_seconds, c.end_seconds) for c in captions], 99)
    late = [c.start_seconds is not None and c.start_seconds >= 10.4 for c in captions]
    assert exclusions.after_video.tolist() == late
    assert (exclusions.without_rows | exclusions.after_video).tolist() == [not len(r) for r in rows]


def test_each_cause_is_one_line_with_its_count_and_the_first_captions(tmp_path):
    clips = [("v", 10.0 + n / 100, 10.3) for n in range(12)] + [("empty", 0.0, 3.0), ("empty", None, None)]
    early = ("v", 0.0, 0.2)
    dataset, features = made(tmp_path, asked(*clips, early, ("v", 1.0, 2.0)), [ten_rows("v"), ten_rows("empty", 0)])
    for _ in range(2):  # made, and found in the file
        problems = Problems()
        pairs = read_pairs(dataset, features, problems)
        assert len(pairs["train"].captions) == 1
        none, after, before = problems.messages
        assert after.startswith("12 of 16 captions") and "v#10.0-10.3" in after
        assert "v#10.05-10.3" not in after, "only the first few are named"
        assert after.count("\n") == 0 and str(features.stores[0].where) in after
        assert none.startswith("2 of 16 captions") and "empty#0.0-3.0" in none
        assert before.startswith("1 of 16 captions") and "v#0.0-0.2" in before


def test_of_joined_stores_the_shorter_one_decides(tmp_path):
    clips = [("v", 1.0, 2.0), ("v", 8.5, 9.5), ("w", 1.0, 2.0), ("v", None, None), ("w", None, None)]
    stores = [[ten_rows("v"), ten_rows("w")], [ten_rows("v", 8), ten_rows("w", 0)]]
    dataset, features = made(tmp_path, asked(*clips), *stores)
    problems = Problems()
    left = read_pairs(dataset, features, problems)["train"].clips
    assert [(c.video_id, c.start_seconds) for c in left] == [("v", 1.0), ("v", None)]
    assert [message[:16] for message in problems.messages] == ["2 of 5 captions ", "1 of 5 captions "]
    assert all(str(features.stores[1].where) in message for message in problems.messages)


@pytest.mark.parametrize("times", [(3.0, 3.0), (4.0, 3.0), (-2.0, -1.0), (-1.0, 2.0), (math.nan, 2.0), (2.0, math.nan)])
def test_times_that_no_clip_has_are_skipped(tmp_path, times):
    """Another program wrote them: vlalign-preprocess refuses such times."""
    odd = Caption(video_id="v", caption="odd", split="train", start_seconds=1.0, end_seconds=2.0)
    object.__setattr__(odd, "start_seconds", times[0])
    object.__setattr__(odd, "end_seconds", times[1])
    dataset, features = made(tmp_path, [odd, *asked(("v", 1.0, 2.0), ("v", 2.0, 3.0))], [ten_rows("v")])
    problems = Problems()
    assert [c.start_seconds for c in read_pairs(dataset, features, problems)["train"].clips] == [1.0, 2.0]
    [message] = problems.messages
    assert message.startswith("1 of 3 captions") and f"v#{times[0]}-{times[1]}" in message and "start < end" in message


def test_pairs_that_an_older_version_kept_are_made_again(tmp_path, monkeypatch):
    from vlalign.train.data import pairs as kept_pairs

    dataset, features = made(tmp_path, asked(("v", 10.1, 10.3), ("v", 1.0, 2.0)), [ten_rows("v")])
    [old] = [read_pairs(dataset, features, Problems())]
    [file] = dataset.pairs.glob("*.safetensors")
    content = file.read_bytes()
    file.write_bytes(content.replace(f'"format": "{kept_pairs.FORMAT}"'.encode(), b'"format": "1"'))
    assert file.read_bytes() != content
    assert len(read_pairs(dataset, features, Problems())["train"].clips) == len(old["train"].clips) == 1
    assert file.read_bytes() == content


def tailed(dataset: DatasetFolder, features: str, width: int, **about) -> list[Caption]:
    """Add a video of 10.4 s with rows to 10 s to each split, and two captions for it: one has no rows."""
    rng = np.random.default_rng(9)
    added, videos = [], []
    for split in ("train", "validation", "test"):
        of = {"video_id": f"tail-{split}", "split": split, "caption": "cut the onion", **about}
        texts = {"words": ["cut", "the", "onion"], "word_starts": [0, 4, 8], "pos_tags": ["VERB", "DET", "NOUN"]}
        added.append(Caption(**of, start_seconds=2.0, end_seconds=5.0, **texts))
        added.append(Caption(**of, start_seconds=10.1, end_seconds=10.35, **texts))
        rows = rng.normal(size=(10, width))
        shown = video_of(of["video_id"], rows)
        videos.append(VideoFeatures(**vars(shown) | {"duration_seconds": 10.4}))
    store = FeatureStore(dataset.features(features))
    write_shard(dataset.features(features), PROFILES[features], store.weights, videos, made_with={})
    write_part(dataset.captions, 1, added, {})
    write_captions_about(dataset.captions, read_captions_about(dataset.captions) | {"changed": True})
    return added


@pytest.fixture(scope="module")
def toy_with_tail(tmp_path_factory) -> DatasetFolder:
    dataset = make_toy(tmp_path_factory.mktemp("tail"))
    tailed(dataset, "s3d", 1024)
    return dataset


@pytest.mark.parametrize("case", [*PAIR_CASES, "taco"])
def test_every_objective_trains_without_them(toy_with_tail, tmp_path, case):
    settings = PAIR_CASES.get(case, {"objective": "taco"})
    made = trainer(toy_with_tail, tmp_path / "run", batch_size=12, **settings)
    clips = list(made.examples.clips)
    assert Clip("tail-train", 2.0, 5.0) in clips and Clip("tail-train", 10.1, 10.35) not in clips
    for step in range(3):
        rows = made.make_inputs(step).mask
        assert rows.any(dim=1).all(), "each clip has rows"
    terms, found = gradient(made)
    assert all(map(math.isfinite, terms.values())) and found.isfinite().all()


OPTIONS = ["--num-steps", "2", "--batch-size", "4", "--validate-every", "1", "--run-name", "r", "--device", "cpu"]


def check_evaluated(dataset: DatasetFolder, train: list[str], capsys) -> dict:
    """Train and evaluate; return the figures."""
    assert train_main([*at(dataset), *train, *OPTIONS]) == 1
    said = capsys.readouterr().err
    [line] = [line for line in said.splitlines() if "tail-train#10.1-10.35" in line]
    assert line.startswith("warning: 3 of ") and str(dataset.path / "features") in line and "nan" not in said
    assert evaluate_main([*at(dataset), "r"]) == 1
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err and "tail-test#10.1-10.35" in shown.err
    figures = read_json(dataset.runs / "r" / "metrics.json")
    assert figures["unused"] == {"no feature rows": 1}
    assert figures["num_captions"] == figures["num_captions_of_split"] - 1
    assert "NaN" not in (dataset.runs / "r" / "metrics.json").read_text(encoding="utf-8")
    return figures


@pytest.mark.parametrize("objective", ["words", "taco", "ncl", "mil-nce"])
def test_retrieval_is_trained_evaluated_and_searched_without_them(tmp_path, capsys, objective):
    dataset = make_toy(tmp_path)
    tailed(dataset, "s3d", 1024)
    encoder = ["--encoder", "gated", "--embedding-size", "8"] if objective == "mil-nce" else []
    figures = check_evaluated(dataset, ["--features", "s3d", "--objective", objective, *encoder], capsys)
    assert figures["metrics"]["text_to_video"]["mean_rank"] >= 1
    assert search_main([*at(dataset), "r", "cut the onion", "--num-results", "3"]) == 0
    assert "nan" not in capsys.readouterr().out
    assert search_main([*at(dataset), "r", "--like", "tail-test@10.1-10.35"]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "tail-test" in line and "10.1" in line and "features" in line


TASKS = {
    "vqa": (make_questions, QUESTIONS, {"answer": "fish"}, "s3d"),
    "steps": (make_steps, {"objective": "ncl"}, {"task": "Make Tea", "step": 1}, ""),
    "segmentation": (make_segments, SEGMENTS, {"task": "Cook", "step": 7}, ""),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_trained_and_asked_without_them(tmp_path, capsys, task):
    make, settings, about, _ = TASKS[task]
    dataset = make(tmp_path)
    tailed(dataset, "resnet152", 2048, **about)
    train = ["--features", "resnet152"]
    for name, value in settings.items():
        train += [f"--{name.replace('_', '-')}", str(value)]
    figures = check_evaluated(dataset, train, capsys)
    assert figures["task"] == task


def cut_short(dataset: DatasetFolder) -> str:
    """Add rows to 10 s, and none, for two test videos of 40 s, as damaged files have them; return the second one."""
    first, second = list(dict.fromkeys(c.video_id for c in read_captions(dataset.captions) if c.split == "test"))[:2]
    store = FeatureStore(dataset.features("resnet152"))
    rows = np.random.default_rng(3).normal(size=(10, 2048))
    videos = [
        VideoFeatures(**vars(video_of(first, rows)) | {"duration_seconds": 40.0}),
        VideoFeatures(**vars(video_of(second, rows[:0])) | {"duration_seconds": 40.0}),
    ]
    weights = Weights(name=store.weights.name, sha256=store.weights.sha256)
    write_shard(dataset.features("resnet152"), store.profile, weights, videos, made_with={})
    return second


@pytest.mark.parametrize("task", ["steps", "segmentation"])
def test_seconds_and_videos_without_rows_do_no_harm(tmp_path, capsys, task):
    make, settings, _, _ = TASKS[task]
    dataset = make(tmp_path)
    train = ["--features", "resnet152", "--objective", settings["objective"]]
    assert train_main([*at(dataset), *train, *OPTIONS]) == 0
    second = cut_short(dataset)
    capsys.readouterr()
    assert evaluate_main([*at(dataset), "r"]) == 1
    said = capsys.readouterr().err
    assert re.search(rf"'{second}': .*{re.escape(str(dataset.features('resnet152')))}", said), said
    assert "Traceback" not in said
    assert "NaN" not in (dataset.runs / "r" / "metrics.json").read_text(encoding="utf-8")
    if task == "steps":
        assert search_main([*at(dataset), "r", "boil water", "--num-results", "99"]) == 0
        shown = capsys.readouterr()
        assert "nan" not in shown.out and "Traceback" not in shown.err
