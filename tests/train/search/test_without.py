"""A text of which moments should show nothing: what it names goes, and the rest stays."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.planted_search import Tower, open_planted, plant, vector_of
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import UserError
from vlalign.train.search.encoder import ClipScores, StoreEncoder
from vlalign.train.search.query_checks import VideoSpan
from vlalign.train.search.search import WITHOUT_WEIGHT, Search

EMPTY, CROWDED, OTHER = (
    [f"empty{n}" for n in range(6)],
    [f"crowded{n}" for n in range(6)],
    [f"other{n}" for n in range(6)],
)
THINGS = ["dog", "boat", "kite", "umbrella", "sand", "waves"]
SCENES = (
    {video_id: [(8, f"beach {thing}")] for video_id, thing in zip(EMPTY, THINGS, strict=True)}
    | {video_id: [(8, f"beach people {thing}")] for video_id, thing in zip(CROWDED, THINGS, strict=True)}
    | {video_id: [(8, f"people {thing}")] for video_id, thing in zip(OTHER, THINGS, strict=True)}
    | {f"far{n}": [(8, f"forest {thing}")] for n, thing in enumerate(THINGS)}
)


class Staged(StoreEncoder):
    """An encoder with a second stage, of which only the best clips have a score."""

    calls: list[tuple[str, int, int]]

    def score(self, text, clips, rerank):
        self.calls.append((text, len(clips), rerank))
        first = self.encode_clips(clips) @ vector_of(text)
        second = np.where(np.argsort(np.argsort(-first)) < rerank, first**3, -9.0).astype(np.float32)
        return ClipScores(first + 0.5 * second, {"first": first, "second": second})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("root"), SCENES)


@pytest.fixture(scope="module")
def search(dataset):
    return open_planted(dataset)


@pytest.fixture
def staged(dataset):
    tower: Any = Tower()
    encoder = Staged(dataset, FeatureStore(dataset.features("clip_vit_b32")), tower)
    encoder.calls = []
    source: Any = SimpleNamespace(open_encoder=lambda: encoder)
    return Search.open(source)


def ids(moments):
    return [moment.video_id for moment in moments]


@pytest.mark.parametrize("kind", ["search", "staged"])
def test_what_is_named_goes_and_the_rest_stays(kind, request):
    search = request.getfixturevalue(kind)
    options: Any = {"num_results": 12, "group": "video"}
    before, after = search("beach", **options), search("beach", without="people", **options)
    assert set(ids(before)) == {*EMPTY, *CROWDED}
    assert set(ids(after)[:6]) == set(EMPTY) and not set(ids(after)) & set(OTHER)
    rest = [video_id for video_id in ids(after) if video_id in CROWDED]
    assert not rest or min(ids(after).index(v) for v in rest) >= 6


def test_an_example_less_a_text(search):
    like = VideoSpan("crowded0")
    assert set(ids(search(like=like, num_results=5))) & {*CROWDED}
    found = ids(search(like=like, without="people", num_results=6))
    assert not set(found) & {*CROWDED, *OTHER} and "empty0" in found


def test_scores_are_those_of_the_text_less_a_share_of_the_others(search, staged):
    minus_D = search.encode_query("beach") - WITHOUT_WEIGHT * vector_of("people")
    for moment in search("beach", without="people", num_results=9):
        assert moment.score == pytest.approx(float(search._vector_of(moment) @ minus_D), abs=1e-3)
        assert moment.percent_of_captions is None, "other texts' scores say nothing of it"
    for moment in staged("beach", without="people", num_results=9, rerank=2):
        first, other = (float(search._vector_of(moment) @ vector_of(text)) for text in ("beach", "people"))
        expected = first + 0.5 * first**3 - WITHOUT_WEIGHT * (other + 0.5 * other**3)
        assert moment.score == pytest.approx(expected, abs=2e-3)
    assert all(rerank == count for text, count, rerank in staged.encoder.calls if text == "people"), "none is cut"


@pytest.fixture
def subtitled(tmp_path):
    """A minute that shows a beach all the time: with subtitles about beaches, peoples, and both."""
    captions = {
        "a": [(0, 5, "the beach at noon"), (20, 25, "People at the beach"), (40, 45, "two persons")],
        "b": [(0, 5, "a beach"), (4, 9, "many people")],
        "c": [(0, 5, "the beach house")],
    }
    scenes = {video_id: [(10, "dog"), (10, "beach"), (10, "dog"), (10, "beach")] for video_id in captions}
    return open_planted(plant(tmp_path, scenes, captions))


def test_captions_with_its_words_bring_nothing_in(subtitled):
    every = subtitled("beach", by="text", num_results=99)
    assert {(m.video_id, m.start_seconds) for m in every} == {("a", 0), ("a", 20), ("b", 0), ("c", 0)}
    left = subtitled("beach", by="text", without="the people", num_results=99)
    assert {(m.video_id, m.start_seconds) for m in left} == {("a", 0), ("c", 0)}
    assert subtitled("beach", by="text", without="the", num_results=99) == every
    [line] = subtitled.warnings("beach", "text", "the")
    assert line.startswith("without 'the': ") and "stop words" in line


def test_captions_with_its_words_keep_others_from_lifting_a_moment(tmp_path):
    """The moment is 0 to 20 s. One subtitle in it is about beaches, another about people."""
    scenes = {"a": [(20, "beach"), (20, "dog")], "b": [(20, "beach"), (20, "dog")]}
    captions = {"a": [(0, 4, "the beach"), (12, 16, "the people")], "b": [(0, 4, "the beach"), (12, 16, "a kite")]}
    search = open_planted(plant(tmp_path, scenes, captions))
    assert {m.video_id: m.found_by for m in search("beach", num_results=2)} == {"a": "both", "b": "both"}
    found = search("beach", without="people", num_results=2)
    assert [(m.video_id, m.found_by, m.caption) for m in found] == [("b", "both", "the beach"), ("a", "video", None)]


def test_it_needs_something_to_look_for(search):
    with pytest.raises(UserError, match=r"^without people: .* text or an example"):
        search(without="people")
    with pytest.raises(UserError, match="2,000"):
        search("beach", without="x" * 2001)
    expected = [(m.video_id, m.score) for m in search("beach")]
    assert [(m.video_id, m.score) for m in search("beach", without=" ")] == expected
