"""Statistics of splits."""

from vlalign.preprocess.census import Census, LeftOut, format_statistics
from vlalign.storage import Caption


def test_statistics_count_what_splits_share():
    census = Census()
    for video, split, text in (
        ("a", "train", "x"),
        ("a", "train", "x"),
        ("b", "train", "x"),
        ("b", "test", "y"),
        ("c", "test", "x"),
    ):
        census.add(Caption(video_id=video, caption=text, split=split))
    statistics = census.statistics(changed={}, left_out=LeftOut(count=0))
    train = statistics.splits["train"]
    assert (train.videos, train.clips, train.captions, train.shared_texts) == (2, 2, 3, 1)
    assert statistics.splits["test"].shared_texts == 0
    assert statistics.videos_in_both == {"train, test": 1}
    assert "videos in both train and test: 1" in format_statistics(statistics)
