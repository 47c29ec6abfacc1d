"""What a search can be asked for: several examples, the next moments, each video once, near-duplicates folded."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.planted_search import open_planted, plant
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.stores.maintenance import remove
from vlalign.train.cli.search import main as search_main
from vlalign.train.search import grouping
from vlalign.train.search import search as search_module
from vlalign.train.search.caption_scores import CaptionScores
from vlalign.train.search.encoder import l2_normalize
from vlalign.train.search.exact_search import ExactSearch
from vlalign.train.search.grouping import FOLD_AHEAD, NEAR_DUPLICATE_COSINE, fold_similar, one_of_each_video
from vlalign.train.search.moments import Moment, ScoreCurve, share_time
from vlalign.train.search.query_checks import VideoSpan
from vlalign.train.search.search import Search
from vlalign.train.search.video_filters import VideoFacts, VideoFilters

THINGS = ["beach", "dog", "forest", "car", "snow"]


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """Thirty videos of six scenes of 10 s; the first ten are there twice, with other noise."""
    rng = np.random.default_rng(1)
    scenes = {f"v{n:02d}": [(10, " ".join(rng.choice(THINGS, 2))) for _ in range(6)] for n in range(20)}
    scenes |= {f"copy{n}": scenes[f"v{n:02d}"] for n in range(10)}
    captions = {
        f"v{n:02d}": [(10.0 * k, 10.0 * k + 8, text) for k, (_, text) in enumerate(scenes[f"v{n:02d}"])]
        for n in range(0, 20, 3)
    }
    return open_planted(plant(tmp_path_factory.mktemp("root"), scenes, captions))


def keys(moments):
    return [(m.video_id, m.start_seconds, m.end_seconds, m.score, m.found_by) for m in moments]


def unit(vector):
    return vector / np.linalg.norm(vector)


OPTIONS = [{}, {"by": "video"}, {"by": "text"}, {"group": "video"}, {"fold": True}, {"group": "video", "fold": True}]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_next_moments_are_a_slice_of_a_longer_list(search, options):
    every = search("dog beach", num_results=10_000, **options)
    assert 10 < len(every) < 10_000
    for offset, count in ((0, 7), (3, 5), (7, 21), (len(every) - 2, 9), (len(every), 1)):
        part = search("dog beach", num_results=count, offset=offset, **options)
        assert keys(part) == keys(every[offset : offset + count])
        for name in ("similar", "occurrences"):
            assert [keys(vars(m)[name]) for m in part] == [keys(vars(m)[name]) for m in every[offset:][:count]]


def test_nothing_changes_for_who_asks_for_nothing_new(search):
    assert keys(search("dog", num_results=9)) == keys(search("dog", num_results=500))[:9]
    assert all(not m.similar and not m.occurrences for m in search("dog", num_results=50))


def test_several_examples_are_averaged(search):
    spans = [VideoSpan("v00", 0, 10), VideoSpan("v03", 20, 30), VideoSpan("v11", 50, 60)]
    vectors = [search.encode_query("", span) for span in spans]
    mean_D = np.mean([unit(vector) for vector in vectors], axis=0)
    np.testing.assert_allclose(search.encode_query("", spans), mean_D, atol=1e-6)
    both_D = 0.25 * unit(mean_D) + 0.75 * unit(search.encode_query("dog"))
    np.testing.assert_allclose(search.encode_query("dog", spans, 0.25), both_D, atol=1e-6)
    moments = search(like=spans, num_results=1000)
    for span in spans:
        assert not any(
            m.video_id == span.video_id and m.window[0] < span.end_seconds and m.window[1] > span.start_seconds
            for m in moments
        )
    assert keys(search(like=[spans[0]], num_results=9)) == keys(search(like=spans[0], num_results=9))


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("options", [{"by": "video"}, {}, {"by": "text"}])
def test_each_video_once_is_the_whole_list_grouped(search, options, is_known, monkeypatch):
    known = CaptionScores(np.array([0.9])) if is_known else None
    monkeypatch.setattr(search, "caption_scores", known)
    every = search("dog beach", num_results=10_000, **options)
    grouped = search("dog beach", num_results=10_000, group="video", **options)
    assert [m.video_id for m in grouped] == list(dict.fromkeys(m.video_id for m in every))
    for moment in grouped:
        of_video = [m for m in every if m.video_id == moment.video_id]
        assert keys([moment]) == keys(of_video[:1])
        spans = [(m.start_seconds, m.end_seconds) for m in moment.occurrences]
        assert spans == sorted(spans) and (moment.start_seconds, moment.end_seconds) in spans
        assert not any(share_time(a, b) for a in moment.occurrences for b in moment.occurrences if a is not b)
        if options == {"by": "video"}:
            curve = search.score_curve("dog beach", moment.video_id).scores
            limit = (curve.max() + np.median(curve)) / 2
            if known is not None and known.fits(moment.score):
                fitting = [m for m in of_video if known.fits(m.score)]
            else:
                fitting = [m for m in of_video if m is of_video[0] or m.curve.scores.max() >= limit]
            assert sorted(keys(fitting)) == sorted(keys(moment.occurrences))
    num_all = sum(len(moment.occurrences) for moment in grouped)
    assert num_all > len(grouped), "some videos show it twice"


class Counter:
    """Counts the calls of a method."""

    def __init__(self, monkeypatch, owner, name):
        self.calls, method = [], getattr(owner, name)

        def counted(*arguments, **options):
            self.calls.append(arguments)
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_part_is_a_slice_and_says_whether_there_is_more(search, options):
    every = search("dog beach", num_results=10_000, **options)
    for offset in range(0, len(every) + 7, 7):
        found, has_more = search.part("dog beach", num_results=7, offset=offset, **options)
        assert keys(found) == keys(every[offset : offset + 7]) and has_more == (len(every) > offset + 7)
        assert [keys(m.occurrences) for m in found] == [keys(m.occurrences) for m in every[offset : offset + 7]]


def test_what_follows_is_neither_encoded_nor_ranked_again(search, monkeypatch):
    search._listings.close()
    encoded = Counter(monkeypatch, search.encoder, "encode_text")
    ranked = Counter(monkeypatch, search.caption_index, "_ranked")
    others = Counter(monkeypatch, search, "_with_others")
    for offset in (0, 4, 8):
        search.part("dog beach", num_results=4, offset=offset, group="video")
    assert len(encoded.calls) == 1
    assert len(ranked.calls) == 2 + 3, "the least score, the list, and for all videos of a page together"
    assert len(others.calls) == 3 * 4, "none for the video behind a page"


def test_windows_are_ranked_in_blocks_however_many_are_asked_for(search, monkeypatch):
    """Scores with many ties: of equal ones, the first window comes first."""
    candidates = ExactSearch(search.index, search.encode_query("dog"))
    candidates.scores = np.random.default_rng(0).integers(0, 40, len(candidates.scores)).astype(np.float32)
    asked, videos = Counter(monkeypatch, candidates, "best"), {f"v{n:02d}" for n in range(20)}
    video_of = [search.index.video_ids[number] for number in search.index.video]
    for chosen in (None, videos):
        asked.calls.clear()
        blocks = list(search._hits(candidates, 100, chosen))
        rows = [row for row, video_id in enumerate(video_of) if chosen is None or video_id in chosen]
        rows = sorted(rows, key=lambda row: (-candidates.scores[row], row))
        spans = search.index.spans_of(np.array(rows)).tolist()
        expected = [(video_of[row], *span) for row, span in zip(rows, spans, strict=True)]
        assert [(h.video_id, h.start_seconds, h.end_seconds) for block in blocks for h in block] == expected
        assert {len(block) for block in blocks[:-1]} == {100} and len(blocks) == math.ceil(len(rows) / 100)
        assert [count for count, _ in asked.calls] == [100 * 2**n for n in range(len(asked.calls))]
        assert asked.calls[-1][0] / 2 <= len(rows)


def test_nothing_is_read_once_all_videos_were_seen(search):
    def moments():
        yield from search("dog", num_results=10, by="video", videos={"v00"})[:1]
        yield from search("dog", num_results=10, by="video", videos={"v01"})[:2]
        raise AssertionError

    assert [m.video_id for m in one_of_each_video(moments(), 2)] == ["v00", "v01"]
    assert list(one_of_each_video(moments(), 0)) == []


def folded_by_loops(search, moments):
    """Return [(moment, its similar ones)], as the definition says it."""
    kept = []
    for place, moment in enumerate(moments):
        vector = unit(search._vector_of(moment))
        for first_place, best, best_vector, similar in kept:
            looks_the_same = best.video_id != moment.video_id and vector @ best_vector >= NEAR_DUPLICATE_COSINE
            if looks_the_same and (moment.found_by != "text" or best.caption == moment.caption):
                if place - first_place <= FOLD_AHEAD:
                    similar.append(moment)
                break
        else:
            kept.append((place, moment, vector, []))
    return [(best, similar) for _, best, _, similar in kept]


@pytest.mark.parametrize("options", [{"by": "video"}, {}])
def test_near_duplicates_are_with_the_better_one(search, options):
    every = search("dog beach", num_results=10_000, **options)
    expected = folded_by_loops(search, every)
    found = search("dog beach", num_results=10_000, fold=True, **options)
    assert keys(found) == keys([best for best, _ in expected]) and len(found) < len(every)
    assert [keys(m.similar) for m in found] == [keys(similar) for _, similar in expected]
    assert any(m.similar for m in found)


def test_the_vector_of_a_moment_is_that_of_its_window(search):
    for moment in search("dog", num_results=20, by="video"):
        rows = search.index.rows_of(moment.video_id)
        [row] = rows[(search.index.spans_of(rows) == moment.window).all(axis=1)]
        np.testing.assert_array_equal(search._vector_of(moment), search.index.vectors_of(np.array([row]))[0])
        assert l2_normalize(search._vector_of(moment)) @ search.encode_query("dog") == pytest.approx(
            moment.score, abs=1e-3
        )


def test_all_that_fit_are_bounded_with_a_line(search, capsys, monkeypatch):
    known = CaptionScores(np.linspace(0.6, 0.9, 20))
    monkeypatch.setattr(search, "caption_scores", known)
    fits = [m for m in search("dog", num_results=10_000, by="video") if known.fits(m.score)]
    assert keys(search("dog", num_results=None, by="video")) == keys(fits) and fits
    assert all(m.found_by != "video" or known.fits(m.score) for m in search("dog", num_results=None))
    monkeypatch.setattr(search, "caption_scores", CaptionScores(np.linspace(2, 3, 20)))
    assert keys(search("dog", num_results=None, by="video")) == keys(search("dog", by="video")), "the nearest"
    assert not capsys.readouterr().err
    monkeypatch.setattr(search_module, "MAX_ALL", 15)
    like = VideoSpan("v00", 0, 10)
    assert keys(search(like=like, num_results=None)) == keys(search(like=like, num_results=15))
    [line] = capsys.readouterr().err.splitlines()
    assert "15" in line
    assert search(like=like, num_results=None, videos={"v01"}) and not capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "name"),
    [({"offset": -1}, "offset -1"), ({"offset": 100_001}, "offset 100001"), ({"group": "folder"}, "group folder")],
)
def test_what_cannot_be_asked_for_is_one_line(search, options, name):
    with pytest.raises(SettingError, match=f"^{name}: expected "):
        search("dog", **options)


def test_videos_whose_features_are_removed_meanwhile_are_not_found(tmp_path, monkeypatch):
    scenes = {f"v{n}": [(10, "dog"), (10, "beach")] for n in range(4)}
    search = open_planted(plant(tmp_path, scenes, {"v1": [(0, 5, "the dog")], "v2": [(0, 5, "a dog")]}))
    folder = search.encoder.dataset.features("clip_vit_b32")
    assert len({m.video_id for m in search("dog", num_results=50)}) == 4
    remove(folder, ["v1", "v3"])
    monkeypatch.setattr(search.encoder, "store", FeatureStore(folder))  # as it reads itself anew, at a lost shard
    for options in ({}, {"by": "text"}, {"by": "video", "group": "video"}, {"like": VideoSpan("v0", 0, 10)}):
        found = {m.video_id for m in search("dog", num_results=50, **options)}
        assert found and found <= {"v0", "v2"}, "also of a list that is kept open"
    assert VideoFilters(min_seconds=1).videos(VideoFacts(search)) == {"v0", "v2"}
    for ask in (search.score_curve, search.word_curves):
        with pytest.raises(UserError, match="'v1': not in the index"):
            ask("dog", "v1")
    with pytest.raises(UserError, match="'v3': not in the index"):
        search.like("v3")


def test_a_caption_finds_a_video_that_is_not_in_the_index_yet(tmp_path):
    search = open_planted(plant(tmp_path, {f"v{n}": [(10, "dog")] for n in range(3)}, {"v1": [(0, 5, "the dog")]}))
    search.index._end_of[1] = search.index._first_of[1]
    search.index.video[search.index.video == 1] = -1
    search.index.is_live[:] = search.index.video >= 0
    for group in (None, "video"):
        found = search("dog", fold=True, group=group, num_results=50)
        assert any(m.video_id == "v1" for m in found)
        assert {s.video_id for m in found for s in (m, *m.similar)} == {"v0", "v1", "v2"}


def test_an_error_that_is_no_lost_video_is_not_hidden(search, monkeypatch):
    def curve(self, query_D, video_id):
        raise KeyError("other")

    monkeypatch.setattr(type(search.encoder), "curve", curve)
    with pytest.raises(KeyError, match="other"):
        search("dog")


OPTIONS_OF_THE_COMMAND = [
    (["dog", "--no-fold", "--skip", "3", "--num-results", "4"], {"offset": 3, "num_results": 4}),
    (["dog", "--by", "video"], {"by": "video", "fold": True}),
    (["dog", "--group", "video", "--num-results", "7"], {"group": "video", "num_results": 7, "fold": True}),
    (["dog", "--all", "--by", "text", "--no-fold"], {"num_results": None, "by": "text"}),
    (["dog", "--without", "beach", "--no-fold"], {"without": "beach"}),
    (["--like", "v00@0-10", "--like", "v03", "--no-fold"], {"like": [VideoSpan("v00", 0, 10), VideoSpan("v03")]}),
]


@pytest.mark.parametrize(
    ("words", "options"), OPTIONS_OF_THE_COMMAND, ids=[" ".join(o[0]) for o in OPTIONS_OF_THE_COMMAND]
)
def test_the_command_asks_as_python_does(search, words, options, monkeypatch, capsys):
    monkeypatch.setattr(Search, "open", lambda source: search)
    text = "" if "like" in options else "dog"
    expected = search(text, **options)
    call = [*words, "--dataset", "planted", "--features", "clip_vit_b32", "--root", str(search.encoder.dataset.root)]
    assert search_main([*call, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["query"], found["without"]) == (text, options.get("without", ""))
    assert [(m["video_id"], m["score"], m["best_seconds"]) for m in found["moments"]] == [
        (m.video_id, pytest.approx(m.score), m.best_seconds) for m in expected
    ]
    assert [[s["video_id"] for s in m["similar"]] for m in found["moments"]] == [
        [s.video_id for s in m.similar] for m in expected
    ]
    assert [[o["start_seconds"] for o in m["occurrences"]] for m in found["moments"]] == [
        [o.start_seconds for o in m.occurrences] for m in expected
    ]
    assert search_main(call) == 0
    lines = capsys.readouterr().out.splitlines()
    num_similar = [f"+{len(m.similar)} similar" for m in expected if m.similar]
    assert [word for word in num_similar if not any(word in line for line in lines)] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--without", "people"], "--without people: "),
        (["dog", "--skip", "-1"], "--skip -1: expected 0 to 100,000"),
        (["dog", "--all", "--num-results", "3"], "--num-results 3: "),
        (["dog", "--without", "x", "--rerank", "9"], "--rerank 9: "),
        (["dog", "--folder", "x"], "--folder x: no video is in it"),
        (["dog", "--since", "x"], "--since x: expected a day"),
        (["dog", "--caption-language", "xx"], "--caption-language xx: "),
        (
            ["dog", "--without", "x" * 2001],
            f"--without {'x' * 100}...{'x' * 100}: 2,001 characters; expected at most 2,000",
        ),
        (
            ["dog", "--caption", "x" * 2001],
            f"--caption {'x' * 100}...{'x' * 100}: 2,001 characters; expected at most 2,000",
        ),
        (["dog", "--folder", "x" * 5000], f"--folder {'x' * 100}...{'x' * 100}: no video is in it"),
        (["dog", "--caption-language", "x" * 5000], f"--caption-language {'x' * 100}...{'x' * 100}: "),
        (["dog", "--folder", ""], "--folder (empty): no video is in it"),
    ],
)
def test_the_command_names_its_options(search, words, message, monkeypatch, capsys):
    monkeypatch.setattr(Search, "open", lambda source: search)
    root = str(search.encoder.dataset.root)
    assert search_main([*words, "--dataset", "planted", "--features", "clip_vit_b32", "--root", root]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_behind_the_last_moment_is_said(search, monkeypatch, capsys):
    monkeypatch.setattr(Search, "open", lambda source: search)
    call = ["dog", "--skip", "9000", "--dataset", "planted", "--features", "clip_vit_b32"]
    assert search_main([*call, "--root", str(search.encoder.dataset.root)]) == 0
    assert "9,000" in capsys.readouterr().out


def made_moments(num_moments):
    empty = ScoreCurve(*np.zeros((3, 0)))
    times = {"start_seconds": 0.0, "end_seconds": 1.0, "window": (0.0, 1.0), "percentile": None, "curve": empty}
    return [Moment(video_id=f"v{n}", score=float(-n), **times) for n in range(num_moments)]


def test_folding_ends_behind_many_near_duplicates(monkeypatch):
    monkeypatch.setattr(grouping, "MAX_IN_A_ROW", 20)
    looked_at = []
    found = fold_similar(made_moments(60), lambda moment: looked_at.append(moment) or np.ones(4))
    ids = [moment.video_id for moment in found]
    assert ids == ["v0", *(f"v{n}" for n in range(21, 60))] and len(looked_at) == 21


def test_what_only_captions_found_folds_under_the_same_caption():
    first, *others = made_moments(5)
    captions = ["tighten the screw", "cut the onion", "cut the onion", "tighten the screw"]
    said = [replace(m, found_by="text", caption=text) for m, text in zip(others, captions, strict=True)]
    seen = replace(first, found_by="both", caption="tighten the screw")
    found = list(fold_similar([seen, *said], lambda moment: np.ones(4)))
    assert [(moment.video_id, [other.video_id for other in moment.similar]) for moment in found] == [
        ("v0", ["v1", "v4"]),
        ("v2", ["v3"]),
    ]
    unread = list(fold_similar([first, *said], lambda moment: np.ones(4)))
    assert [moment.video_id for moment in unread] == ["v0", "v1", "v2"]


def test_moments_are_compared_with_a_bounded_number_of_better_ones(monkeypatch):
    monkeypatch.setattr(grouping, "MAX_COMPARED", 3)
    moments = made_moments(10)
    vectors = {moment.video_id: np.eye(5)[n % 5] for n, moment in enumerate(moments)}
    found = list(fold_similar(moments, lambda moment: vectors[moment.video_id]))
    assert [moment.video_id for moment in found] == ["v0", "v1", "v2", "v3", "v4", "v8", "v9"]
    assert [[other.video_id for other in moment.similar] for moment in found[:3]] == [["v5"], ["v6"], ["v7"]]
