"""Readers of MSR-VTT, MSVD, LSMDC and their questions: synthetic rows in the published shapes, and the real files where they are."""

import csv
import json
import math
import random
import re
from collections import Counter
from itertools import groupby

import pytest
from helpers.shared import shared
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vlalign.preprocess.datasets import lsmdc, msrvtt, msrvtt_qa, msvd, msvd_qa
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems

READERS = {"msrvtt": msrvtt, "msvd": msvd, "lsmdc": lsmdc, "msrvtt_qa": msrvtt_qa, "msvd_qa": msvd_qa}
ODD_TEXT = "مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩‍🍳 naïve \u2028 “quoted”\tend"
ODD_TEXT_READ = "مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩‍🍳 naïve “quoted” end"


def annotations_of(reader, folder):
    return Annotations(folder, reader.DATASET.published, Problems())


def captions_of(reader, folder, protocol=None):
    """(captions, problems) of all files in ``folder``; those of a video must come together in each split."""
    annotations = annotations_of(reader, folder)
    captions = list(reader.DATASET.read(annotations, reader.DATASET.protocols[0] if protocol is None else protocol))
    runs = [key for key, _ in groupby((c.split, c.video_id) for c in captions)]
    assert len(runs) == len(set(runs))
    assert {c.split for c in captions} <= {"train", "validation", "test"}
    assert all(c.start_seconds is None and c.video_id and not c.words for c in captions)
    return captions, annotations.problems.count


def warnings(capsys):
    return [line.removeprefix("warning: ") for line in capsys.readouterr().err.splitlines()]


def counts(captions):
    """{split: (videos, captions)}"""
    return {
        split: (len({c.video_id for c in captions if c.split == split}), number)
        for split, number in Counter(c.split for c in captions).items()
    }


def write(folder, **files):
    """Files by name with ``__`` for the dot: text and bytes as they are, anything else as JSON."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8", newline="")
    return folder


def lines(*rows):
    return "".join(f"{row}\n" for row in rows)


# MSR-VTT

VTT = range(12)
SENTENCES = [
    {"caption": f"caption {n} of clip {v}", "video_id": f"video{v}", "sen_id": 20 * v + n}
    for v in VTT
    for n in reversed(range(20))
]
VTT_LISTS = {
    "MSRVTT_train__9k__csv": lines("video_id", *(f"video{v}" for v in range(9))),
    "MSRVTT_train__7k__csv": lines("video_id", *(f"video{v}" for v in range(7))),
    "MSRVTT_JSFUSION_test__csv": lines(
        "key,vid_key,video_id,sentence", *(f"ret{v},msr{v},video{v},caption {v} of clip {v}" for v in (11, 9, 10))
    ),
    "train_list_miech__txt": lines(*(f"video{v}" for v in (0, 1, 9))),
    "test_list_miech__txt": "\n".join(f"video{v}" for v in (4, 5, 10)),  # the real ones have no newline at the end
    "train_list_full__txt": lines(*(f"video{v}" for v in range(6))),
    "val_list_full__txt": lines("video6", "video7"),
    "test_list_full__txt": lines(*(f"video{v}" for v in range(8, 12))),
}


def data_json(sentences):
    return {"videos": [{"video_id": f"video{v}", "split": "train", "url": "?"} for v in VTT], "sentences": sentences}


def by_video(videos):
    return {
        f"video{v}": {str(s["sen_id"]): s["caption"] for s in SENTENCES if s["video_id"] == f"video{v}"} for v in videos
    }


def shuffled():
    rows = list(SENTENCES)
    random.Random(1).shuffle(rows)
    return rows


VTT_CAPTIONS = {
    "MSRVTT_data.json": {"MSRVTT_data__json": data_json(SENTENCES)},
    "MSRVTT_data.json, shuffled": {"MSRVTT_data__json": data_json(shuffled())},
    "the challenge's": {
        "train_val_videodatainfo__json": data_json(SENTENCES[:160]),
        "test_videodatainfo__json": data_json(SENTENCES[160:]),
    },
    "by video": {
        "sgn_train__json": by_video(range(6)),
        "sgn_val__json": by_video((6, 7)),
        "sgn_test__json": by_video(range(8, 12)),
    },
}


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
def test_msrvtt_protocols_from_every_caption_file(tmp_path, protocol, expected, source):
    write(tmp_path, **VTT_LISTS, **VTT_CAPTIONS[source])
    captions, problems = captions_of(msrvtt, tmp_path, protocol)
    assert (counts(captions), problems) == (expected, 0)
    sizes = msrvtt.list_sizes(annotations_of(msrvtt, tmp_path), protocol)
    assert sizes == {split: videos for split, (videos, _) in expected.items()}
    of_test = [(c.video_id, c.caption) for c in captions if c.split == "test"]
    if protocol.startswith("1k-A"):
        assert of_test == [(f"video{v}", f"caption {v} of clip {v}") for v in (11, 9, 10)]  # in the order of the pairs
    elif protocol == "1k-B":
        assert of_test == [
            (f"video{v}", f"caption 0 of clip {v}") for v in (4, 5, 10)
        ]  # of 20 in any order, the first by number
    else:
        assert of_test == [(f"video{v}", f"caption {n} of clip {v}") for v in range(8, 12) for n in range(20)]


def fold(videos):
    return lines("key,vid_key,video_id,sentence", *(f"ret{v},msr{v},video{v},caption 0 of clip {v}" for v in videos))


def test_msrvtt_clips_that_no_file_has_are_one_problem_a_list(tmp_path, capsys):
    write(tmp_path, **VTT_LISTS)
    captions, problems = captions_of(msrvtt, tmp_path, "1k-A")
    assert counts(captions) == {"test": (3, 3)} and problems == 1
    (warning,) = warnings(capsys)
    said = "9 of 9 videos have no captions in any file there; needs MSRVTT_data.json (https://github.com/ArrowLuo/"
    assert warning.startswith(f"{tmp_path / 'MSRVTT_train.9k.csv'}: {said}")
    assert msrvtt.list_sizes(annotations_of(msrvtt, tmp_path), "1k-A") == {"train": 9, "test": 3}

    write(tmp_path, sgn_val__json=by_video((6, 7)), MSRVTT_val_fold_2__csv=fold((1, 2, 6)))
    captions, problems = captions_of(msrvtt, tmp_path, "1k-A")
    assert counts(captions) == {"test": (3, 3), "train": (4, 42)} and problems == 1
    (warning,) = warnings(capsys)
    assert (
        "5 of 9 videos have no captions in sgn_val.json, MSRVTT_val_fold_2.csv and 2 of 9 videos have only their first"
        in warning
    )

    assert captions_of(msrvtt, tmp_path, "full")[1] == 2  # validation is whole
    said = [warning.split("; needs MSRVTT_data.json")[0].split("txt: ")[1] for warning in warnings(capsys)]
    files = "sgn_val.json, MSRVTT_val_fold_2.csv"
    folds = "2 of 6 videos have only their first caption, from MSRVTT_val_fold_*.csv"
    assert said == [
        f"4 of 6 videos have no captions in {files} and {folds}",
        f"4 of 4 videos have no captions in {files}",
    ]


def test_msrvtt_folds_are_all_that_the_test_of_1kb_needs(tmp_path):
    write(tmp_path, **VTT_LISTS, MSRVTT_val_fold_1__csv=fold((4, 5, 10)), sgn_test__json=by_video((0, 1, 9)))
    captions, problems = captions_of(msrvtt, tmp_path, "1k-B")
    assert (counts(captions), problems) == ({"train": (3, 60), "test": (3, 3)}, 0)


def test_msrvtt_captions_of_a_clip_come_from_one_file(tmp_path):
    """Copies differ in their wording: both would be nearly the same caption twice."""
    other = {video: {number: f"{text}, retold" for number, text in of.items()} for video, of in by_video(VTT).items()}
    write(
        tmp_path,
        **VTT_LISTS,
        MSRVTT_data__json=data_json(SENTENCES[:60]),
        sgn_train__json=other,
        MSRVTT_val_fold_1__csv=fold(VTT),
    )
    captions, problems = captions_of(msrvtt, tmp_path, "1k-A")
    retold = {
        video: {c.caption.endswith("retold") for c in group}
        for video, group in groupby(captions[:180], lambda c: c.video_id)
    }
    assert counts(captions)["train"] == (9, 180) and problems == 0
    assert retold == {f"video{v}": {v > 2} for v in range(9)}


def test_msrvtt_lists_of_the_full_split_are_also_known_by_other_names(tmp_path):
    write(tmp_path, **VTT_LISTS, **VTT_CAPTIONS["by video"])
    expected = captions_of(msrvtt, tmp_path, "full")
    for name, other in (
        ("train_list_full.txt", "MSRVTT_train.full.csv"),
        ("test_list_full.txt", "MSRVTT_test.full.csv"),
    ):
        (tmp_path / other).write_text("video_id\n" + (tmp_path / name).read_text())
        (tmp_path / name).unlink()
    assert captions_of(msrvtt, tmp_path, "full") == expected


def test_msrvtt_a_clip_twice_in_a_list_has_its_captions_once_and_a_second_pair_is_kept(tmp_path):
    write(tmp_path, **VTT_LISTS, **VTT_CAPTIONS["by video"])
    write(tmp_path, MSRVTT_train__7k__csv=lines("video_id", "video1", "video2", "video1"))
    write(tmp_path, MSRVTT_JSFUSION_test__csv=lines("video_id,sentence", "video9,one", "video8,two", "video9,three"))
    captions, problems = captions_of(msrvtt, tmp_path, "1k-A-7k")
    assert (counts(captions), problems) == ({"train": (2, 40), "test": (2, 3)}, 0)
    assert [c.caption for c in captions if c.split == "test"] == ["one", "three", "two"]


def test_msrvtt_a_sentence_number_that_comes_again_is_left_out(tmp_path, capsys):
    again = [{"caption": "another", "video_id": "video0", "sen_id": SENTENCES[0]["sen_id"]}]
    assert SENTENCES[0]["video_id"] == "video0"
    write(tmp_path, **VTT_LISTS, MSRVTT_data__json=data_json(SENTENCES + again))
    captions, problems = captions_of(msrvtt, tmp_path, "1k-A")
    assert (counts(captions)["train"], problems) == ((9, 180), 1) and "another" not in {c.caption for c in captions}
    assert (
        f"sentence {again[0]['sen_id']}: the second of video 'video0' with this number; left out" in warnings(capsys)[0]
    )


def test_msrvtt_bad_sentences_are_left_out_with_their_place(tmp_path, capsys):
    bad = [
        {"caption": caption, "video_id": "video0", "sen_id": 900 + n}
        for n, caption in enumerate([" \n", None, 7, "half \ud83d"])
    ]
    write(tmp_path, **VTT_LISTS, MSRVTT_data__json=data_json(bad + SENTENCES))
    write(tmp_path, MSRVTT_JSFUSION_test__csv=lines("video_id,sentence", "video9,one", "video8,  ", ",three"))
    captions, problems = captions_of(msrvtt, tmp_path, "1k-A")
    assert (counts(captions), problems) == ({"train": (9, 180), "test": (1, 1)}, 6)
    places = [warning.split(": ")[0] for warning in warnings(capsys)]
    data, pairs = tmp_path / "MSRVTT_data.json", tmp_path / "MSRVTT_JSFUSION_test.csv"
    assert places == [*(f"{data}, sentence {n}" for n in range(900, 904)), f"{pairs}, line 3", f"{pairs}, line 4"]


def test_msrvtt_real_lists_and_captions():
    folder = shared("data/msrvtt")
    sizes = {
        "1k-A": {"train": 9000, "test": 1000},
        "1k-A-7k": {"train": 7010, "test": 1000},
        "1k-B": {"train": 6656, "test": 1000},
        "full": {"train": 6513, "validation": 497, "test": 2990},
    }
    for protocol in msrvtt.DATASET.protocols:
        captions, problems = captions_of(msrvtt, folder, protocol)
        assert msrvtt.list_sizes(annotations_of(msrvtt, folder), protocol) == sizes[protocol]
        assert {split: videos for split, (videos, _) in counts(captions).items()} == sizes[protocol]
        assert problems == 1  # of most clips in the training list there is the first caption only
    assert counts(captions)["validation"] == (497, 9940)
    assert counts(captions)["test"] == (2990, 59800)


@pytest.fixture(scope="module")
def pairs():
    """{video: sentence} of the real 1k-A test, read plainly."""
    with (shared("data/msrvtt") / "MSRVTT_JSFUSION_test.csv").open(newline="") as file:
        return {row["video_id"]: row["sentence"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("protocol", ["1k-A", "1k-A-7k"])
def test_msrvtt_real_1ka_pairs_are_the_official_ones(pairs, protocol):
    captions, _ = captions_of(msrvtt, shared("data/msrvtt"), protocol)
    assert [(c.video_id, c.caption) for c in captions if c.split == "test"] == list(pairs.items())
    assert not {c.video_id for c in captions if c.split == "train"} & set(pairs)


def test_msrvtt_real_1ka_pairs_are_the_captions_that_jsfusion_drew(pairs):
    folder = shared("data/msrvtt")
    drawn = json.loads((folder / "jsfusion_val_caption_idx.json").read_text())
    of_video = {}
    for caption in captions_of(msrvtt, folder, "full")[0]:
        if caption.split == "test":
            of_video.setdefault(caption.video_id, []).append(caption.caption)
    drawn_words = {video: re.findall(r"\w+", of_video[video][drawn[video]]) for video in pairs}
    assert drawn_words == {video: re.findall(r"\w+", sentence) for video, sentence in pairs.items()}
    # Letter by letter all but 12: the pairs have no punctuation.
    assert sum(of_video[video][drawn[video]] == sentence for video, sentence in pairs.items()) == 988


def test_msrvtt_real_1kb_tests_the_first_caption():
    folder = shared("data/msrvtt")
    files = [json.loads((folder / name).read_text()) for name in ("sgn_val.json", "sgn_test.json")]
    first = {
        v: " ".join(min(of.items(), key=lambda item: int(item[0]))[1].split())
        for file in files
        for v, of in file.items()
    }
    tested = {c.video_id: c.caption for c in captions_of(msrvtt, folder, "1k-B")[0] if c.split == "test"}
    known = first.keys() & tested.keys()
    assert len(known) == 896 and all(
        tested[video] == first[video] for video in known
    )  # the other 104 are in the folds only


# MSVD

MSVD_LISTS = {
    "train_list__txt": lines("-aB_1_5", "x_y_2_3"),
    "val_list__txt": lines("q_0_9"),
    "test_list__txt": lines("z_10_20"),
}
MSVD_CAPTIONS = {
    "z_10_20": ["a cat runs", "a cat runs", "somebody's cat"],
    "-aB_1_5": ["a man cooks"],
    "x_y_2_3": ["rice is boiled", "a man cooks"],
    "q_0_9": ["a dog barks"],
    "other_1_2": ["of no list"],
}


def corpus(captions, *more):
    header = "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description"
    rows = []
    for video, sentences in captions.items():
        name, start, end = video.rsplit("_", 2)
        rows += [f'{name},{start},{end},7,clean,12,English,"{sentence}"' for sentence in sentences]
        rows.append(f"{name},{start},{end},8,unverified,12,German,ein Satz")
    return lines(header, *rows, *more)


@pytest.mark.parametrize("form", ["json", "csv", "csv in another order"])
def test_msvd_keeps_every_english_caption_of_its_lists(tmp_path, form):
    write(tmp_path, **MSVD_LISTS)
    if form == "json":
        write(tmp_path, captions_msvd__json=MSVD_CAPTIONS)
    elif form == "csv":
        write(tmp_path, video_corpus__csv=corpus(MSVD_CAPTIONS))
    else:
        header, *rows = corpus(MSVD_CAPTIONS).splitlines()
        write(tmp_path, video_corpus__csv=lines(header, *rows[::2], *rows[1::2]))
    captions, problems = captions_of(msvd, tmp_path)
    assert problems == 0
    assert [(c.split, c.video_id) for c in captions] == [
        *[("train", "-aB_1_5"), ("train", "x_y_2_3"), ("train", "x_y_2_3"), ("validation", "q_0_9")],
        *[("test", "z_10_20")] * 3,
    ]
    for video in {c.video_id for c in captions}:
        assert sorted(c.caption for c in captions if c.video_id == video) == sorted(MSVD_CAPTIONS[video])


def test_msvd_captions_of_the_papers_go_before_the_corpus(tmp_path):
    """The corpus has the same sentences otherwise written, and more of them."""
    write(
        tmp_path, **MSVD_LISTS, captions_msvd__json=MSVD_CAPTIONS, video_corpus__csv=corpus({"q_0_9": ["A dog barks!"]})
    )
    captions, problems = captions_of(msvd, tmp_path)
    assert (len(captions), problems) == (7, 0) and "A dog barks!" not in {c.caption for c in captions}


def test_msvd_reports_clips_without_captions_and_bad_captions(tmp_path, capsys):
    changed = {video: sentences for video, sentences in MSVD_CAPTIONS.items() if video != "q_0_9"} | {
        "z_10_20": ["a cat", "", None]
    }
    write(tmp_path, **MSVD_LISTS, captions_msvd__json=changed)
    captions, problems = captions_of(msvd, tmp_path)
    assert (counts(captions), problems) == ({"train": (2, 3), "test": (1, 1)}, 3)
    missing, empty, none = warnings(capsys)
    path = tmp_path / "captions_msvd.json"
    assert missing == f"{tmp_path / 'val_list.txt'}: 1 of 1 videos have no captions in {path}"
    assert empty.startswith(f"{path}, video 'z_10_20', caption 2: ") and none.startswith(
        f"{path}, video 'z_10_20', caption 3: "
    )

    (tmp_path / "captions_msvd.json").unlink()
    write(tmp_path, video_corpus__csv=corpus(MSVD_CAPTIONS, "q,0,9,7,clean,12,English,  "))
    captions, problems = captions_of(msvd, tmp_path)
    assert (len(captions), problems) == (7, 1)
    assert warnings(capsys)[0].startswith(f"{tmp_path / 'video_corpus.csv'}, line 15: ")


def test_msvd_real_counts():
    captions, problems = captions_of(msvd, shared("data/msvd"))
    assert (counts(captions), problems) == (
        {"train": (1200, 48774), "validation": (100, 4290), "test": (670, 27763)},
        0,
    )
    assert len({c.caption for c in captions if c.split == "test"}) == 22285


# LSMDC


def movie(*rows):
    return lines(
        *(
            "\t".join((clip, "00.00.01.000", "00.00.02.500", "00.00.01.000", "00.00.03.000", text))
            for clip, text in rows
        )
    )


LSMDC_FILES = {
    "LSMDC16_annos_training__csv": movie(
        ("0001_A_Movie_00.00.01.000-00.00.02.500", "SOMEONE opens a door."),
        ("3002_OTHER_00.00.01.000-00.00.02.500", '"Stop," says a sign, and SOMEONE\'s car stops.'),
        ("0001_A_Movie_00.00.01.000-00.00.02.500", "He goes in."),
    ),
    "LSMDC16_annos_val__csv": movie(("1003_Third_00.00.01.000-00.00.02.500", 'A "quote in the middle.')),
    "LSMDC16_challenge_1000_publictect__csv": movie(
        ("1004_Fourth_00.00.01.000-00.00.02.500", "First line, no header."),
        ("1004_Fourth_00.00.05.000-00.00.07.500", "Second."),
    ),
}


def test_lsmdc(tmp_path):
    captions, problems = captions_of(lsmdc, write(tmp_path, **LSMDC_FILES))
    assert problems == 0
    assert [(c.split, c.video_id, c.caption) for c in captions] == [
        ("train", "0001_A_Movie_00.00.01.000-00.00.02.500", "SOMEONE opens a door."),
        ("train", "0001_A_Movie_00.00.01.000-00.00.02.500", "He goes in."),
        ("train", "3002_OTHER_00.00.01.000-00.00.02.500", '"Stop," says a sign, and SOMEONE\'s car stops.'),
        ("validation", "1003_Third_00.00.01.000-00.00.02.500", 'A "quote in the middle.'),
        ("test", "1004_Fourth_00.00.01.000-00.00.02.500", "First line, no header."),
        ("test", "1004_Fourth_00.00.05.000-00.00.07.500", "Second."),
    ]


def test_lsmdc_bad_rows_are_left_out_with_their_line(tmp_path, capsys):
    write(
        tmp_path,
        **LSMDC_FILES | {"LSMDC16_annos_val__csv": "\n" + movie(("a", " "), ("", "text"), ("b", "kept")) + "\n\n"},
    )
    captions, problems = captions_of(lsmdc, tmp_path)
    assert ([c.video_id for c in captions if c.split == "validation"], problems) == (["b"], 2)
    assert sorted(warning.split(": ")[0] for warning in warnings(capsys)) == [
        f"{tmp_path / 'LSMDC16_annos_val.csv'}, line {line}" for line in (2, 3)
    ]


# Questions

QUESTIONS = [
    (video, question, answer)
    for video in (3, 12, 7)
    for question, answer in (
        ("what is a man cooking?", "rice"),
        ("who cooks?", "man"),
        ("How many dogs run?", "two"),
        ("when does it rain?", "night"),
        ("where is the dog?", "park"),
        ("does it rain?", "yes"),
    )
]
KINDS = ["what", "who", "how", "when", "where", None]
SPLITS = {"train": "train", "val": "validation", "test": "test"}


def official(questions):
    return [
        {"answer": answer, "category_id": 14, "id": number, "question": question, "video_id": video}
        for number, (video, question, answer) in enumerate(questions)
    ]


def question_files(form, questions=QUESTIONS, splits=SPLITS):
    files = {}
    for split in splits:
        rows = [(video + 100 * list(SPLITS).index(split), question, answer) for video, question, answer in questions]
        if form == "json":
            files[f"{split}_qa__json"] = official(rows)
        elif form == "jsonl":
            files[f"{split}__jsonl"] = lines(
                *(
                    json.dumps({"answer": a, "question": q, "video_id": f"video{v}", "answer_type": q.split()[0]})
                    for v, q, a in rows
                )
            )
        else:
            files[f"hqga_{split}__csv"] = lines(
                "video,question,answer,qid,type", *(f"{v},{q},{a},{v},10" for v, q, a in rows)
            )
    return files


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_msrvtt_qa_reads_every_form_alike(tmp_path, form):
    captions, problems = captions_of(msrvtt_qa, write(tmp_path, **question_files(form)))
    assert problems == 0
    assert counts(captions) == dict.fromkeys(SPLITS.values(), (3, 18))
    got = {(c.split, c.video_id, c.caption, c.answer, c.question_type) for c in captions}
    assert got == {
        (split, f"video{video + 100 * number}", question, answer, KINDS[n % 6])
        for number, split in enumerate(SPLITS.values())
        for n, (video, question, answer) in enumerate(QUESTIONS)
    }


def test_msrvtt_qa_says_once_which_split_is_absent(tmp_path, capsys):
    write(tmp_path, **question_files("json", splits=("val", "test")))
    captions, problems = captions_of(msrvtt_qa, tmp_path)
    assert (counts(captions), problems) == ({"validation": (3, 18), "test": (3, 18)}, 1)
    source = "https://data.mendeley.com/datasets/bvxhs33bw6, by https://github.com/xudejing/video-question-answering"
    assert warnings(capsys) == [f"{tmp_path}: no train_qa.json ({source}); no questions for train"]


def test_msrvtt_qa_takes_the_form_with_the_most_splits_and_then_the_authors(tmp_path):
    """Forms differ in their question marks: splits of different ones are only mixed where nothing else is there."""

    def marked(question):
        return [(v, question, a) for v, _, a in QUESTIONS[:2]]

    write(
        tmp_path,
        **question_files("jsonl", marked("what?"), ["val"]),
        **question_files("csv", marked("what"), ["val", "test"]),
    )
    captions, _ = captions_of(msrvtt_qa, tmp_path)
    assert {(c.split, c.caption) for c in captions} == {("validation", "what"), ("test", "what")}
    write(tmp_path, **question_files("jsonl", marked("what?"), ["train"]))
    write(tmp_path, **question_files("json", marked("what is that?"), ["val", "test"]))
    captions, problems = captions_of(msrvtt_qa, tmp_path)
    assert {(c.split, c.caption) for c in captions} == {
        ("train", "what?"),
        ("validation", "what is that?"),
        ("test", "what is that?"),
    }
    assert problems == 0


BAD_QUESTIONS = [
    (3, "", "rice"),
    (3, None, "rice"),
    (3, "what?", ""),
    (3, "what?", None),
    (3, "what?", 5),
    (3, "what?", "half \ud83d"),
    (-1, "what?", "rice"),
    ("", "what?", "rice"),
    (None, "what?", "rice"),
    ([3], "what?", "rice"),
    (True, "what?", "rice"),
    (math.inf, "what?", "rice"),
]


@pytest.mark.parametrize("reader", [msrvtt_qa, msvd_qa])
def test_bad_questions_are_left_out_with_their_number(tmp_path, capsys, reader):
    write(tmp_path, **question_files("json"), youtube_mapping__txt=MAPPING)
    write(tmp_path, train_qa__json=official(QUESTIONS[:2] + BAD_QUESTIONS + QUESTIONS[2:]))
    captions, problems = captions_of(reader, tmp_path)
    assert counts(captions)["train"] == (3, 18) and problems == len(BAD_QUESTIONS)
    places = {warning.split(": ")[0] for warning in warnings(capsys)}
    assert places == {f"{tmp_path / 'train_qa.json'}, question {n}" for n in range(2, 2 + len(BAD_QUESTIONS))}


MAPPING = lines(*(f"clip-_{v}_{v}_{v + 4} vid{v}" for v in range(300)))


def test_msvd_qa_names_clips_as_msvd_does(tmp_path):
    captions, problems = captions_of(msvd_qa, write(tmp_path, **question_files("json"), youtube_mapping__txt=MAPPING))
    assert (counts(captions), problems) == (dict.fromkeys(SPLITS.values(), (3, 18)), 0)
    assert {c.video_id for c in captions if c.split == "validation"} == {
        f"clip-_{v}_{v}_{v + 4}" for v in (103, 112, 107)
    }
    assert {(c.question_type, c.answer) for c in captions} == {
        (KINDS[n % 6], a) for n, (_, _, a) in enumerate(QUESTIONS)
    }


def test_msvd_qa_clips_without_a_name_are_reported(tmp_path, capsys):
    write(tmp_path, **question_files("json", QUESTIONS[:1]), youtube_mapping__txt=lines("a_1_2 vid3", "b_1_2 vid103"))
    captions, problems = captions_of(msvd_qa, tmp_path)
    assert ([c.video_id for c in captions], problems) == (["a_1_2", "b_1_2"], 1)
    said = f"{tmp_path / 'test_qa.json'}, question 0: video 203 is not in {tmp_path / 'youtube_mapping.txt'}; left out"
    assert warnings(capsys) == [said]


def test_msrvtt_qa_real_counts():
    captions, problems = captions_of(msrvtt_qa, shared("data/msrvtt_qa"))
    assert (counts(captions), problems) == (
        {"validation": (497, 12278), "test": (2990, 72821)},
        1,
    )  # no training questions there
    kinds = Counter(c.question_type for c in captions if c.split == "test")
    assert kinds == {"what": 49869, "who": 20385, "how": 1640, "when": 677, "where": 250}
    with (shared("data/msrvtt_qa") / "hqga_test.csv").open(newline="") as file:
        rows = Counter((f"video{row['video']}", row["question"], row["answer"]) for row in csv.DictReader(file))
    assert Counter((c.video_id, c.caption, c.answer) for c in captions if c.split == "test") == rows


def test_msvd_qa_real_counts(tmp_path):
    for path in (
        *(shared("data/msvd_qa") / name for name in msvd_qa.OFFICIAL),
        shared("data/msvd/youtube_mapping.txt"),
    ):
        (tmp_path / path.name).symlink_to(path)
    captions, problems = captions_of(msvd_qa, tmp_path)
    assert (counts(captions), problems) == (
        {"train": (1161, 30933), "validation": (245, 6415), "test": (504, 13157)},
        0,
    )
    assert Counter(c.question_type for c in captions if c.split == "test") == dict(
        what=8149, who=4552, how=370, when=58, where=28
    )
    assert {c.video_id for c in captions} <= set(json.loads(shared("data/msvd/captions_msvd.json").read_text()))


# What all have in common

WHOLE = {
    "msrvtt": VTT_LISTS | VTT_CAPTIONS["MSRVTT_data.json"],
    "msvd": MSVD_LISTS | {"captions_msvd__json": MSVD_CAPTIONS},
    "lsmdc": LSMDC_FILES,
    "msrvtt_qa": question_files("json"),
    "msvd_qa": question_files("json") | {"youtube_mapping__txt": MAPPING},
}


@pytest.mark.parametrize("name", READERS)
def test_an_empty_folder_lists_what_is_missing_and_from_where(tmp_path, name):
    reader = READERS[name]
    for protocol in reader.DATASET.protocols:
        with pytest.raises(UserError) as refused:
            captions_of(reader, tmp_path, protocol)
        message = str(refused.value)
        assert message.startswith(f"{tmp_path}: missing ") and "\n" not in message
        assert len([file for file in reader.DATASET.published if f"{file} (http" in message]) >= 2


@pytest.mark.parametrize("name", READERS)
def test_files_may_lie_in_folders_and_begin_with_a_mark(tmp_path, name):
    expected = captions_of(READERS[name], write(tmp_path / "plain", **WHOLE[name]))
    for number, path in enumerate(sorted((tmp_path / "plain").iterdir())):
        folder = tmp_path / "nested" / f"part{number}"
        folder.mkdir(parents=True)
        (folder / path.name).write_text(
            path.read_text(encoding="utf-8").replace("\n", "\r\n"), encoding="utf-8-sig", newline=""
        )
    assert captions_of(READERS[name], tmp_path / "nested") == expected
    assert expected[0] and expected[1] == 0


JSON_FILES = {
    ("msrvtt", "MSRVTT_data__json"),
    ("msvd", "captions_msvd__json"),
    ("msrvtt_qa", "val_qa__json"),
    ("msvd_qa", "test_qa__json"),
}
OTHER_SHAPES = [
    *("", "{", "[]", "{}", "7", "null", '"text"', "[7]", '{"a": 7}', '[{"a": 7}]', "[" * 100_000),
    *('{"sentences": 7}', '{"sentences": [{}]}', '{"video1": "text"}', '{"video1": {"a": "text"}}'),
    '{"sentences": [{"video_id": [], "sen_id": 1, "caption": "a"}]}',
    '{"sentences": [{"video_id": "video0", "sen_id": 1e999, "caption": "a"}]}',
]


@pytest.mark.parametrize("shape", range(len(OTHER_SHAPES)))
@pytest.mark.parametrize(("name", "file"), sorted(JSON_FILES))
def test_json_of_another_shape_is_one_line_or_has_no_captions(tmp_path, capsys, name, file, shape):
    write(tmp_path, **WHOLE[name] | {file: OTHER_SHAPES[shape]})
    before = write(tmp_path / "whole", **WHOLE[name])
    whole = len(captions_of(READERS[name], before)[0])
    for path in before.iterdir():
        path.unlink()
    try:
        captions, problems = captions_of(READERS[name], tmp_path)
    except UserError as error:
        assert str(tmp_path / file.replace("__", ".")) in str(error) and "\n" not in str(error)
    else:  # nothing in it is wrong, but what it should have is not there
        assert len(captions) < whole and (problems or OTHER_SHAPES[shape] == "[]")


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        ("msrvtt", "MSRVTT_train__9k__csv", "video0\nvideo1\n", "no column video_id"),
        ("msrvtt", "MSRVTT_train__9k__csv", b"\xff\xfe\x00v", "not valid CSV in UTF-8"),
        ("msrvtt", "MSRVTT_JSFUSION_test__csv", "video_id\nvideo0\n", "no column sentence"),
        ("msrvtt", "MSRVTT_JSFUSION_test__csv", "video_id,sentence\nvideo0,a,b\n", "line 2: expected 2 fields"),
        ("msrvtt", "MSRVTT_JSFUSION_test__csv", 'video_id,sentence\nvideo0,"a\n', "not valid CSV in UTF-8"),
        ("msrvtt", "MSRVTT_data__json", b'{"sentences": "\xe9"}', "not valid JSON in UTF-8"),
        ("msvd", "train_list__txt", b"caf\xe9\n", "not valid UTF-8"),
        ("msvd", "captions_msvd__json", '{"x_y_2_3": "a man"}', "the captions of video 'x_y_2_3' are not a list"),
        ("lsmdc", "LSMDC16_annos_val__csv", "a,b,c,d,e,f\n", "line 1: not enough values"),
        ("lsmdc", "LSMDC16_annos_val__csv", movie(("a", "b")) + movie(("c", "d\te")), "line 2: too many values"),
        ("lsmdc", "LSMDC16_annos_training__csv", b"a\tb\tc\td\te\tcaf\xe9\n", "codec can't decode"),
        (
            "msrvtt_qa",
            "train_qa__json",
            '[{"id": 1, "video_id": 3, "question": "what?"}]',
            "question 1 of the file: no 'answer'",
        ),
        (
            "msrvtt",
            "MSRVTT_data__json",
            '{"sentences": [{"sen_id": 1, "video_id": "video1"}]}',
            "sentence 1 of the file: no 'caption'",
        ),
        ("msvd_qa", "youtube_mapping__txt", "name\n", "'name': not enough values"),
        ("msvd_qa", "youtube_mapping__txt", "two words vid3\n", "'two words vid3': too many values"),
    ],
)
def test_files_of_another_shape_are_named(tmp_path, name, file, content, said):
    write(tmp_path, **WHOLE[name] | {file: content})
    with pytest.raises(UserError) as refused:
        captions_of(READERS[name], tmp_path)
    message = str(refused.value)
    assert str(tmp_path / file.replace("__", ".")) in message and said in message and "\n" not in message
    assert "as its authors publish it" in message or "fields" in message


@pytest.mark.parametrize("text", [ODD_TEXT, "long " * 200_000 + "end"], ids=["odd", "1 MB"])
@pytest.mark.parametrize("name", READERS)
def test_any_text_is_read_whole(tmp_path, name, text):
    files = {
        "msrvtt": {"MSRVTT_data__json": data_json([{"caption": text, "video_id": "video1", "sen_id": -1}, *SENTENCES])},
        "msvd": {"captions_msvd__json": MSVD_CAPTIONS | {"-aB_1_5": [text]}},
        "lsmdc": {"LSMDC16_annos_val__csv": movie(("clip", text.replace("\t", " ")))},
        "msrvtt_qa": {"val_qa__json": official([(1, text, "man")])},
        "msvd_qa": {"val_qa__json": official([(1, text, "man")])},
    }
    captions, problems = captions_of(READERS[name], write(tmp_path, **WHOLE[name] | files[name]))
    assert problems == 0
    assert (ODD_TEXT_READ if text is ODD_TEXT else text) in {c.caption for c in captions}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_in_any_order_give_the_same_captions_together(tmp_path, data):
    """``captions_of`` sees to the together."""
    shuffle = st.randoms(use_true_random=False)
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    sentences, questions, clips = list(SENTENCES), list(QUESTIONS), [(f"clip{n % 5}", f"text {n}") for n in range(12)]
    for rows in (sentences, questions, clips):
        data.draw(shuffle).shuffle(rows)
    mixed = {
        "msrvtt": VTT_LISTS | {"MSRVTT_data__json": data_json(sentences)},
        "msrvtt_qa": question_files("jsonl", questions),
        "msvd_qa": question_files("json", questions) | {"youtube_mapping__txt": MAPPING},
        "lsmdc": LSMDC_FILES | {"LSMDC16_annos_training__csv": movie(*clips)},
    }
    for name, files in mixed.items():
        captions, problems = captions_of(READERS[name], write(folder / name, **files))
        if name == "lsmdc":
            assert sorted((c.video_id, c.caption) for c in captions if c.split == "train") == sorted(clips)
        else:
            expected, _ = captions_of(READERS[name], write(folder / f"{name} whole", **WHOLE[name]))
            assert Counter(map(repr, captions)) == Counter(map(repr, expected))
        assert problems == 0
