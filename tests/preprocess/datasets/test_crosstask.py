"""The reader of CrossTask."""

import numpy as np
import pytest
from helpers.needs import shared
from helpers.readers import brief, captions_of, counts, left_out, refused, write
from vlalign.preprocess.datasets import crosstask
from vlalign.preprocess.datasets.crosstask import TaskVideo

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
    ("tasks", "named"),
    [
        pytest.param(
            TASKS.replace("\n3\n", "\n4\n"), ["record 1: ", " 23 ", " 3 ", " 4;"], id="another number of steps"
        ),
        pytest.param(TASKS.replace("\n3\n", "\nx\n"), ["record 1", "'x'"], id="no number of steps"),
        pytest.param(TASKS.strip().rsplit("\n", 1)[0], ["record 2"], id="cut off"),
        pytest.param("a\nb\nc\n", ["record 1"], id="another file"),
    ],
)
def test_crosstask_rejects_other_task_files(tmp_path, tasks, named):
    message = refused(crosstask, write(tmp_path, crosstask_files([], [], {"7_a": ""}, tasks)))
    assert message.startswith(str(tmp_path / "tasks_primary.txt")) and all(each in message for each in named), message


def test_crosstask_bad_rows_are_left_out(tmp_path):
    rows = "1,5,4\n0,1,2\n4,1,2\nx,1,2\n1,soon,2\n1,1,1\n2,1,2\n"
    videos = [("23", "a"), ("23", "gone"), ("23", "a"), ("7", "too")]
    captions, problems = captions_of(crosstask, write(tmp_path, crosstask_files(videos, [], {"23_a": rows})))
    assert brief(captions) == [("a", "train", "add tea", 1, 2)]
    left_out(
        problems,
        ("videos.csv, line 3", "'a'", " 23 "),
        ("23_a.csv, line 1:", "5.0", "4.0"),
        ("23_a.csv, line 2:", " 0,", "1 to 3"),
        ("23_a.csv, line 3:", " 4,", "1 to 3"),
        ("23_a.csv, line 4:", "'x'"),
        ("23_a.csv, line 5:", "'soon'"),
        ("23_a.csv, line 6:", "1.0"),
        ("annotations, 2 of 3 videos: no 23_gone.csv, ...",),
    )


def authors_split(videos, validation):
    """Return {(task, video): split}, drawn like the authors' code with a seed of 0."""
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


def test_crosstask_splits_match_the_authors_code():
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
    assert (np.random.get_state()[1] == state).all()  # the global random state does not change


def test_crosstask_splits_do_not_depend_on_missing_files(tmp_path):
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
