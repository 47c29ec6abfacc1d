"""The reader of YouCook2."""

import math

from helpers.annotation_files import LONG_TEXT, ODD_TEXT, ODD_TEXT_READ, youcook, youcook_clip, youcook_files
from helpers.needs import shared
from helpers.readers import (
    brief,
    captions_of,
    counts,
    left_out,
    refused,
    write,
)
from vlalign.preprocess.datasets import youcook2


def test_youcook2_protocols(tmp_path):
    videos = {
        "t": youcook(
            [
                youcook_clip(0, 1, 5, " cut  the onion\n"),
                youcook_clip(1, 5, 9, ODD_TEXT),
                youcook_clip(2, 9, 12, LONG_TEXT),
            ]
        ),
        "v": youcook([youcook_clip(0, 2, 4, "fry it")], "validation", "202"),
    }
    rows = '60,47,226,"stir, then wait",w\n8,3,226,boil,v\n89,67,226,serve,w\n'
    folder = write(tmp_path, youcook_files(videos, rows))
    train = [
        ("t", "train", "cut the onion", 1, 5),
        ("t", "train", ODD_TEXT_READ, 5, 9),
        ("t", "train", LONG_TEXT, 9, 12),
    ]
    captions, problems = captions_of(youcook2, folder)
    assert brief(captions) == [
        *train,
        ("v", "test", "boil", 3, 8),
        ("w", "test", "stir, then wait", 47, 60),
        ("w", "test", "serve", 67, 89),
    ]
    assert [c.task for c in captions] == ["101"] * 3 + ["226"] * 3 and problems.count == 0
    captions, problems = captions_of(youcook2, folder, "all")
    assert (
        brief(captions) == [*train, ("v", "test", "fry it", 2, 4)]
        and captions[-1].task == "202"
        and problems.count == 0
    )


def test_youcook2_all_needs_no_list(tmp_path):
    files = youcook_files({"v": youcook([youcook_clip(0, 2, 4, "fry it")], "validation")})
    del files["validation_youcook.csv"]
    captions, _ = captions_of(youcook2, write(tmp_path, files), "all")
    assert brief(captions) == [("v", "test", "fry it", 2, 4)]
    assert "validation_youcook.csv (" in refused(youcook2, tmp_path, "retrieval")


def test_youcook2_bad_rows_are_left_out(tmp_path):
    clips = [
        youcook_clip(0, 5, 1, "end before start"),
        youcook_clip(1, 1, 2, "good"),
        youcook_clip(2, 3, 3, "no length"),
        youcook_clip(3, "soon", 3, "no number"),
        youcook_clip(4, 1, 3, "  "),
        youcook_clip(5, 1, 3, None),
        youcook_clip(6, 1, 3, "half a \ud83d pair"),
        {"id": 7, "segment": [1], "sentence": "half a segment"},
        {"id": 8, "segment": [1, 2, 3], "sentence": "too much of a segment"},
        youcook_clip(9, -1, 3, "below 0"),
        youcook_clip(10, 1, math.nan, "not finite"),
    ]
    rows = "1,5,226,backwards,v\nx,5,226,no time,v\n9,5,226,,v\n9,5,226,good,v\n"
    captions, problems = captions_of(youcook2, write(tmp_path, youcook_files({"t": youcook(clips)}, rows)))
    assert [c.caption for c in captions] == ["good", "good"]
    json_file, csv_file = "youcookii_annotations_trainval.json, video 't', clip {}", "validation_youcook.csv, line {}"
    left_out(
        problems,
        (json_file.format(0), "5.0", "1.0"),
        (json_file.format(2), "3.0"),
        (json_file.format(3), "'soon'"),
        (json_file.format(4), "'  '"),
        (json_file.format(5), "None"),
        (json_file.format(6), "surrogate"),
        (json_file.format(7), "2", "1"),
        (json_file.format(8), "2"),
        (json_file.format(9), "-1.0", "3.0"),
        (json_file.format(10), "nan"),
        (csv_file.format(2), "5.0", "1.0"),
        (csv_file.format(3), "'x'"),
        (csv_file.format(4), "''"),
    )


def test_youcook2_rejects_unknown_subsets(tmp_path):
    """The file of the test videos has no sentences and must not be read as validation."""
    message = refused(youcook2, write(tmp_path, youcook_files({"x": youcook([], "testing")})), "all")
    assert "video 'x'" in message and "testing" in message


def test_youcook2_real():
    folder = shared("data/youcook2")
    captions, problems = captions_of(youcook2, folder)
    assert counts(captions) == {"train": (1333, 10_337), "test": (436, 3350)} and problems.count == 0
    captions, problems = captions_of(youcook2, folder, "all")
    assert counts(captions) == {"train": (1333, 10_337), "test": (457, 3492)} and problems.count == 0
    assert len({c.caption for c in captions if c.split == "test"}) == 3411
