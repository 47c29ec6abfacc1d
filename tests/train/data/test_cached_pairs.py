"""Captions and pairs that are mapped from files: as they are in memory, and made again when they do not fit."""

import multiprocessing
import os
import random
import re
import signal
import time

import numpy as np
import pytest
from helpers.stores import video, write
from vlalign.storage import Caption, FeatureStore, read_captions
from vlalign.storage.captions import files as captions
from vlalign.storage.captions.files import CACHE_NAME, caption_table, write_captions_about, write_part
from vlalign.storage.captions.table import Texts
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.data import pairs as kept_pairs
from vlalign.train.data.batches import Batches
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.examples import ExampleSource, split_off_validation
from vlalign.train.data.pairs import Pairs, make_pairs, read_pairs
from vlalign.train.recipes.train_config import train_config


def make_captions(word: str = "cut") -> list[Caption]:
    clips = [("v", 0, 1), ("w", 0, 2), ("v", 0, 1), ("v", 1, 3), ("gone", 0, 1), ("w", 0, 2), ("v", 90, 91)]
    splits = ["train", "test", "train", "train", "train", "test", "train"]
    return [
        Caption(video_id=v, caption=f"{word} {n}", split=split, start_seconds=float(s), end_seconds=float(e))
        for n, ((v, s, e), split) in enumerate(zip(clips, splits, strict=True))
    ]


@pytest.fixture
def dataset(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    write(dataset.features("s3d"), video("v", 6), video("w", 6))
    write_all(dataset, make_captions())
    return dataset


def write_all(dataset: DatasetFolder, of: list[Caption]) -> None:
    write_part(dataset.captions, 0, of[:3], {})
    write_part(dataset.captions, 1, of[3:], {})
    write_captions_about(dataset.captions, {})


def read(dataset: DatasetFolder) -> tuple[dict[str, Pairs], list[str]]:
    problems = Problems(quiet=True)
    return read_pairs(dataset, ClipFeatures([FeatureStore(dataset.features("s3d"))]), problems), problems.messages


def is_mapped(values: np.ndarray) -> bool:
    while values.base is not None and not isinstance(values, np.memmap):
        values = values.base
    return isinstance(values, np.memmap)


def assert_equal(found: Pairs, expected: Pairs) -> None:
    assert list(found.captions) == list(expected.captions) and list(found.clips) == list(expected.clips)
    assert list(found.clips.video_ids) == list(expected.clips.video_ids)
    np.testing.assert_array_equal(found.clip_of_caption, expected.clip_of_caption)
    assert list(found.captions_of_clips) == list(expected.captions_of_clips)
    assert list(found.clips_of_videos) == list(expected.clips_of_videos)


def test_kept_pairs_equal_those_in_memory_and_what_is_left_out_is_reported_each_time(dataset):
    usable = [c for c in make_captions() if c.video_id != "gone" and c.start_seconds != 90]
    for _ in range(2):  # written, and found
        pairs, messages = read(dataset)
        for split, of in pairs.items():
            assert_equal(of, make_pairs(caption_table(c for c in usable if c.split == split)))
        assert len(messages) == 2 and "'gone': no features" in messages[0] and "v#90.0-91.0" in messages[1]
    train = pairs["train"]
    arrays = [train.clip_of_caption, train.clips.video, train.clips.start_seconds, train.captions.selected]
    arrays += [groups.members for groups in (train.captions_of_clips, train.clips_of_videos)]
    assert all(map(is_mapped, arrays)), "a process holds nothing for each caption"
    assert isinstance(train.clips.video_ids, Texts)


@pytest.mark.parametrize("by_video", [True, False])
@pytest.mark.parametrize("at_once", [1, 3, 8, 1000])
def test_pairs_made_of_some_captions_at_a_time_equal_those_made_at_once(tmp_path, monkeypatch, by_video, at_once):
    monkeypatch.setattr(kept_pairs, "CAPTIONS_AT_ONCE", at_once)
    dataset, rng = DatasetFolder(tmp_path, "mine"), random.Random(at_once)
    ids = [f"v{n}" for n in range(9)]
    write(dataset.features("s3d"), *(video(video_id, 6) for video_id in ids if video_id != "v4"))
    videos = rng.choices(ids, k=40)
    captions = []
    for number, video_id in enumerate(sorted(videos) if by_video else videos):
        start, split = rng.choice([0.0, 0.5, 90.0]), rng.choice(["train", "train", "test"])
        about = {"start_seconds": start, "end_seconds": start + 1, "split": split}
        captions.append(Caption(video_id=video_id, caption=f"{number}", **about))
    write_all(dataset, captions)
    usable = [c for c in captions if c.video_id != "v4" and c.start_seconds != 90]
    pairs, messages = read(dataset)
    for split, of in pairs.items():
        assert_equal(of, make_pairs(caption_table(c for c in usable if c.split == split)))
    late = [c.clip_id for c in captions if c.start_seconds == 90 and c.video_id != "v4"]
    assert [clip_id for message in messages for clip_id in re.findall(r"^caption (\S+): .*\d s\)", message)] == late
    features = ClipFeatures([FeatureStore(dataset.features("s3d"))])
    config = train_config(dataset="mine", features="s3d")
    made = split_off_validation(
        pairs,
        ExampleSource(dataset, features, None, config.data, config.optimization, Batches, validation_share=0.3),
        "pairs",
    )
    held = set(made["validation"].clips.video_ids)
    assert 0 < len(held) < len(set(made["train"].clips.video_ids)) and list(made["test"].captions)
    for split, of in made.items():
        expected = [c for c in usable if c.split == ("test" if split == "test" else "train")]
        if split != "test":
            expected = [c for c in expected if (c.video_id in held) == (split == "validation")]
        assert_equal(of, make_pairs(caption_table(expected)))


def test_captions_of_a_video_stay_together_in_parts_of_few():
    def parts(videos: str, most: int) -> list[str]:
        table = caption_table(Caption(video_id=v, caption="x", split="train") for v in videos)
        return ["".join(c.video_id for c in part) for part in table.by_videos(most)]

    assert parts("aaabbcdddd", 2) == ["aaa", "bb", "cdddd"] and parts("aaabbcdddd", 100) == ["aaabbcdddd"]
    assert parts("", 2) == [""] and parts("abab", 2) == ["abab"] and parts("abcd", 1) == ["a", "b", "c", "d"]
    some = caption_table(Caption(video_id=v, caption="x", split="train") for v in "aaabbcdddd").take([0, 3, 4, 5, 6, 9])
    assert ["".join(c.video_id for c in part) for part in some.by_videos(2)] == ["abb", "cdd"]


@pytest.mark.parametrize("damage", ["cut", "empty", "other bytes", "other captions", "other features"])
def test_files_that_do_not_fit_are_written_again_with_a_line(dataset, damage, capsys):
    read(dataset)
    kept, expected = [dataset.captions / CACHE_NAME, dataset.pairs / "s3d.safetensors"], make_captions()
    if damage == "other captions":
        expected = make_captions("fry")
        write_all(dataset, expected)
    elif damage == "other features":
        kept = kept[1:]
        write(dataset.features("s3d"), video("v", 9))
    else:
        for path in kept:
            whole = path.read_bytes()
            path.write_bytes({"cut": whole[:-9], "empty": b"", "other bytes": whole[::-1]}[damage])
    capsys.readouterr()
    pairs, _ = read(dataset)
    assert [c.caption for c in pairs["train"].captions] == [expected[n].caption for n in (0, 2, 3)]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(kept) and all(
        line.startswith(f"note: {path}: ") for path, line in zip(kept, lines, strict=True)
    )
    read(dataset)
    assert capsys.readouterr().err == ""


def test_damage_within_a_row_is_one_line(dataset):
    read(dataset)
    path = dataset.captions / CACHE_NAME
    path.write_bytes(path.read_bytes().replace(b'["cut 2"', b'["cut 2['))
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}: .*\(.*\); \w+"):
        list(read_captions(dataset.captions))


def test_a_folder_that_cannot_be_written_is_read(dataset, monkeypatch):
    def refused(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("vlalign.storage.common.tensor_files.file_lock", refused)
    pairs, _ = read(dataset)
    assert len(pairs["train"].captions) == 3 and not (dataset.captions / CACHE_NAME).exists()


def write_slowly(folder, began) -> None:
    read_part = captions._read_part

    def slow(*call):
        began.set()
        time.sleep(1)
        return read_part(*call)

    captions._read_part = slow
    read_captions(folder)


def test_a_killed_process_leaves_nothing_and_the_next_one_begins_again(dataset):
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    process = context.Process(target=write_slowly, args=(dataset.captions, began))
    process.start()
    assert began.wait(120)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not (dataset.captions / CACHE_NAME).exists()
    assert len(read_captions(dataset.captions)) == 7
    assert not list(dataset.captions.glob(".*.partial"))


@pytest.mark.slow
def test_processes_that_need_the_file_at_once_write_it_once(dataset, capsys):
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    process = context.Process(target=write_slowly, args=(dataset.captions, began))
    process.start()
    assert began.wait(120)
    assert len(read_captions(dataset.captions)) == 7  # waits for the other process
    written = (dataset.captions / CACHE_NAME).stat().st_ino
    process.join()
    assert process.exitcode == 0 and (dataset.captions / CACHE_NAME).stat().st_ino == written
