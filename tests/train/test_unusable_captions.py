"""Why no caption of a data set can be used for training."""

import pytest
from helpers.stores import video, write
from vlalign.storage import Caption, FeatureStore
from vlalign.storage.captions import write_captions_about, write_part
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.layout import DatasetFolder
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.pairs import read_pairs, why_none


def unusable(tmp_path, *clips):
    """A data set whose one video with features, v, is of 4 seconds; and those features."""
    dataset = DatasetFolder(tmp_path, "mine")
    write(dataset.features("s3d"), video("v", 6))
    captions = [
        Caption(video_id=one, caption="a man", split=split, start_seconds=s, end_seconds=e)
        for one, split, s, e in clips
    ]
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {})
    return dataset, ClipFeatures([FeatureStore(dataset.features("s3d"))])


def test_captions_after_their_video_s_end_are_the_cause_that_is_named(tmp_path):
    dataset, features = unusable(tmp_path, ("v", "test", 75, 80), ("v", "train", 90, 95))
    with pytest.raises(UserError) as refused:
        read_pairs(dataset, features, Problems())
    message = str(refused.value)
    assert "none of its 2 captions can be used: 2 start after their video's end" in message
    assert "('v': caption from 75.0 to 80.0 s, video of 4.0 s" in message and "ids" not in message


def test_every_cause_is_counted(tmp_path):
    dataset, features = unusable(
        tmp_path, ("v", "test", 75, 80), ("w", "test", 0, 1), ("x", "test", 0, 1), ("v", "train", 0, 1)
    )
    why = why_none(dataset, features, "test")
    assert "none of its 3 captions with split 'test' can be used: 1 start after" in why
    assert "2 are of videos without features in" in why and "('w'; it has 1 videos, such as 'v')" in why
    assert (
        why_none(dataset, features, "validation") == "none of its 4 captions has split 'validation' (test 3, train 1)"
    )
    assert len(read_pairs(dataset, features, Problems())["train"].clips) == 1
