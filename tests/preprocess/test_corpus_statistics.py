"""Statistics of splits."""

import json

from vlalign.preprocess import corpus_statistics as counting
from vlalign.preprocess.corpus_statistics import CorpusCounter, SkippedInputs, count_shared_texts, format_statistics
from vlalign.storage import Caption

ROWS = [
    ("train", "a", "x"),
    ("train", "a", "x"),
    ("train", "b", "x"),
    ("test", "b", "y"),
    ("test", "c", "x"),
]


def test_statistics_count_what_splits_share():
    counter = CorpusCounter()
    for split, video, text in ROWS:
        counter.add(Caption(video_id=video, caption=text, split=split))
    shared = count_shared_texts(ROWS, ["train", "test"])
    statistics = counter.statistics(shared_texts=shared, changed={}, left_out=SkippedInputs(count=0))
    train = statistics.splits["train"]
    assert (train.videos, train.clips, train.captions, train.shared_texts) == (2, 2, 3, 1)
    assert statistics.splits["test"].shared_texts == 0
    assert statistics.videos_in_both == {"train, test": 1}
    assert "videos in both train and test: 1" in format_statistics(statistics)


def test_counts_of_parts_add_up_to_those_of_all(tmp_path):
    whole, sum_of_parts = CorpusCounter(), CorpusCounter()
    captions = [
        Caption(
            video_id=f"v{n // 4}", caption="x", split="train" if n % 3 else "test", start_seconds=n // 2, end_seconds=n
        )
        for n in range(1, 60)
    ]
    for caption in captions:
        whole.add(caption)
    for video in sorted({caption.video_id for caption in captions}):
        part = CorpusCounter()
        for caption in captions:
            if caption.video_id == video:
                part.add(caption)
        sum_of_parts.add_all(CorpusCounter.from_json(json.loads(json.dumps(part.to_json()))))
    assert whole.to_json() == sum_of_parts.to_json()


def test_too_many_texts_are_not_compared_and_no_more_are_read(monkeypatch):
    monkeypatch.setattr(counting, "MAX_COMPARED_TEXTS", 3)
    rows = iter(
        [*ROWS, ("train", "a", "z"), ("train", "d", "w"), ("test", "e", "x"), ("test", "e", "w"), ("test", "e", "v")]
    )
    assert count_shared_texts(rows, ["train", "test"]) == {"train": None, "test": None}
    assert list(rows) == [("test", "e", "v")]
    assert count_shared_texts(ROWS, ["train", "test", "validation"]) == {"train": 1, "test": 0, "validation": 0}
