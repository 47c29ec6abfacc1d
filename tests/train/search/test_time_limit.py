"""A search ends when its time is over, wherever it is."""

import threading

import numpy as np
import pytest
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Caption
from vlalign.train.search.caption_index import open_caption_index
from vlalign.train.search.exact_search import ExactSearch
from vlalign.train.search.index import WindowIndex, open_index_shards
from vlalign.train.search.index import write_index_shard as write_vectors
from vlalign.train.search.query_checks import SearchTimeout, check_time, time_limit


def test_a_limit_ends_with_its_block():
    with time_limit(0), pytest.raises(SearchTimeout):
        check_time()
    with time_limit(60):
        check_time()
    check_time()


def test_a_cancelled_search_ends_before_its_time():
    cancelled = threading.Event()
    with time_limit(60, cancelled):
        check_time()
        cancelled.set()
        with pytest.raises(SearchTimeout, match="cancelled"):
            check_time()
    check_time()


def test_an_exact_search_ends(tmp_path):
    ones = np.ones((9, 4), np.float32)
    write_vectors(tmp_path, "key", {"v": 1}, [np.zeros((9, 2))], [ones])
    index = WindowIndex(open_index_shards(tmp_path), "key", {"v": 1})
    assert ExactSearch(index, ones[0]).scores.tolist() == [4.0] * 9
    with time_limit(0), pytest.raises(SearchTimeout):
        ExactSearch(index, ones[0])


def test_a_search_for_words_ends(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    texts = [f"the one and only number {number}" for number in range(20_000)]
    captions = [Caption(video_id=f"v{number}", caption=text, split="train") for number, text in enumerate(texts)]
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {})
    caption_index, every = open_caption_index(dataset), {caption.video_id for caption in captions}
    assert len(caption_index.find("the only number", 50, every)) == 50
    with time_limit(0), pytest.raises(SearchTimeout):
        caption_index.find("the only number", 50, every)
    assert next(found.video_id for found in caption_index.find("number 777", 5, every)) == "v777", (
        "and the next one is answered"
    )
