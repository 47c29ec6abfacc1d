"""What readers share: duplicates, ids and times that cannot be used, clips longer than their video."""

import json

import pytest
from helpers.annotation_files import coin_file, coin_video, youcook, youcook_clip, youcook_files
from helpers.readers import (
    brief,
    captions_of,
    left_out,
    write,
)
from vlalign.preprocess.datasets import DATASETS, activitynet, coin, youcook2
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems


def test_clips_longer_than_their_video_are_cut_and_counted(tmp_path):
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
    left_out(problems, ("segment 2", "11.0", "9.99"))
    assert problems.changed == {"ends after the video, cut at its duration": 1}
    write(tmp_path, youcook_files({"t": youcook([youcook_clip(0, 80, 95, "fry")])}))
    captions, problems = captions_of(youcook2, tmp_path, "all")
    assert (captions[0].end_seconds, problems.count) == (90, 0)
    assert problems.changed == {"ends after the video, cut at its duration": 1}


def test_duplicate_ids_are_left_out_and_the_first_is_kept(tmp_path):
    first, second = (json.dumps(coin_video("training", [("1", [1, 2], label)])) for label in ("first", "second"))
    write(tmp_path, {"COIN.json": f'{{"database": {{"a": {first}, "b": {second}, "a": {second}}}}}'})
    captions, problems = captions_of(coin, tmp_path)
    assert [(c.video_id, c.caption) for c in captions] == [("a", "first"), ("b", "second")]
    left_out(problems, ("COIN.json, entry 'a': ",))


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
def test_a_task_that_is_not_text_is_left_out(tmp_path, task):
    coin_file(tmp_path, {"a": coin_video("training", [("1", [1, 2], "x")], task=task)})
    captions, problems = captions_of(coin, tmp_path)
    assert captions == []
    left_out(problems, ("COIN.json, video 'a', segment 1: ", repr(task)))


def test_every_data_set_says_where_its_files_are_published(tmp_path):
    for name, spec in DATASETS.items():
        assert spec.protocols and all("http" in source for source in spec.published.values()), name
        with pytest.raises(UserError) as refused:
            list(spec.read(Annotations(tmp_path, spec.published, Problems()), spec.protocols[0]))
        named = [file for file, source in spec.published.items() if f"{file} ({source})" in str(refused.value)]
        assert named and str(refused.value).startswith(f"{tmp_path}: "), name
