"""The reader of MSR-VTT."""

import csv
import json
import re
from itertools import groupby

import pytest
from helpers.annotation_files import VTT, VTT_CAPTIONS, VTT_LISTS, VTT_SENTENCES, by_video, data_json
from helpers.needs import shared
from helpers.readers import (
    annotations_of,
    counts,
    lines,
    untimed_captions_of,
    warnings,
    write_named,
)
from vlalign.preprocess.datasets import msrvtt


@pytest.mark.parametrize("source", VTT_CAPTIONS)
@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("1k-A", {"train": (9, 180), "test": (3, 3)}),
        ("1k-A-7k", {"train": (7, 140), "test": (3, 3)}),
        ("1k-B", {"train": (3, 60), "test": (3, 3)}),
        ("full", {"train": (6, 120), "validation": (2, 40), "test": (4, 80)}),
    ],
)
def test_msrvtt_protocols_with_every_caption_file(tmp_path, protocol, expected, source):
    write_named(tmp_path, **VTT_LISTS, **VTT_CAPTIONS[source])
    captions, problems = untimed_captions_of(msrvtt, tmp_path, protocol)
    assert (counts(captions), problems) == (expected, 0)
    sizes = msrvtt.list_sizes(annotations_of(msrvtt, tmp_path), protocol)
    assert sizes == {split: videos for split, (videos, _) in expected.items()}
    of_test = [(c.video_id, c.caption) for c in captions if c.split == "test"]
    if protocol.startswith("1k-A"):
        assert of_test == [(f"video{v}", f"caption {v} of clip {v}") for v in (11, 9, 10)]  # in the order of the pairs
    elif protocol == "1k-B":
        assert of_test == [
            (f"video{v}", f"caption 0 of clip {v}") for v in (4, 5, 10)
        ]  # the caption with the smallest number
    else:
        assert of_test == [(f"video{v}", f"caption {n} of clip {v}") for v in range(8, 12) for n in range(20)]


def fold(videos):
    return lines("key,vid_key,video_id,sentence", *(f"ret{v},msr{v},video{v},caption 0 of clip {v}" for v in videos))


def test_msrvtt_missing_captions_are_one_problem_per_list(tmp_path, capsys):
    write_named(tmp_path, **VTT_LISTS)
    captions, problems = untimed_captions_of(msrvtt, tmp_path, "1k-A")
    assert counts(captions) == {"test": (3, 3)} and problems == 1
    (warning,) = warnings(capsys)
    assert warning.startswith(f"{tmp_path / 'MSRVTT_train.9k.csv'}: 9 of 9 videos ")
    assert "MSRVTT_data.json (https://github.com/ArrowLuo/" in warning
    assert msrvtt.list_sizes(annotations_of(msrvtt, tmp_path), "1k-A") == {"train": 9, "test": 3}

    write_named(tmp_path, sgn_val__json=by_video((6, 7)), MSRVTT_val_fold_2__csv=fold((1, 2, 6)))
    captions, problems = untimed_captions_of(msrvtt, tmp_path, "1k-A")
    assert counts(captions) == {"test": (3, 3), "train": (4, 42)} and problems == 1
    (warning,) = warnings(capsys)
    files = "sgn_val.json, MSRVTT_val_fold_2.csv"
    without, first_only = warning.split(files)
    assert without.startswith(f"{tmp_path / 'MSRVTT_train.9k.csv'}: 5 of 9 videos ") and " 2 of 9 videos " in first_only

    assert untimed_captions_of(msrvtt, tmp_path, "full")[1] == 2  # nothing is missing for validation
    of_train, of_test = (warning.split("txt: ")[1] for warning in warnings(capsys))
    assert of_train.startswith("4 of 6 videos ") and " 2 of 6 videos " in of_train.split(files)[1]
    assert "MSRVTT_val_fold_*.csv" in of_train
    assert of_test.startswith("4 of 4 videos ") and files in of_test and "MSRVTT_val_fold_*.csv" not in of_test


def test_msrvtt_folds_suffice_for_the_test_of_1kb(tmp_path):
    write_named(tmp_path, **VTT_LISTS, MSRVTT_val_fold_1__csv=fold((4, 5, 10)), sgn_test__json=by_video((0, 1, 9)))
    captions, problems = untimed_captions_of(msrvtt, tmp_path, "1k-B")
    assert (counts(captions), problems) == ({"train": (3, 60), "test": (3, 3)}, 0)


def test_msrvtt_captions_of_a_clip_come_from_one_file(tmp_path):
    """Files differ in wording: two files together would give nearly the same caption twice."""
    other = {video: {number: f"{text}, retold" for number, text in of.items()} for video, of in by_video(VTT).items()}
    write_named(
        tmp_path,
        **VTT_LISTS,
        MSRVTT_data__json=data_json(VTT_SENTENCES[:60]),
        sgn_train__json=other,
        MSRVTT_val_fold_1__csv=fold(VTT),
    )
    captions, problems = untimed_captions_of(msrvtt, tmp_path, "1k-A")
    retold = {
        video: {c.caption.endswith("retold") for c in group}
        for video, group in groupby(captions[:180], lambda c: c.video_id)
    }
    assert counts(captions)["train"] == (9, 180) and problems == 0
    assert retold == {f"video{v}": {v > 2} for v in range(9)}


def test_msrvtt_full_lists_can_have_other_names(tmp_path):
    write_named(tmp_path, **VTT_LISTS, **VTT_CAPTIONS["by video"])
    expected = untimed_captions_of(msrvtt, tmp_path, "full")
    for name, other in (
        ("train_list_full.txt", "MSRVTT_train.full.csv"),
        ("test_list_full.txt", "MSRVTT_test.full.csv"),
    ):
        (tmp_path / other).write_text("video_id\n" + (tmp_path / name).read_text())
        (tmp_path / name).unlink()
    assert untimed_captions_of(msrvtt, tmp_path, "full") == expected


def test_msrvtt_duplicates_in_lists_are_dropped_and_in_pairs_kept(tmp_path):
    write_named(tmp_path, **VTT_LISTS, **VTT_CAPTIONS["by video"])
    write_named(tmp_path, MSRVTT_train__7k__csv=lines("video_id", "video1", "video2", "video1"))
    write_named(
        tmp_path, MSRVTT_JSFUSION_test__csv=lines("video_id,sentence", "video9,one", "video8,two", "video9,three")
    )
    captions, problems = untimed_captions_of(msrvtt, tmp_path, "1k-A-7k")
    assert (counts(captions), problems) == ({"train": (2, 40), "test": (2, 3)}, 0)
    assert [c.caption for c in captions if c.split == "test"] == ["one", "three", "two"]


def test_msrvtt_duplicate_sentence_numbers_are_left_out(tmp_path, capsys):
    again = [{"caption": "another", "video_id": "video0", "sen_id": VTT_SENTENCES[0]["sen_id"]}]
    assert VTT_SENTENCES[0]["video_id"] == "video0"
    write_named(tmp_path, **VTT_LISTS, MSRVTT_data__json=data_json(VTT_SENTENCES + again))
    captions, problems = untimed_captions_of(msrvtt, tmp_path, "1k-A")
    assert (counts(captions)["train"], problems) == ((9, 180), 1) and "another" not in {c.caption for c in captions}
    [said] = warnings(capsys)
    assert f"sentence {again[0]['sen_id']}: " in said and "'video0'" in said


def test_msrvtt_unusable_sentences_are_left_out_and_located(tmp_path, capsys):
    bad = [
        {"caption": caption, "video_id": "video0", "sen_id": 900 + n}
        for n, caption in enumerate([" \n", None, 7, "half \ud83d"])
    ]
    write_named(tmp_path, **VTT_LISTS, MSRVTT_data__json=data_json(bad + VTT_SENTENCES))
    write_named(tmp_path, MSRVTT_JSFUSION_test__csv=lines("video_id,sentence", "video9,one", "video8,  ", ",three"))
    captions, problems = untimed_captions_of(msrvtt, tmp_path, "1k-A")
    assert (counts(captions), problems) == ({"train": (9, 180), "test": (1, 1)}, 6)
    places = [warning.split(": ")[0] for warning in warnings(capsys)]
    data, pairs = tmp_path / "MSRVTT_data.json", tmp_path / "MSRVTT_JSFUSION_test.csv"
    assert places == [*(f"{data}, sentence {n}" for n in range(900, 904)), f"{pairs}, line 3", f"{pairs}, line 4"]


@pytest.mark.slow
def test_msrvtt_real_lists_and_captions():
    folder = shared("data/msrvtt")
    sizes = {
        "1k-A": {"train": 9000, "test": 1000},
        "1k-A-7k": {"train": 7010, "test": 1000},
        "1k-B": {"train": 6656, "test": 1000},
        "full": {"train": 6513, "validation": 497, "test": 2990},
    }
    for protocol in msrvtt.DATASET.protocols:
        captions, problems = untimed_captions_of(msrvtt, folder, protocol)
        assert msrvtt.list_sizes(annotations_of(msrvtt, folder), protocol) == sizes[protocol]
        assert {split: videos for split, (videos, _) in counts(captions).items()} == sizes[protocol]
        assert problems == 1  # most training clips have only their first caption
    assert counts(captions)["validation"] == (497, 9940)
    assert counts(captions)["test"] == (2990, 59800)


@pytest.fixture(scope="module")
def pairs():
    """Return {video: sentence} of the real test pairs of 1k-A."""
    with (shared("data/msrvtt") / "MSRVTT_JSFUSION_test.csv").open(newline="") as file:
        return {row["video_id"]: row["sentence"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("protocol", ["1k-A", "1k-A-7k"])
def test_msrvtt_real_1ka_pairs_are_the_official_ones(pairs, protocol):
    captions, _ = untimed_captions_of(msrvtt, shared("data/msrvtt"), protocol)
    assert [(c.video_id, c.caption) for c in captions if c.split == "test"] == list(pairs.items())
    assert not {c.video_id for c in captions if c.split == "train"} & set(pairs)


def test_msrvtt_real_1ka_pairs_are_the_captions_that_jsfusion_drew(pairs):
    folder = shared("data/msrvtt")
    drawn = json.loads((folder / "jsfusion_val_caption_idx.json").read_text())
    of_video = {}
    for caption in untimed_captions_of(msrvtt, folder, "full")[0]:
        if caption.split == "test":
            of_video.setdefault(caption.video_id, []).append(caption.caption)
    drawn_words = {video: re.findall(r"\w+", of_video[video][drawn[video]]) for video in pairs}
    assert drawn_words == {video: re.findall(r"\w+", sentence) for video, sentence in pairs.items()}
    # All but 12 are equal letter by letter; the pairs have no punctuation.
    assert sum(of_video[video][drawn[video]] == sentence for video, sentence in pairs.items()) == 988


def test_msrvtt_real_1kb_tests_the_first_caption():
    folder = shared("data/msrvtt")
    files = [json.loads((folder / name).read_text()) for name in ("sgn_val.json", "sgn_test.json")]
    first = {
        v: " ".join(min(of.items(), key=lambda item: int(item[0]))[1].split())
        for file in files
        for v, of in file.items()
    }
    tested = {c.video_id: c.caption for c in untimed_captions_of(msrvtt, folder, "1k-B")[0] if c.split == "test"}
    known = first.keys() & tested.keys()
    assert len(known) == 896 and all(
        tested[video] == first[video] for video in known
    )  # the other 104 are only in the folds
