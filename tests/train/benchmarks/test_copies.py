"""Copies of videos: the list of all pairs, its metrics, and made videos that are copied, cut, mirrored and encoded."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.clips_of_text import save_clip_with_processor
from helpers.golden import GOLDEN_FOLDER
from helpers.planted_search import open_planted, plant
from helpers.videos import encode_frames
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.videos.demo import scene_background, scene_frame
from vlalign.preprocess.datasets.demo import plan_scenes
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.train.benchmarks import copies
from vlalign.train.benchmarks.copies import RankedPairs, mean_ap, measure_copies, micro_ap, rank_pairs, read_copies
from vlalign.train.cli.benchmark import main as measure_main

FPS, SECONDS, NUM_SCENES = 8, 6, 8


def listed(scores: np.ndarray, count: int) -> RankedPairs:
    """Return the best pairs of a matrix of scores."""
    order = np.argsort(-scores, axis=None, kind="stable")[:count]
    queries, references = np.unravel_index(order, scores.shape)
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    return RankedPairs(queries, references, scores[queries, references], nearest)


def test_a_gigantic_ground_truth_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("query_id,ref_id\n")
    with open(path, "ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="more than 16 MiB"):
        read_copies(path)
    path.write_text(f"query_id,ref_id\n{'x' * 100_000},R1\n")
    with pytest.raises(UserError, match="expected ids that begin with Q and R") as caught:
        read_copies(path)
    assert len(str(caught.value)) < 500


def test_micro_ap_as_the_published_program():
    text = (GOLDEN_FOLDER / "reference" / "benchmarks.json").read_text(encoding="utf-8")
    made = json.loads(text)["vsc2022"]
    scores, right = np.array(made["scores"]), {(query, reference) for query, reference in made["right"]}
    for count in (300, 60):
        assert micro_ap(listed(scores, count), right) == pytest.approx(made[f"micro_ap_of_{count}"], abs=1e-9)


def test_metrics_by_hand():
    scores = np.array([[0.9, 0.1, 0.2], [0.8, 0.7, 0.3]])
    right = {(0, 0), (1, 1)}  # first and third of the list; first and second of their query
    assert micro_ap(listed(scores, 6), right) == pytest.approx((1 + 2 / 3) / 2)
    assert micro_ap(listed(scores, 2), right) == pytest.approx(1 / 2), (
        "a pair behind the end of the list counts as missed"
    )
    assert mean_ap(listed(scores, 6), right) == pytest.approx((1 + 1 / 2) / 2)
    assert mean_ap(listed(scores, 6), {(0, 0), (0, 1)}) == pytest.approx((1 + 2 / 3) / 2)


def test_the_random_baseline_is_the_mean_of_random_orders():
    rng, right = np.random.default_rng(0), {(0, 3), (0, 7), (2, 1), (4, 4)}
    drawn = [listed(rng.random((5, 12)), 60) for _ in range(3000)]
    expected = copies._random_baseline(5, 12, right)
    assert 100 * np.mean([micro_ap(found, right) for found in drawn]) == pytest.approx(expected["micro-AP"], rel=0.05)
    assert 100 * np.mean([mean_ap(found, right) for found in drawn]) == pytest.approx(expected["mAP@10"], rel=0.05)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Six references of two scenes; four queries: a copy, a part in another video, and two of nothing."""
    words = ["cat", "dog", "bird", "fish", "horse", "cow", "sheep", "goat", "duck", "frog"]
    scenes = {f"R{n}": [(8, words[n]), (8, words[n + 1])] for n in range(6)}
    scenes |= {"Q1": scenes["R2"], "Q2": [(8, words[8]), (8, words[5]), (8, words[6])]}
    scenes |= {"Q3": [(8, words[9])], "Q4": [(8, words[8]), (8, words[9])]}
    return open_planted(plant(tmp_path_factory.mktemp("root"), scenes)).index


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("at_once", [1, 20, 1 << 12])
def test_pairs_have_the_highest_cosine_of_their_windows(planted, monkeypatch, whole, at_once):
    monkeypatch.setattr(copies, "WINDOWS_AT_ONCE", at_once)
    queries, references = ([v for v in planted.video_ids if v[0] == kind] for kind in "QR")
    found = rank_pairs(planted, queries, references, whole=whole)

    def vectors(video_id):
        of_video = planted.of_video(video_id)[1].astype(np.float64)[: 1 if whole else None]
        return of_video / np.linalg.norm(of_video, axis=1, keepdims=True)

    expected = {
        (q, r): max(float(a @ b) for a in vectors(query) for b in vectors(reference))
        for q, query in enumerate(queries)
        for r, reference in enumerate(references)
    }
    scores = dict(zip(zip(found.queries.tolist(), found.references.tolist(), strict=True), found.scores, strict=True))
    assert scores.keys() == expected.keys()
    assert all(scores[pair] == pytest.approx(expected[pair], abs=1e-5) for pair in expected)
    assert (np.diff(found.scores) <= 0).all()
    for q in range(len(queries)):
        best = sorted(range(len(references)), key=lambda r: -scores[q, r])
        assert found.nearest_QK[q, : len(references)].tolist() == best


def test_only_the_best_pairs_count(planted, monkeypatch):
    queries, references = ([v for v in planted.video_ids if v[0] == kind] for kind in "QR")
    whole = rank_pairs(planted, queries, references, whole=False)
    monkeypatch.setattr(copies, "PAIRS_PER_QUERY", 1)
    monkeypatch.setattr(copies, "WINDOWS_AT_ONCE", 1)
    best = rank_pairs(planted, queries, references, whole=False)
    assert len(best.scores) == len(queries)
    assert best.scores == pytest.approx(whole.scores[: len(queries)], abs=1e-6)


@pytest.mark.parametrize("limit", [1, 10, 40, 10**6])
def test_the_official_list_is_the_beginning_of_this_one(planted, limit):
    """The official script keeps the best pairs of descriptors of all videos, and ranks the videos that they are of."""
    queries, references = ([v for v in planted.video_ids if v[0] == kind] for kind in "QR")
    vectors = {v: planted.of_video(v)[1].astype(np.float64) for v in planted.video_ids}
    vectors = {v: of_video / np.linalg.norm(of_video, axis=1, keepdims=True) for v, of_video in vectors.items()}
    found = [
        (float(a @ b), q, r)
        for q, query in enumerate(queries)
        for r, reference in enumerate(references)
        for a in vectors[query]
        for b in vectors[reference]
    ]
    official: dict[tuple[int, int], float] = {}
    for score, q, r in sorted(found, reverse=True)[:limit]:
        official.setdefault((q, r), score)
    ours = rank_pairs(planted, queries, references, whole=False)
    assert ours.scores[: len(official)] == pytest.approx(list(official.values()), abs=1e-5)
    assert len(ours.scores) == len(queries) * len(references) >= len(official)


def test_vectors_that_the_challenge_would_refuse_are_noted():
    notes = list(copies._notes(768))
    assert "768 dimensions" in notes[0] and notes[1:] == list(copies._notes(512)) == list(copies.NOTES)


def test_planted_copies_are_found(planted):
    right = {("Q1", "R2"), ("Q2", "R5"), ("Q9", "R1")}
    problems = Problems(quiet=True)
    result = measure_copies(planted, right, problems)
    assert problems.count == 1 and "Q9" in problems.messages[0]
    assert result.metrics["search windows"] == {"micro-AP": 100, "mAP@10": 100}
    assert result.metrics["whole videos"]["mAP@10"] == 100
    assert result.metrics["random baseline"]["micro-AP"] < 25
    first = [(row["query"], row["reference"]) for row in result.rows if row["by"] == "search windows"][:2]
    assert set(first) == {("Q1", "R2"), ("Q2", "R5")}


def test_videos_without_the_names_of_the_challenge_are_refused(tmp_path, planted):
    index = open_planted(plant(tmp_path, {"a": [(4, "cat")], "Q1": [(4, "dog")]})).index
    with pytest.raises(UserError, match=r"1 are queries .* and 0 references"):
        measure_copies(index, {("Q1", "R1")}, Problems(quiet=True))
    with pytest.raises(UserError, match="no pair of the ground truth"):
        measure_copies(planted, {("Q8", "R9")}, Problems(quiet=True))


def test_both_ground_truths_of_the_challenge_are_read(tmp_path):
    path = tmp_path / "gt.csv"
    path.write_text("query_id,ref_id\nQ100001,R200001\n")
    assert read_copies(path) == {("Q100001", "R200001")}
    path.write_text(
        "query_id,ref_id,query_start,query_end,ref_start,ref_end\nQ1,R2,0,3,5,8\nQ1,R2,9,12,0,3\nQ2,R2,0,1,0,1\n"
    )
    assert read_copies(path) == {("Q1", "R2"), ("Q2", "R2")}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "query_id"),
        (b"query_id,score\nQ1,2\n", "no column ref_id"),
        (b"query_id,ref_id\n", "no pair"),
        (b"query_id,ref_id\nQ1,Q2\n", "line 2: the pair 'Q1' and 'Q2'"),
        (b"query_id,ref_id\nQ1\n", "line 2"),
        (b'query_id,ref_id\n"Q1,R2\n', "not valid CSV"),
        (b"query_id,ref_id\n\xff,R2\n", "not valid CSV in UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, named):
    path = tmp_path / "gt.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_copies(path)
    message = str(refused.value)
    assert message.startswith(str(path)) and named in message and "\n" not in message


def frames(scene: dict, seconds: float = SECONDS) -> list[np.ndarray]:
    count, background = round(seconds * FPS), scene_background(scene, 160, 120)
    return [scene_frame(scene, index / count, background) for index in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_clip_with_processor(tmp_path_factory.mktemp("models") / "small")


def test_copied_cut_mirrored_and_encoded_videos_stand_above_the_random_baseline(tmp_path, model, capsys):
    scenes = [frames(scene) for _, scene in plan_scenes(3, {"train": NUM_SCENES + 2})]
    others = scenes[NUM_SCENES:]
    made = {f"R{n}": shown for n, shown in enumerate(scenes[:NUM_SCENES])}
    made |= {
        "Q0": [shown // 2 + 40 for shown in scenes[0]],  # paler
        "Q1": others[0] + scenes[1][: 4 * FPS],  # a part behind another video
        "Q2": [shown[:, ::-1].copy() for shown in scenes[2]],  # mirrored
        "Q3": [shown[10:110, 10:150].copy() for shown in scenes[3]],  # cropped
        "Q4": others[1],  # of nothing
    }
    (tmp_path / "videos").mkdir()
    for name, shown in made.items():
        encode_frames(tmp_path / "videos" / f"{name}.mp4", shown, FPS, "mpeg4" if name == "Q0" else "libx264")
    at = ["--root", str(tmp_path), "--dataset", "vsc2022"]
    assert extract_main([*at, "--videos", str(tmp_path / "videos"), "--features", f"hf:{model}"]) == 0
    truth = tmp_path / "gt.csv"
    truth.write_text("query_id,ref_id\n" + "".join(f"Q{n},R{n}\n" for n in range(4)))
    capsys.readouterr()
    call = ["copies", *at, "--features", f"hf:{model}", "--ground-truth", str(truth)]
    assert measure_main(call) == 0
    shown = capsys.readouterr().out
    folder = tmp_path / "vsc2022" / "benchmarks" / "copies-small"
    metrics = json.loads((folder / "metrics.json").read_text())
    print(metrics["metrics"])
    rows = ("search windows", "whole videos", "random baseline")
    windows, whole, baseline = (metrics["metrics"][row] for row in rows)
    assert min(windows["micro-AP"], whole["micro-AP"]) > 2 * baseline["micro-AP"] and windows["mAP@10"] >= 75
    assert "micro-AP" in shown and "too few to compare" in shown and str(folder / "metrics.json") in shown
    assert metrics["ground_truth"].keys() == {"gt.csv"} and metrics["left_out"] == 0
    assert len((folder / "queries.jsonl").read_text().splitlines()) == 2 * 5 * NUM_SCENES
