"""How much of a split was evaluated is said, with why the rest was not."""

import re

import pytest
from helpers.labelled import make_questions, make_segments, make_steps
from helpers.toy import make_toy
from helpers.training import at
from vlalign.storage import Caption, read_captions
from vlalign.storage.captions.files import read_captions_about, write_captions_about, write_part
from vlalign.storage.common.files import read_json, write_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main

TRAIN = ["--num-steps", "2", "--batch-size", "4", "--run-name", "r"]


def add_test_captions(dataset, *captions: Caption) -> None:
    write_part(dataset.captions, 1, captions, {})
    write_captions_about(dataset.captions, read_captions_about(dataset.captions) | {"changed": True})


def test_partial_coverage_of_a_test_set_is_reported(tmp_path, capsys):
    dataset = make_toy(tmp_path, num_videos=420)
    assert train_main([*at(dataset), "--features", "s3d", *TRAIN]) == 0
    capsys.readouterr()
    assert evaluate_main([*at(dataset), "r"]) == 0
    shown, folder = capsys.readouterr().out, dataset.runs / "r"
    assert shown.splitlines()[0] == "r: 105 captions and 105 clips of toy, test" and "compar" not in shown
    result = read_json(folder / "metrics.json")
    assert (result["unused"], result["not_comparable"], result["num_clips_of_split"]) == ({}, [], 105)

    gone = [Caption(video_id=f"gone{n // 2}", caption=f"cut {n}", split="test") for n in range(6)]
    late = Caption(video_id="v001", start_seconds=900.0, end_seconds=910.0, caption="fry", split="test")
    add_test_captions(dataset, *gone, late, Caption(video_id="other", caption="stir", split="train"))
    assert evaluate_main([*at(dataset), "r"]) == 1
    first, note, *_ = capsys.readouterr().out.splitlines()
    assert first == "r: 105 of 112 captions and 105 of 109 clips of toy, test"  # docs/evaluation.md shows the line
    result = read_json(folder / "metrics.json")
    reasons = ", ".join(f"{reason}: {count}" for reason, count in result["unused"].items())
    assert re.match(rf"note: .*\b105 of 112 captions\b.*\({reasons}\)", note), note
    assert (result["num_captions"], result["num_captions_of_split"]) == (105, 112)
    assert (result["num_clips"], result["num_clips_of_split"], result["num_videos"], result["num_videos_of_split"]) == (
        105,
        109,
        105,
        109,
    )
    assert result["unused"] == {"video without features": 6, "starts after the video's end": 1}
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "105 of 112 captions, 105 of 109 clips" in report and "Only 105 of 112 captions" in report


def test_fewer_than_a_hundred_clips_are_too_few_to_compare(tmp_path, capsys):
    dataset = make_toy(tmp_path)
    assert train_main([*at(dataset), "--features", "s3d", *TRAIN]) == 0
    assert evaluate_main([*at(dataset), "r"]) == 0
    [words] = read_json(dataset.runs / "r" / "metrics.json")["not_comparable"]
    assert re.search(r"\b6 clips\b.*\b100\b", words) and f"note: {words}\n" in capsys.readouterr().out
    assert words[1:] in (dataset.runs / "r" / "report.html").read_text(encoding="utf-8")


def test_metrics_of_an_older_version_are_recomputed(tmp_path, capsys):
    """They do not say how much of the split they are of."""
    dataset = make_toy(tmp_path)
    assert train_main([*at(dataset), "--features", "s3d", *TRAIN]) == 0
    assert evaluate_main([*at(dataset), "r"]) == 0
    path = dataset.runs / "r" / "metrics.json"
    new = read_json(path)
    later = (
        "num_captions_of_split",
        "num_clips_of_split",
        "num_videos_of_split",
        "num_videos",
        "unused",
        "not_comparable",
    )
    write_json(path, {name: value for name, value in new.items() if name not in later})
    assert evaluate_main([*at(dataset), "r"]) == 0
    assert read_json(path) == new
    written = path.stat().st_mtime_ns
    capsys.readouterr()
    assert evaluate_main([*at(dataset), "r"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"{path.parent}: ") and f"note: {new['not_comparable'][0]}\n" in shown.out
    assert path.stat().st_mtime_ns == written, "evaluated before"


STEP = {"task": "Cut Bread", "step": 1}
TASKS = {
    "vqa": (make_questions, {"answer": "fry"}, "questions", "{used} of {all} questions about 12 of 13 videos of asked"),
    "steps": (make_steps, STEP, "steps", "in 6 of 7 videos of made"),
    "segmentation": (
        make_segments,
        {"task": "Cook", "step": 7},
        "segments",
        "180 seconds of 4 of 5 videos of segmented",
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_reports_its_coverage(task, tmp_path, capsys):
    make, fields, called, heading = TASKS[task]
    dataset = make(tmp_path)
    there = next(c.video_id for c in read_captions(dataset.captions) if c.split == "test")
    used = sum(c.split == "test" for c in read_captions(dataset.captions))
    encoder = ["--encoder", "gated", "--embedding-size", "8"] if task == "vqa" else []
    assert train_main([*at(dataset), "--features", "resnet152", *encoder, *TRAIN]) == 0
    times = (
        [{}] * 2
        if task == "vqa"
        else [{"start_seconds": 1.0, "end_seconds": 2.0}, {"start_seconds": 900.0, "end_seconds": 902.0}]
    )
    fields |= {"caption": "what is being cut" if task == "vqa" else "cut bread", "split": "test"}
    if task == "segmentation":
        fields["caption"] = "cut the bread"
    extra = [
        Caption(video_id="gone", **fields, **times[0]),
        Caption(video_id=there if times[1] else "gone", **fields, **times[1]),
    ]
    add_test_captions(dataset, *extra)
    capsys.readouterr()
    assert evaluate_main([*at(dataset), "r"]) == 1
    shown = capsys.readouterr().out
    result = read_json(dataset.runs / "r" / "metrics.json")
    assert result["task"] == task and (result["num_captions"], result["num_captions_of_split"]) == (used, used + 2)
    assert sum(result["unused"].values()) == 2 and "for another reason" not in result["unused"]
    assert re.search(rf"^note: .*\b{used} of {used + 2} {called}\b.*\(", shown, re.MULTILINE)
    assert heading.format(used=used, all=used + 2) in shown
    assert any("100" in reason and f"note: {reason}\n" in shown for reason in result["not_comparable"])
    report = (dataset.runs / "r" / "report.html").read_text(encoding="utf-8")
    assert f"Only {used} of {used + 2} {called}" in report
