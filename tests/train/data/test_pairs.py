"""Captions in columns, and the pairs made of them, against records in lists."""

import re

import numpy as np
import pytest
from helpers.stores import video, write
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.storage import Caption, FeatureStore, read_captions
from vlalign.storage.captions.files import caption_table, write_captions_about, write_part
from vlalign.storage.captions.table import CaptionTable
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.clips import Clip, Clips, Groups
from vlalign.train.data.pairs import make_pairs, read_pairs
from vlalign.train.data.usable_captions import why_split_is_unusable


def caption(video: str, times: tuple[float, float] | None, split: str, words: list[str], answer: str | None) -> Caption:
    text = " ".join(words)
    starts = [len(" ".join(words[:n])) + (n > 0) for n in range(len(words))]
    start, end = times or (None, None)
    rest = {"words": words, "word_starts": starts, "pos_tags": ["NOUN"] * len(words), "answer": answer}
    return Caption(video_id=video, caption=text, split=split, start_seconds=start, end_seconds=end, **rest)


TIMES = st.none() | st.tuples(st.sampled_from([0.0, 1.5, 3.0]), st.sampled_from([4.0, 5.25]))
WORDS = st.lists(st.sampled_from(["cut", "ögön", "切る"]), min_size=1, max_size=4)
CAPTIONS = st.lists(
    st.builds(
        caption,
        st.sampled_from("abcd"),
        TIMES,
        st.sampled_from(["train", "test"]),
        WORDS,
        st.none() | st.sampled_from(["x", "yes"]),
    ),
    max_size=20,
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Writes captions in parts of so many, and reads them."""

    def read(captions: list[Caption], size: int) -> CaptionTable:
        folder = tmp_path_factory.mktemp("captions")
        for number, first in enumerate(range(0, len(captions), size)):
            write_part(folder, number, captions[first : first + size], {})
        write_captions_about(folder, {})
        return read_captions(folder)

    return read


@settings(deadline=None)  # files are brought to disk
@given(captions=CAPTIONS, size=st.integers(1, 20), data=st.data())
def test_a_caption_table_equals_its_records(stored, captions, size, data):
    table = stored(captions, size)
    places = data.draw(st.lists(st.sampled_from(range(len(captions))), max_size=30) if captions else st.just([]))
    for found, expected in ((table, captions), (table.take(places), [captions[place] for place in places])):
        assert list(found) == expected and [found[number] for number in range(len(found))] == expected
        assert found[1:3] == expected[1:3] and len(found) == len(expected)
        starts = [np.nan if c.start_seconds is None else c.start_seconds for c in expected]
        np.testing.assert_array_equal(found.numbers("start_seconds"), np.array(starts, dtype=float))
        for name in ("video_id", "answer"):
            texts, codes = found.codes(name)
            values = [getattr(c, name) for c in expected]
            assert list(texts) == list(dict.fromkeys(value for value in values if value is not None))
            assert [texts[code] if code >= 0 else None for code in codes] == values
    assert list(caption_table(captions)) == captions
    with pytest.raises(IndexError):
        table[len(captions)]


@given(captions=CAPTIONS)
def test_pairs_are_clips_in_the_order_of_their_first_captions(captions):
    clips: dict[Clip, int] = {}
    numbers = [clips.setdefault(Clip(c.video_id, c.start_seconds, c.end_seconds), len(clips)) for c in captions]
    pairs = make_pairs(caption_table(captions))
    assert list(pairs.clips) == list(clips) == pairs.clips[:] and pairs.clip_of_caption.tolist() == numbers
    assert [pairs.clips.video_ids[number] for number in pairs.clips.video] == [clip.video_id for clip in clips]
    assert list(Clips.of(clips)) == list(clips)
    assert list(pairs.captions_of_clips) == [
        [n for n, of in enumerate(numbers) if of == clip] for clip in range(len(clips))
    ]


def test_groups_may_be_empty():
    groups = Groups.of(np.array([2, 0, 2]), 4)
    assert list(groups) == [[1], [], [0, 2], []] and groups[1:3] == [[], [0, 2]] and groups[-2] == [0, 2]


def unusable(tmp_path, *clips, video_id="v"):
    """A data set whose one video with features is of 4 seconds; and those features."""
    dataset = DatasetFolder(tmp_path, "mine")
    write(dataset.features("s3d"), video(video_id, 6))
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
    found = rf"{re.escape(str(dataset.captions))}: .*\b2\b.*: 2\b.*'v': .*\b75\.0\b.*\b80\.0\b.*\b4\.0\b"
    assert re.match(found, message) and "features" not in message, message


@pytest.mark.parametrize(("named", "is_named"), [("v", True), ("v.mp4", True), ("w", False)])
def test_captions_with_the_file_name_of_a_video_in_a_subfolder_are_to_be_matched_again(tmp_path, named, is_named):
    dataset, features = unusable(tmp_path, (named, "train", 0, 1), video_id="101/v")
    with pytest.raises(UserError) as refused:
        read_pairs(dataset, features, Problems())
    assert ("run vlalign-preprocess again" in str(refused.value)) == is_named


def test_every_cause_is_counted(tmp_path):
    dataset, features = unusable(
        tmp_path, ("v", "test", 75, 80), ("w", "test", 0, 1), ("x", "test", 0, 1), ("v", "train", 0, 1)
    )
    why = why_split_is_unusable(dataset, features, "test")
    place = re.escape(str(dataset.features("s3d")))
    late, unseen = r"1\b.*'v': .*\b75\.0\b", rf"2\b.*{place} .*'w'.*\b1\b.*'v'"
    assert re.match(rf".*\b3\b.*'test'.*: {late}.*, {unseen}", why), why
    assert re.match(
        r".*\b4\b.*'validation'.*\btest 3, train 1\b", why_split_is_unusable(dataset, features, "validation")
    )
    assert len(read_pairs(dataset, features, Problems())["train"].clips) == 1
