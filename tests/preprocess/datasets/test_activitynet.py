"""The reader of ActivityNet Captions."""

import json

import pytest
from helpers.annotation_files import ODD_TEXT, ODD_TEXT_READ
from helpers.needs import shared
from helpers.readers import (
    brief,
    captions_of,
    counts,
    left_out,
    refused,
    write,
)
from vlalign.preprocess.datasets import activitynet


def activitynet_files(train, test=None):
    return {"train.json": train, "val_1.json": test or {}, "val_2.json": {"v_other": {}}}


def test_activitynet_protocols(tmp_path):
    train = {
        "v_a": {
            "duration": 70.28999999999999,
            "timestamps": [[20, 30.5], [0, 70.29], [20, 25], [60, 70.3]],
            "sentences": ["Third to begin.", " First.", " Fourth,  it stands later in the file.", ODD_TEXT],
        }
    }
    test = {"v_b": {"duration": 5, "timestamps": [[0.5, 5]], "sentences": [" Alone."]}}
    folder = write(tmp_path, activitynet_files(train, test))
    captions, problems = captions_of(activitynet, folder)
    assert brief(captions) == [
        ("v_a", "train", f"Third to begin. First. Fourth, it stands later in the file. {ODD_TEXT_READ}", None, None),
        ("v_b", "test", "Alone.", None, None),
    ]
    assert problems.count == 0 and not problems.changed
    captions, problems = captions_of(activitynet, folder, "clips")
    assert brief(captions) == [
        ("v_a", "train", "Third to begin.", 20, 30.5),
        ("v_a", "train", "First.", 0, 70.29),  # not cut, although the duration is written as 70.28999999999999
        ("v_a", "train", "Fourth, it stands later in the file.", 20, 25),
        ("v_a", "train", ODD_TEXT_READ, 60, 70.29),
        ("v_b", "test", "Alone.", 0.5, 5),
    ]
    assert problems.count == 0 and dict(problems.changed) == {"ends after the video, cut at its duration": 1}


BAD_SENTENCES = {
    "duration": 50,
    "timestamps": [[9, 5], [4, 4], ["x", 5], [60, 70], [1, 5], [7, 9], [2, 3]],
    "sentences": ["Backwards.", "No length.", "No time.", "After the video.", "", "Good.", None],
}


def test_activitynet_bad_sentences_are_left_out(tmp_path):
    folder = write(
        tmp_path,
        activitynet_files({"v_a": BAD_SENTENCES, "v_none": BAD_SENTENCES | {"timestamps": [], "sentences": []}}),
    )
    captions, problems = captions_of(activitynet, folder, "clips")
    assert brief(captions) == [("v_a", "train", "Good.", 7, 9)] and not problems.changed
    at = "train.json, video 'v_a', sentence {}:"
    left_out(
        problems,
        (at.format(1), "9.0", "5.0"),
        (at.format(2), "4.0"),
        (at.format(3), "'x'"),
        (at.format(4), "60.0", "50.0"),
        (at.format(5), "''"),
        (at.format(7), "None"),
    )


def test_activitynet_paragraphs_need_no_times(tmp_path):
    empty = {"duration": 5, "timestamps": [[0, 1]], "sentences": [" "]}
    captions, problems = captions_of(
        activitynet, write(tmp_path, activitynet_files({"v_a": BAD_SENTENCES, "v_empty": empty}))
    )
    assert brief(captions) == [("v_a", "train", "Backwards. No length. No time. After the video. Good.", None, None)]
    left_out(problems, ("sentence 5:", "''"), ("sentence 7:", "None"), ("'v_empty', sentence 1:", "' '"))


@pytest.mark.parametrize("protocol", activitynet.DATASET.protocols)
def test_activitynet_sentences_without_times_are_refused(tmp_path, protocol):
    video = {"duration": 50, "timestamps": [[1, 2]], "sentences": ["One.", "Two."]}
    message = refused(activitynet, write(tmp_path, activitynet_files({"v_a": video})), protocol)
    assert "train.json, video 'v_a'" in message


def test_activitynet_real():
    folder = shared("data/activitynet")
    captions, problems = captions_of(activitynet, folder)
    assert counts(captions) == {"train": (10_009, 10_009), "test": (4917, 4917)} and problems.count == 0
    sentences = {
        video_id: video["sentences"]
        for name in ("train", "val_1")
        for video_id, video in json.loads((folder / f"{name}.json").read_text()).items()
    }
    assert sum(map(len, sentences.values())) == 37_421 + 17_505
    for caption in captions:
        assert "  " not in caption.caption
        assert caption.caption.split() == " ".join(sentences[caption.video_id]).split()
    clips, problems = captions_of(activitynet, folder, "clips")
    assert counts(clips) == {"train": (10_009, 37_421 - 4), "test": (4917, 17_505)}
    assert problems.count == 4 and sum(problems.changed.values()) == 34
