"""Readers of ActivityNet, CrossTask, COIN, HowTo100M and YouCook2: synthetic rows in the published shapes, real files where they are."""

import json
import math
import os
import tracemalloc
from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from helpers.shared import shared
from hypothesis import given
from hypothesis import strategies as st
from vlalign.preprocess.datasets import activitynet, coin, crosstask, howto100m, youcook2
from vlalign.preprocess.datasets.crosstask import TaskVideo
from vlalign.preprocess.datasets.howto100m import Clip, extend, merge, stream_object
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems

READERS = {
    "activitynet": activitynet,
    "coin": coin,
    "crosstask": crosstask,
    "howto100m": howto100m,
    "youcook2": youcook2,
}
ODD_TEXT = " مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩\u200d🍳 naïve\n“quoted”, "
ODD_TEXT_READ = "مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩\u200d🍳 naïve “quoted”,"
LONG_TEXT = "word " * 200_000 + "end"


def annotations_of(reader, folder):
    return Annotations(folder, reader.DATASET.published, Problems())


def captions_of(reader, folder, protocol=None):
    """(captions, what was left out); those of a video come together."""
    annotations = annotations_of(reader, folder)
    captions = list(reader.DATASET.read(annotations, reader.DATASET.protocols[0] if protocol is None else protocol))
    runs = [video_id for video_id, _ in groupby(c.video_id for c in captions)]
    assert len(runs) == len(set(runs))
    assert {c.split for c in captions} <= {"train", "validation", "test"}
    return captions, annotations.problems


def counts(captions):
    """{split: (videos, captions)}"""
    numbers = Counter(c.split for c in captions)
    return {
        split: (len({c.video_id for c in captions if c.split == split}), number) for split, number in numbers.items()
    }


def brief(captions):
    return [(c.video_id, c.split, c.caption, c.start_seconds, c.end_seconds) for c in captions]


def write(folder, files):
    """{name: text, bytes, or what becomes JSON}"""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def refused(reader, folder, protocol=None):
    with pytest.raises(UserError) as raised:
        captions_of(reader, folder, protocol)
    message = str(raised.value)
    assert "\n" not in message and "Traceback" not in message
    return message


def left_out(problems, *expected):
    """Each problem says what is expected of it, in order."""
    assert problems.count == len(problems.messages) == len(expected), problems.messages
    for message, words in zip(problems.messages, expected, strict=True):
        assert all(word in message for word in words) and message.endswith("; left out"), message


# What all have in common

GOOD_FILES = {
    "activitynet": {
        "train.json": {"v_a": {"duration": 10.0, "timestamps": [[0, 5]], "sentences": ["one"]}},
        "val_1.json": {"v_b": {"duration": 10.0, "timestamps": [[0, 5]], "sentences": ["two"]}},
    },
    "coin": {
        "COIN.json": {
            "database": {
                "a": {
                    "subset": "training",
                    "class": "T",
                    "duration": 9.5,
                    "annotation": [{"id": "7", "segment": [1.0, 2.0], "label": "x"}],
                }
            }
        }
    },
    "crosstask": {
        "tasks_primary.txt": "1\nMake Tea\nhttp://x\n2\nboil water,pour water\n\n",
        "videos.csv": "1,a,http://a\n1,b,http://b\n",
        "videos_val.csv": "1,a,http://a\n",
        "annotations/1_a.csv": "1,0.0,2.5\n",
        "annotations/1_b.csv": "2,1,2\n",
    },
    "howto100m": {"caption.json": {"a": {"text": ["one"], "start": [0.0], "end": [9.0]}}},
    "youcook2": {
        "youcookii_annotations_trainval.json": {
            "database": {
                "a": {
                    "subset": "training",
                    "duration": 90.0,
                    "recipe_type": "101",
                    "annotations": [{"id": 0, "segment": [1, 2], "sentence": "cut it"}],
                }
            }
        },
        "validation_youcook.csv": "end,start,task,text,video_id\n9,3,102,stir it,b\n",
    },
}
EVERY_READER = pytest.mark.parametrize("name", READERS)


@EVERY_READER
def test_files_may_lie_deeper_and_have_a_mark(tmp_path, name):
    for path, content in GOOD_FILES[name].items():
        text = content if isinstance(content, str) else json.dumps(content)
        write(tmp_path / "as" / "unpacked", {path: text.encode("utf-8-sig")})
    captions, problems = captions_of(READERS[name], tmp_path)
    assert captions and problems.count == 0


@EVERY_READER
def test_missing_files_are_listed_with_their_sources(tmp_path, name):
    message = refused(READERS[name], tmp_path)
    for file in GOOD_FILES[name]:
        file = file.split("/")[0]
        assert f"{file} ({READERS[name].DATASET.published[file]})" in message
    assert "--annotations" in message


@EVERY_READER
def test_wrong_files_are_refused_in_one_line(tmp_path, name):
    """Whichever of the files it is: another encoding, cut off, of another shape."""
    for number, (path, content) in enumerate(GOOD_FILES[name].items()):
        whole = content if isinstance(content, str) else json.dumps(content)
        for wrong in (
            "caf\xe9 \xff".encode("latin-1"),
            *(
                []
                if path.endswith((".csv", ".txt"))
                else (b"", whole[: len(whole) // 2], "[1, 2]", '{"a": 5}', '{"a": {"b": []}}', "3")
            ),
            *((whole.strip()[:-1].rsplit(",", 1)[0],) if path.endswith(".csv") else ()),
        ):
            folder = write(tmp_path / f"{number}-{hash(wrong)}", GOOD_FILES[name] | {path: wrong})
            message = refused(READERS[name], folder)
            assert str(folder / path) in message and ("expected" in message), message


# YouCook2


def youcook(annotations, subset="training", recipe="101"):
    return {"subset": subset, "recipe_type": recipe, "duration": 90.0, "annotations": annotations}


def youcook_clip(number, start, end, sentence):
    return {"id": number, "segment": [start, end], "sentence": sentence}


def youcook_files(videos, rows=""):
    return {
        "youcookii_annotations_trainval.json": {"database": videos},
        "validation_youcook.csv": "end,start,task,text,video_id\n" + rows,
    }


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
        (json_file.format(0), "0 <= start < end"),
        (json_file.format(2), "0 <= start < end"),
        (json_file.format(3), "'soon'"),
        (json_file.format(4), "'  '"),
        (json_file.format(5), "None"),
        (json_file.format(6), "surrogate"),
        (json_file.format(7), "values"),
        (json_file.format(8), "values"),
        (json_file.format(9), "0 <= start < end"),
        (json_file.format(10), "nan"),
        (csv_file.format(2), "0 <= start < end"),
        (csv_file.format(3), "'x'"),
        (csv_file.format(4), "''"),
    )


def test_youcook2_other_subsets_are_refused(tmp_path):
    """The file of the testing videos has no sentences; nothing of it may pass for validation."""
    message = refused(youcook2, write(tmp_path, youcook_files({"x": youcook([], "testing")})), "all")
    assert "video 'x'" in message and "testing" in message


def test_youcook2_real():
    folder = shared("data/youcook2")
    captions, problems = captions_of(youcook2, folder)
    assert counts(captions) == {"train": (1333, 10_337), "test": (436, 3350)} and problems.count == 0
    captions, problems = captions_of(youcook2, folder, "all")
    assert counts(captions) == {"train": (1333, 10_337), "test": (457, 3492)} and problems.count == 0
    assert len({c.caption for c in captions if c.split == "test"}) == 3411


# ActivityNet


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
        ("v_a", "train", "First.", 0, 70.29),  # no end is cut for how its duration is written
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
        (at.format(1), "0 <= start < end"),
        (at.format(2), "0 <= start < end"),
        (at.format(3), "'x' is not a time"),
        (at.format(4), "0 <= start < end"),
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


# CrossTask

TASKS = (
    "23\nMake Tea\nhttp://www.example.org/Make-Tea\n3\nboil water,add tea, pour water\n\n"
    "7\nFix a Tyre\nhttp://www.example.org/Fix\n2\nfind hole,glue patch\n\n\n"
)


def crosstask_files(videos, validation, segments, tasks=TASKS):
    """``videos`` and ``validation``: (task, video) pairs; ``segments``: {task_video: rows}"""
    return {
        "tasks_primary.txt": tasks,
        "videos.csv": "".join(f"{task},{video},http://x/{video}\n" for task, video in videos),
        "videos_val.csv": "".join(f"{task},{video},http://x/{video}\n" for task, video in validation),
        **{f"annotations/{name}.csv": rows for name, rows in segments.items()},
    }


def test_crosstask_segments(tmp_path):
    videos = [("7", "b-_1"), ("99", "related"), ("23", "-a"), ("7", "-a"), ("23", "v")]
    segments = {"7_b-_1": "2,10.5,12\n1,3,4.25\n2,20,30\n", "23_-a": "3,0,1\n", "7_-a": "1,5,6\n", "23_v": "1,1,2\n"}
    folder = write(tmp_path, crosstask_files(videos, [("23", "v"), ("23", "not listed")], segments))
    captions, problems = captions_of(crosstask, folder)
    assert [(*row, c.task, c.step) for row, c in zip(brief(captions), captions, strict=True)] == [
        ("-a", "train", "pour water", 0, 1, "Make Tea", 3),
        ("-a", "train", "find hole", 5, 6, "Fix a Tyre", 1),
        ("b-_1", "train", "glue patch", 10.5, 12, "Fix a Tyre", 2),
        ("b-_1", "train", "find hole", 3, 4.25, "Fix a Tyre", 1),
        ("b-_1", "train", "glue patch", 20, 30, "Fix a Tyre", 2),
        ("v", "validation", "boil water", 1, 2, "Make Tea", 1),
    ]
    assert problems.count == 0


def test_crosstask_tasks(tmp_path):
    path = write(tmp_path, {"tasks_primary.txt": TASKS}) / "tasks_primary.txt"
    assert crosstask.read_tasks(path) == [
        ("23", "Make Tea", ["boil water", "add tea", "pour water"]),
        ("7", "Fix a Tyre", ["find hole", "glue patch"]),
    ]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        pytest.param(
            TASKS.replace("\n3\n", "\n4\n"), "record 1: task 23 lists 3 steps, expected 4", id="another number of steps"
        ),
        pytest.param(TASKS.replace("\n3\n", "\nx\n"), "record 1", id="no number of steps"),
        pytest.param(TASKS.strip().rsplit("\n", 1)[0], "record 2", id="cut off"),
        pytest.param("a\nb\nc\n", "record 1", id="another file"),
    ],
)
def test_crosstask_other_tasks_are_refused(tmp_path, tasks, said):
    message = refused(crosstask, write(tmp_path, crosstask_files([], [], {"7_a": ""}, tasks)))
    assert "tasks_primary.txt" in message and said in message


def test_crosstask_bad_rows_are_left_out(tmp_path):
    rows = "1,5,4\n0,1,2\n4,1,2\nx,1,2\n1,soon,2\n1,1,1\n2,1,2\n"
    videos = [("23", "a"), ("23", "gone"), ("23", "a"), ("7", "too")]
    captions, problems = captions_of(crosstask, write(tmp_path, crosstask_files(videos, [], {"23_a": rows})))
    assert brief(captions) == [("a", "train", "add tea", 1, 2)]
    left_out(
        problems,
        ("videos.csv, line 3", "'a' of task 23 again"),
        ("23_a.csv, line 1:", "0 <= start < end"),
        ("23_a.csv, line 2:", "step 0, expected 1 to 3"),
        ("23_a.csv, line 3:", "step 4, expected 1 to 3"),
        ("23_a.csv, line 4:", "'x'"),
        ("23_a.csv, line 5:", "'soon' is not a time"),
        ("23_a.csv, line 6:", "0 <= start < end"),
        ("annotations, 2 of 3 videos: no 23_gone.csv, ...",),
    )


def authors_split(videos, validation):
    """As the authors' code draws, word by word of its rule, after a seed of 0: {task: videos}, {task: videos}."""
    left = {}
    for task, video in videos:
        left.setdefault(task, [])
        if (task, video) not in validation:
            left[task].append(video)
    np.random.seed(0)
    train = {}
    for task, task_videos in left.items():
        if len(task_videos) > 30:
            train[task] = set(np.random.choice(task_videos, 30, replace=False).tolist())
        else:
            train[task] = set(task_videos)
    return {
        (task, video): "train" if video in train[task] else "test" for task, videos in left.items() for video in videos
    }


def test_crosstask_split_is_that_of_the_authors_code():
    rng = np.random.RandomState(5)
    videos = [
        TaskVideo(task, f"{task}{number:02d}")
        for task, count in (("b", 70), ("a", 45), ("c", 31), ("d", 30), ("e", 2))
        for number in range(count)
    ]
    videos = [videos[n] for n in rng.permutation(len(videos))]
    validation = {video for video in videos if rng.random() < 0.1}
    splits = crosstask.draw_splits(videos, validation)
    assert splits == authors_split(videos, validation) | dict.fromkeys(validation, "validation")
    assert list(splits) == videos
    state = np.random.get_state()[1].copy()
    crosstask.draw_splits(videos, validation)
    assert (np.random.get_state()[1] == state).all()  # nobody else's random numbers change


def test_crosstask_split_does_not_depend_on_what_is_there(tmp_path):
    videos = [("7", f"v{number:02d}") for number in range(60)]
    segments = {f"7_{video}": "1,0,1\n" for _, video in videos}
    all_there, _ = captions_of(crosstask, write(tmp_path / "all", crosstask_files(videos, [], segments)))
    assert counts(all_there) == {"train": (30, 30), "test": (30, 30)}
    for name in list(segments)[::3]:
        del segments[name]
    some, problems = captions_of(crosstask, write(tmp_path / "some", crosstask_files(videos, [], segments)))
    assert problems.count == 1 and "20 of 60 videos: no 7_v00.csv, ...;" in problems.messages[0]
    assert len(some) == 40 and all(caption in all_there for caption in some)


def test_crosstask_real():
    folder = shared("data/crosstask/crosstask_release")
    tasks = crosstask.read_tasks(folder / "tasks_primary.txt")
    assert (len(tasks), sum(len(task.steps) for task in tasks)) == (18, 133)
    assert len(crosstask.read_tasks(folder / "tasks_related.txt")) == 65
    captions, problems = captions_of(crosstask, folder)
    assert {split: videos for split, (videos, _) in counts(captions).items()} == {
        "train": 540,
        "validation": 360,
        "test": 1850,
    }
    assert len(captions) == 20_919 and len({c.video_id for c in captions}) == 2750 and problems.count == 0
    assert len({(c.task, c.step) for c in captions}) == 133
    videos = [tuple(line.split(",")[:2]) for line in (folder / "videos.csv").read_text().splitlines()]
    validation = {tuple(line.split(",")[:2]) for line in (folder / "videos_val.csv").read_text().splitlines()}
    ids = {task.task_id: task.title for task in tasks}
    expected = authors_split([video for video in videos if video[0] in ids], validation)
    assert {(c.task, c.video_id): c.split for c in captions if c.split != "validation"} == {
        (ids[task], video): split for (task, video), split in expected.items()
    }


# COIN


def coin_video(subset, segments, duration=30.0, task="MakeTea"):
    annotation = [{"id": number, "segment": times, "label": label} for number, times, label in segments]
    return {"subset": subset, "class": task, "recipe_type": 3, "duration": duration, "annotation": annotation}


def coin_file(folder, videos):
    return write(folder, {"COIN.json": {"database": videos}}) / "COIN.json"


def test_coin_segments(tmp_path):
    videos = {
        "a": coin_video("training", [("12", [1.5, 3.0], "boil water"), ("13", [5, 6], ODD_TEXT)]),
        "b": coin_video("testing", [("12", [0, 30.0], "boil water")], task="MakeSoup"),
        "none": coin_video("testing", []),
    }
    coin_file(tmp_path, videos)
    captions, problems = captions_of(coin, tmp_path)
    assert [(*row, c.task, c.step) for row, c in zip(brief(captions), captions, strict=True)] == [
        ("a", "train", "boil water", 1.5, 3, "MakeTea", 12),
        ("a", "train", ODD_TEXT_READ, 5, 6, "MakeTea", 13),
        ("b", "test", "boil water", 0, 30, "MakeSoup", 12),
    ]
    assert problems.count == 0


def test_coin_bad_segments_are_left_out(tmp_path):
    segments = [
        ("1", [5, 1], "backwards"),
        ("1", [1], "half"),
        ("x", [1, 2], "no id"),
        ("1", [1, 2], " "),
        ("1", ["a", 2], "no time"),
        ("1", [1, 2], "good"),
    ]
    coin_file(tmp_path, {"a": coin_video("training", segments)})
    captions, problems = captions_of(coin, tmp_path)
    assert brief(captions) == [("a", "train", "good", 1, 2)]
    at = "COIN.json, video 'a', segment {}:"
    left_out(
        problems,
        (at.format(1), "0 <= start < end"),
        (at.format(2), "values"),
        (at.format(3), "'x'"),
        (at.format(4), "' '"),
        (at.format(5), "'a' is not a time"),
    )


def test_clips_that_go_on_after_their_video_are_cut_and_counted(tmp_path):
    coin_file(
        tmp_path,
        {
            "a": coin_video(
                "training", [("1", [1, 12.5], "x"), ("1", [11, 12], "y"), ("1", [2, 9.99], "z")], duration=9.99
            )
        },
    )
    captions, problems = captions_of(coin, tmp_path)
    assert brief(captions) == [("a", "train", "x", 1, 9.99), ("a", "train", "z", 2, 9.99)]
    left_out(problems, ("segment 2", "0 <= start < end"))
    assert problems.changed == {"ends after the video, cut at its duration": 1}
    write(tmp_path, youcook_files({"t": youcook([youcook_clip(0, 80, 95, "fry")])}))
    captions, problems = captions_of(youcook2, tmp_path, "all")
    assert (captions[0].end_seconds, problems.count) == (90, 0)
    assert problems.changed == {"ends after the video, cut at its duration": 1}


def test_an_id_that_comes_again_is_left_out_and_the_first_is_kept(tmp_path):
    first, second = (json.dumps(coin_video("training", [("1", [1, 2], label)])) for label in ("first", "second"))
    write(tmp_path, {"COIN.json": f'{{"database": {{"a": {first}, "b": {second}, "a": {second}}}}}'})
    captions, problems = captions_of(coin, tmp_path)
    assert [(c.video_id, c.caption) for c in captions] == [("a", "first"), ("b", "second")]
    left_out(problems, ("COIN.json, entry 'a'", "duplicate of an earlier entry"))


@pytest.mark.parametrize("video_id", ["", "  ", "half \ud83d"])
def test_a_video_without_a_usable_id_is_left_out(tmp_path, video_id):
    coin_file(
        tmp_path,
        {video_id: coin_video("training", [("1", [1, 2], "x")]), "b": coin_video("training", [("1", [1, 2], "y")])},
    )
    captions, problems = captions_of(coin, tmp_path)
    assert [c.video_id for c in captions] == ["b"]
    left_out(problems, ("COIN.json", repr(video_id)))
    write(
        tmp_path,
        {"train.json": {video_id: {"duration": 9, "timestamps": [[1, 2]], "sentences": ["x"]}}, "val_1.json": {}},
    )
    for protocol in activitynet.DATASET.protocols:
        captions, problems = captions_of(activitynet, tmp_path, protocol)
        assert captions == []
        left_out(problems, ("train.json", repr(video_id)))


@pytest.mark.parametrize("task", [5, ["MakeTea"], "half \ud83d"])
def test_a_task_that_is_no_text_is_left_out(tmp_path, task):
    coin_file(tmp_path, {"a": coin_video("training", [("1", [1, 2], "x")], task=task)})
    captions, problems = captions_of(coin, tmp_path)
    assert captions == []
    left_out(problems, ("COIN.json, video 'a', segment 1", "is no text"))


def test_coin_other_subsets_are_refused(tmp_path):
    coin_file(tmp_path, {"a": coin_video("validation", [])})
    assert "video 'a': no 'validation'" in refused(coin, tmp_path)


def test_coin_background_share_by_hand(tmp_path):
    videos = {
        "a": coin_video(
            "testing", [("1", [1.5, 3.2], "x"), ("2", [3.9, 4.0], "y"), ("1", [9.5, 12], "z")], duration=10.9
        ),
        # frames 0 to 9; 1, 2, 3 and 9 are covered
        "b": coin_video("testing", [("1", [0, 1], "x")], duration=5),
        "c": coin_video("training", [("1", [0, 30], "x")]),
    }
    assert coin.background_share(annotations_of(coin, coin_file(tmp_path, videos).parent)) == pytest.approx(
        (6 + 4) / 15
    )


@given(
    st.lists(
        st.tuples(st.floats(0.5, 40), st.lists(st.tuples(st.floats(0, 40), st.floats(0, 10)), max_size=5)),
        min_size=1,
        max_size=4,
    )
)
def test_coin_background_share_is_that_of_labelled_frames(tmp_path_factory, drawn):
    videos = {
        f"v{n}": coin_video("testing", [("4", [s, s + d], "x") for s, d in segments], T)
        for n, (T, segments) in enumerate(drawn)
    }
    frames = []
    for video in videos.values():
        labels = np.zeros(int(video["duration"]), int)
        for segment in video["annotation"]:
            labels[math.floor(segment["segment"][0]) : math.ceil(segment["segment"][1])] = int(segment["id"])
        frames += labels.tolist()
    share = coin.background_share(annotations_of(coin, coin_file(tmp_path_factory.mktemp("coin"), videos).parent))
    assert share == pytest.approx(frames.count(0) / len(frames)) if frames else math.isnan(share)


def test_coin_real(tmp_path):
    path = tmp_path / "COIN.json"
    path.symlink_to(shared("data/coin/COIN_assembled.json"))  # its training split is not complete
    captions, problems = captions_of(coin, tmp_path)
    assert counts(captions)["test"][0] == 2797 and problems.count == 0
    assert len({c.step for c in captions}) == 778 and len({c.task for c in captions}) == 180
    assert round(100 * coin.background_share(annotations_of(coin, tmp_path)), 2) == 58.53
    durations = [
        video["duration"] for video in json.loads(path.read_text())["database"].values() if video["subset"] == "testing"
    ]
    assert sum(map(int, durations)) == 394_030


# HowTo100M: clips


def clip_lists(**more):
    starts = st.integers(0, 100_000).map(lambda ms: ms / 1000)
    lengths = st.integers(0, 9000).map(lambda ms: ms / 1000)
    texts = st.lists(st.sampled_from(["a", "cut", "the", "onion"]), min_size=1, max_size=14).map(" ".join)
    clip = st.builds(lambda start, length, text: Clip(start, start + length, text), starts, lengths, texts)
    return st.lists(clip, **more)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(10, 12, (8.5, 13.5), id="alike at both ends"),
        pytest.param(10, 15, (10, 15), id="long enough"),
        pytest.param(10, 30, (10, 30), id="longer"),
        pytest.param(1, 2, (0, 5), id="at the beginning"),
        pytest.param(0, 4, (0, 5), id="from 0"),
        pytest.param(7, 7, (4.5, 9.5), id="no length"),
    ],
)
def test_extend_by_hand(start, end, expected):
    assert extend([Clip(start, end, "a")]) == [(*expected, "a")]


@given(clip_lists(max_size=6))
def test_extended_clips(clips):
    extended = extend(clips)
    assert [clip.text for clip in extended] == [clip.text for clip in clips]
    for (start, end, _), (new_start, new_end, _) in zip(clips, extended, strict=True):
        assert 0 <= new_start <= start and new_end >= end - 1e-9
        assert new_end - new_start == pytest.approx(max(5, end - start))
        middle = (start + end) / 2
        if end - start < 5 and middle >= 2.5:
            assert (new_start + new_end) / 2 == pytest.approx(middle)
        elif end - start < 5:
            assert new_start == pytest.approx(0)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param([10, 9, 1, 25], [10, 10, 25], id="enough"),
        pytest.param([4, 4, 4, 4, 4, 4], [12, 12], id="until enough"),
        pytest.param([9, 9, 9], [27], id="the rest joins the one before"),
        pytest.param([30, 9], [39], id="however long that is"),
        pytest.param([3, 3], [6], id="too few in all"),
        pytest.param([], [], id="none"),
    ],
)
def test_merge_by_hand(lengths, expected):
    merged = merge([Clip(float(n), n + 3.0, " ".join(["w"] * length)) for n, length in enumerate(lengths)])
    assert [len(clip.text.split()) for clip in merged] == expected


def test_merged_clips_have_the_times_of_all():
    """Out of order in the file, and the first one ends last."""
    clips = [Clip(2, 4, "b b b b b"), Clip(0, 9, "a a a a a"), Clip(30, 31, "d d d d d d d d d d")]
    assert merge(clips) == [Clip(0, 9, "a a a a a b b b b b"), Clip(30, 31, "d d d d d d d d d d")]


def obvious_merge(clips, least_words):
    """By numbers of words alone: each word's clip, cut where a count is full."""
    clips = sorted(clips, key=lambda clip: clip.start_seconds)
    ends, count = [], 0
    for number, clip in enumerate(clips, start=1):
        count += clip.text.count(" ") + 1
        if count >= least_words:
            ends.append(number)
            count = 0
    if clips and not ends:
        ends = [len(clips)]
    if ends:
        ends[-1] = len(clips)
    parts = [clips[first:end] for first, end in zip([0, *ends], ends, strict=False)]
    return [
        (min(c.start_seconds for c in p), max(c.end_seconds for c in p), " ".join(c.text for c in p)) for p in parts
    ]


@given(clip_lists(max_size=25), st.integers(1, 15))
def test_merged_clips(clips, least_words):
    merged = merge(clips, least_words)
    assert merged == obvious_merge(clips, least_words)
    in_order = sorted(clips, key=lambda clip: clip.start_seconds)
    assert " ".join(clip.text for clip in merged) == " ".join(
        clip.text for clip in in_order
    )  # nothing is lost, in order
    assert [clip.start_seconds for clip in merged] == sorted(clip.start_seconds for clip in merged)
    assert all(len(clip.text.split()) >= least_words for clip in merged) or len(merged) == 1


# HowTo100M: files


def howto_video(*rows):
    """Rows (start, end, text), as columns in a dictionary."""
    return {"start": [row[0] for row in rows], "end": [row[1] for row in rows], "text": [row[2] for row in rows]}


def test_howto100m_protocols(tmp_path):
    without = {
        "a": howto_video((0.0, 2.5, "cut onion"), (10.0, 20.0, ODD_TEXT), (12, 13, "one two three four five")),
        "b": howto_video((3.0, 3.0, "no length")),
        "c": howto_video(),
    }
    raw = {"z": howto_video((0.0, 9.0, "now I cut\nthe onion"), (6.5, 12.25, "the onion and then I fry it"))}
    folder = write(tmp_path, {"caption.json": without, "raw_caption.json": raw})
    captions, problems = captions_of(howto100m, folder)
    assert brief(captions) == [
        ("a", "train", "cut onion", 0, 5),
        ("a", "train", ODD_TEXT_READ, 10, 20),
        ("a", "train", "one two three four five", 10, 15),
        ("b", "train", "no length", 0.5, 5.5),
    ]
    assert problems.count == 0
    captions, problems = captions_of(howto100m, folder, "merged")
    assert brief(captions) == [("a", "train", f"cut onion {ODD_TEXT_READ} one two three four five", 0, 20)]
    left_out(problems, ("caption.json, video 'b'", "0 <= start < end"))  # nothing to merge it with
    captions, _ = captions_of(howto100m, folder, "raw-captions")
    assert brief(captions) == [
        ("z", "train", "now I cut the onion", 0, 9),
        ("z", "train", "the onion and then I fry it", 6.5, 12.25),
    ]
    captions, _ = captions_of(howto100m, folder, "raw-merged")
    assert brief(captions) == [("z", "train", "now I cut the onion the onion and then I fry it", 0, 12.25)]


def test_howto100m_raw_captions_never_stand_in(tmp_path):
    write(tmp_path, {"raw_caption.json": {"a": howto_video((0, 9, "x"))}})
    assert (
        " caption.json (" in refused(howto100m, tmp_path)
        and len(captions_of(howto100m, tmp_path, "raw-captions")[0]) == 1
    )


@pytest.mark.parametrize("protocol", ["captions", "merged"])
def test_howto100m_bad_captions_are_left_out(tmp_path, protocol):
    video = howto_video(
        (1, 2, math.nan),
        (1, 2, ""),
        (1, 2, None),
        (2, 1, "backwards"),
        (math.nan, 2, "no start"),
        (-1, 2, "below 0"),
        (1, "2s", "no end"),
        (1, 2, "half a \ud83d pair"),
        (10, 16, "good"),
    )
    write(tmp_path, {"caption.json": {"a": video, "b": howto_video((0, 6, "good"))}})
    assert "NaN" in (tmp_path / "caption.json").read_text()
    captions, problems = captions_of(howto100m, tmp_path, protocol)
    assert brief(captions) == [("a", "train", "good", 10, 16), ("b", "train", "good", 0, 6)]
    said = (
        "nan",
        "''",
        "None",
        "0 <= start <= end",
        "nan is not a time",
        "0 <= start <= end",
        "'2s' is not a time",
        "surrogate",
    )
    left_out(problems, *((f"caption.json, video 'a', caption {n}:", words) for n, words in enumerate(said, start=1)))


def test_howto100m_a_video_again_is_left_out(tmp_path):
    one, two = (json.dumps(howto_video((0, 9, word))) for word in ("first", "second"))
    write(tmp_path, {"caption.json": f'{{"a": {one}, "b": {one}, "a": {two}}}'})
    captions, problems = captions_of(howto100m, tmp_path)
    assert brief(captions) == [("a", "train", "first", 0, 9), ("b", "train", "first", 0, 9)]
    left_out(problems, ("video 'a'", "second entry"))


@pytest.mark.parametrize(
    "video",
    [
        {"start": [1], "end": [2]},
        {"start": [1], "end": [2], "text": ["a", "b"]},
        ["a"],
        "a",
        5,
        None,
        {"start": 1, "end": 2, "text": 3},
    ],
)
def test_howto100m_other_shapes_are_refused(tmp_path, video):
    write(tmp_path, {"caption.json": {"good": howto_video((0, 9, "x")), "bad one": video}})
    message = refused(howto100m, tmp_path)
    assert "caption.json, video 'bad one'" in message or "after 'good'" in message


# A JSON object of any size


@pytest.fixture
def small_chunks(monkeypatch):
    def read_by(size, longest=howto100m.LONGEST):
        monkeypatch.setattr(howto100m, "CHUNK", size)
        monkeypatch.setattr(howto100m, "LONGEST", longest)

    return read_by


values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
).map(lambda value: {"of": value})


@given(
    entries=st.dictionaries(st.text(), values, min_size=1, max_size=5),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
    escaped=st.booleans(),
)
def test_streamed_objects_are_what_json_reads(tmp_path_factory, entries, chunk, indent, escaped):
    text = json.dumps(entries, indent=indent, ensure_ascii=escaped)
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        expected = list(json.loads(path.read_text(encoding="utf-8")).items())
    except UnicodeDecodeError:
        return  # half of a surrogate pair as it is, which is no UTF-8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(howto100m, "CHUNK", chunk)
        assert list(stream_object(path)) == expected


def test_streamed_objects_may_be_empty(tmp_path):
    for text in ("{}", " \n{ \n} \n"):
        assert list(stream_object(write(tmp_path, {"x.json": text}) / "x.json")) == []


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param("", "at its start", id="empty"),
        pytest.param("[]", "at its start", id="an array"),
        pytest.param("null", "at its start", id="null"),
        pytest.param('{"a": {}', "after 'a'", id="not closed"),
        pytest.param('{"a": {}, ', "after 'a'", id="cut off after a comma"),
        pytest.param('{"a": {}, "b', "after 'a'", id="cut off in a name"),
        pytest.param('{"a": {}, "b": {"text": ["x", "y', "after 'a'", id="cut off in a text"),
        pytest.param('{"a": {} "b": {}}', "after 'a'", id="no comma"),
        pytest.param('{"a" {}}', "at its start", id="no colon"),
        pytest.param('{"a": {}, 5: {}}', "after 'a'", id="a number for a name"),
        pytest.param('{"a": {},, "b": {}}', "after 'a'", id="a comma too many"),
        pytest.param('{"a": {"b": [1, x]}, "c": {}}', "at its start", id="a bare word"),
        pytest.param('{"a": {}}{"b": {}}', "text after the end", id="two objects"),
        pytest.param('{"a": {}}]', "text after the end", id="a bracket too many"),
        pytest.param('{"a": ' + "[" * 200_000, "at its start", id="deep"),
        pytest.param(b'{"a": {"b": "caf\xe9"}}', "UTF-8", id="Latin-1"),
        pytest.param('{"a": {}}'.encode("utf-16"), "UTF-8", id="UTF-16"),
    ],
)
def test_streams_that_are_no_object_are_refused(tmp_path, small_chunks, chunk, text, where):
    if isinstance(text, str) and len(text) > 1000 and chunk < 100:
        chunk = 1000  # a character at a time takes its time
    small_chunks(chunk)
    path = write(tmp_path, {"x.json": text}) / "x.json"
    with pytest.raises(UserError) as raised:
        list(stream_object(path))
    message = str(raised.value)
    assert str(path) in message and where in message and "\n" not in message and len(message) < 500


def test_what_never_ends_is_not_read_to_its_end(tmp_path, small_chunks):
    small_chunks(100, longest=1000)
    path = write(tmp_path, {"x.json": '{"a": {"b": "' + "x" * 100_000 + '"}}'}) / "x.json"
    with pytest.raises(UserError, match="not valid JSON at its start"):
        list(stream_object(path))
    small_chunks(100, longest=200_000)
    assert len(dict(stream_object(path))["a"]["b"]) == 100_000


def test_memory_is_that_of_a_video_and_not_of_the_file(tmp_path):
    """42 MB of 4,000 videos, of which only the longest caption (1 MB) and what is read at once are ever there."""
    path = tmp_path / "caption.json"
    video = json.dumps(howto_video(*((n, n + 2, "cut the onion and fry it " * 20) for n in range(20))))
    with path.open("w") as file:
        file.write('{"long": ' + json.dumps(howto_video((0, 9, LONG_TEXT))))
        for number in range(4000):
            file.write(f', "v{number}": {video}')
        file.write("}")
    assert os.path.getsize(path) > 40_000_000
    tracemalloc.start()
    try:
        captions = howto100m.DATASET.read(annotations_of(howto100m, tmp_path), "merged")
        assert len(next(captions).caption) == len(LONG_TEXT)
        assert sum(1 for _ in stream_object(path)) == 4001
        assert sum(1 for caption, _ in zip(captions, range(3000), strict=False)) == 3000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
