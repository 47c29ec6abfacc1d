"""Codes of windows: what they find is what comparing all vectors finds, whatever was added, removed or damaged."""

import re

import numpy as np
import pytest
from vlalign.storage import UserError
from vlalign.train.search import coded_search
from vlalign.train.search.coded_search import CodedIndex, CodeFolder, encode_vectors, read_coded_index, train_quantizer
from vlalign.train.search.exact_search import ExactSearch
from vlalign.train.search.index import WindowIndex, open_index_shards, write_index_shard

DIM, VIDEOS, WINDOWS = 100, 400, 10
KEY = "{}"


def write_videos(folder, numbers, seed):
    """Write a shard of videos, each near one of a few points."""
    rng = np.random.default_rng(seed)
    points = np.random.default_rng(0).normal(size=(20, DIM))
    vectors = [points[n % 20] + rng.normal(size=(WINDOWS, DIM)) for n in numbers]
    seconds = np.arange(float(WINDOWS))
    spans = [np.stack([seconds, seconds + 1], axis=1)] * len(vectors)
    return write_index_shard(folder, KEY, {f"v{n}": n for n in numbers}, spans, vectors)


def opened(folder, numbers=range(VIDEOS)):
    return WindowIndex(open_index_shards(folder), KEY, {f"v{n}": n for n in numbers})


def coded(folder, index):
    """Open the codes as a search does."""
    found = read_coded_index(index, folder)
    assert isinstance(found, CodedIndex)
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(coded_search, "EXACT_WINDOWS", 1000)
    monkeypatch.setattr(coded_search, "MIN_CANDIDATES", 200)
    monkeypatch.setattr(coded_search, "NUM_PROBES", 20)
    write_videos(tmp_path, range(200), 1)
    write_videos(tmp_path, range(200, VIDEOS), 2)
    CodeFolder(tmp_path).update(opened(tmp_path))
    return tmp_path


def queries(count=50):
    return np.random.default_rng(3).normal(size=(count, DIM)).astype(np.float32)


def test_codes_find_what_comparing_all_finds(folder):
    index = opened(folder)
    by_codes = coded(folder, index)
    shared = []
    for query in queries():
        rows, scores = by_codes.search(query).best(10, None)
        expected = index.vectors_of(np.arange(len(index.video))) @ query
        np.testing.assert_allclose(scores, expected[rows], rtol=1e-4, atol=1e-4)
        assert (np.diff(scores) <= 0).all()
        shared.append(len(set(rows) & set(np.argsort(-expected)[:10])) / 10)
    assert np.mean(shared) > 0.95


def test_percents_are_those_of_a_sample(folder):
    index, [query] = opened(folder), queries(1)
    scores = ExactSearch(index, query).scores[::37]
    exact, sampled = (of.percentiles(scores) for of in (ExactSearch(index, query), coded(folder, index).search(query)))
    np.testing.assert_allclose(sampled, exact, atol=3)


def test_videos_added_later_are_found_without_codes_and_get_theirs_from_the_same_quantizer(folder):
    before = {path: path.read_bytes() for path in CodeFolder(folder).path.iterdir()}
    [new] = [write_videos(folder, range(VIDEOS, VIDEOS + 50), 4)]
    index = opened(folder, range(VIDEOS + 50))
    by_codes = coded(folder, index)
    assert len(by_codes.uncoded_rows) == 50 * WINDOWS
    query = index.vectors_of(index.rows_of(f"v{VIDEOS + 7}"))[3]
    assert by_codes.search(query).best(1, None)[0].tolist() == [index.rows_of(f"v{VIDEOS + 7}")[3]]
    assert CodeFolder(folder).update(index) == 50 * WINDOWS
    assert len(coded(folder, index).uncoded_rows) == 0
    assert coded(folder, index).search(query).best(1, None)[0].tolist() == [index.rows_of(f"v{VIDEOS + 7}")[3]]
    assert {path: path.read_bytes() for path in before} == before
    new.unlink()
    CodeFolder(folder).update(opened(folder))
    assert set(CodeFolder(folder).path.iterdir()) == set(before), "codes of a shard that is gone are removed"


def test_videos_that_are_gone_are_not_found(folder):
    kept = range(0, VIDEOS, 2)
    index = opened(folder, kept)
    for query in queries(10):
        rows, _ = coded(folder, index).search(query).best(50, None)
        assert len(rows) == 50 and index.is_live[rows].all()


def test_of_chosen_videos_all_windows_are_compared(folder):
    index, [query] = opened(folder), queries(1)
    chosen = {"v3", "v200", "v377", "unknown"}
    found, expected = coded(folder, index).search(query).best(25, chosen), ExactSearch(index, query).best(25, chosen)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.slow
def test_the_same_windows_give_the_same_codes(folder):
    index = opened(folder)
    first, second = train_quantizer(index), train_quantizer(index)
    assert first.digest == second.digest
    for of_first, of_second in zip(
        *(encode_vectors(index.shards[0].vectors, of) for of in (first, second)), strict=True
    ):
        np.testing.assert_array_equal(of_first, of_second)


def test_vectors_of_no_numbers_do_not_spoil_the_others(tmp_path, folder):
    vectors = np.full((WINDOWS, DIM), np.nan)
    seconds = np.arange(float(WINDOWS))
    write_index_shard(folder, KEY, {"broken": 999}, [np.stack([seconds, seconds + 1], axis=1)], [vectors])
    index = WindowIndex(open_index_shards(folder), KEY, {"broken": 999} | {f"v{n}": n for n in range(VIDEOS)})
    CodeFolder(folder).update(index)
    rows, scores = coded(folder, index).search(queries(1)[0]).best(10, None)
    assert np.isfinite(scores).all() and not set(rows) & set(index.rows_of("broken"))


def test_few_windows_need_no_codes(folder, monkeypatch):
    monkeypatch.setattr(coded_search, "EXACT_WINDOWS", VIDEOS * WINDOWS)
    assert read_coded_index(opened(folder), folder) is None


def test_damaged_files_are_refused_in_one_line_and_codes_of_another_quantizer_are_made_again(folder):
    index, at = opened(folder), CodeFolder(folder)
    for path in sorted(at.path.iterdir()):
        whole = path.read_bytes()
        for length in (5, 300, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(UserError, match=f"{re.escape(str(path))}.*vlalign-index") as error:
                read_coded_index(index, folder)
            assert "\n" not in str(error.value)
        path.write_bytes(whole)
    at.quantizer_path.unlink()
    assert read_coded_index(index, folder) is None
    write_videos(folder, range(VIDEOS, VIDEOS + 10), 9)
    assert at.update(opened(folder, range(VIDEOS + 10))) == (VIDEOS + 10) * WINDOWS
