"""Whether anything fits a text: scores beside those that held-out captions find, which plain numpy computes again."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.toy import make_toy
from helpers.training import at
from starlette.testclient import TestClient
from vlalign.storage.captions.files import read_captions, read_captions_about, write_captions_about
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import build_index, open_search
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.page.app import make_app
from vlalign.train.page.guard import Access
from vlalign.train.search import caption_scores
from vlalign.train.search.caption_scores import CaptionScores, search_for_captions
from vlalign.train.search.search_source import SearchSource


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    toy = make_toy(tmp_path_factory.mktemp("toy"), num_videos=96)
    settings = ["--features", "s3d", "--num-steps", "20", "--validate-every", "10", "--losses", "word"]
    assert train_main([*at(toy), *settings, "--run-name", "r"]) == 0
    return toy


def test_the_scores_are_the_best_of_all_windows_for_captions_that_training_had_not(toy):
    search = open_search(run=toy.runs / "r")
    known = search.caption_scores
    assert known is not None
    held_out = [c.caption for c in read_captions(toy.captions) if c.split != "train"]
    assert len(known.scores) == min(len(held_out), caption_scores.MAX_CAPTIONS)
    every = sorted(search(text, num_results=1, by="video")[0].score for text in held_out)
    assert set(np.round(known.scores, 4)) <= set(np.round(every, 4)) and (np.diff(known.scores) >= 0).all()


def test_moments_say_how_many_captions_fit_less_well(toy):
    search = open_search(run=toy.runs / "r")
    assert search.caption_scores is not None
    [best, *_] = search("a person slices the onion", by="video")
    share = np.mean(search.caption_scores.scores < best.score)
    assert best.percent_of_captions == pytest.approx(100 * share)
    assert all(moment.percent_of_captions is None for moment in search.like(best.video_id))


def test_nothing_fits_if_nearly_all_captions_fit_better(toy, capsys):
    search = open_search(run=toy.runs / "r")
    moments = search("a person slices the onion", by="video")
    best = max(moment.score for moment in moments)
    for below, reason in ((4, "96 % of 100 held-out captions"), (5, None)):
        scores = np.concatenate([np.full(below, best - 1), np.full(100 - below, best + 1)])
        search.caption_scores = CaptionScores(scores)
        found = search.why_nothing_fits("a person slices the onion", moments)
        assert found is None if reason is None else str(found).startswith(reason)
        by_text = [replace(moments[0], found_by="both")]
        assert search.why_nothing_fits("a person slices the onion", by_text) is None, "a caption has its words"
    assert search.why_nothing_fits("zzgrk qwx", moments) == "no word of the text is known to the model"
    assert search_main([*at(toy), "r", "zzgrk qwx", "--by", "video"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == "nothing fits: no word of the text is known to the model; the nearest moments are"
    assert len(shown) > 3, "the nearest moments are shown all the same"


def test_scores_are_stored_and_found_again(toy, monkeypatch):
    first = open_search(run=toy.runs / "r").caption_scores
    monkeypatch.setattr(caption_scores, "search_for_captions", None)
    again = open_search(run=toy.runs / "r").caption_scores
    assert first is not None and again is not None and np.array_equal(first.scores, again.scores)


@pytest.mark.parametrize("content", ["{", "[]", '{"scores": "x"}', '{"scores": [1, null]}', '{"scores": [[1]]}'])
def test_a_damaged_file_is_one_line(toy, content):
    open_search(run=toy.runs / "r")
    path = toy.path / "index" / "r" / caption_scores.FILE_NAME
    whole = path.read_text()
    damaged = content
    if content.startswith('{"scores"'):
        damaged = json.dumps(json.loads(whole) | json.loads(content))
    path.write_text(damaged)
    try:
        with pytest.raises(UserError, match=r"caption_scores\.json: not the scores of captions .*remove it"):
            open_search(run=toy.runs / "r")
    finally:
        path.write_text(whole)


NOT_KNOWN = "whether anything fits the text is unknown"


def test_with_speech_or_few_captions_it_is_said_that_nothing_is_known(toy, monkeypatch, capsys):
    about = read_captions_about(toy.captions)
    assert about is not None
    write_captions_about(toy.captions, about | {"speech": True})
    try:
        search = open_search(run=toy.runs / "r")
        assert search.caption_scores is None
        for options, num_notes in (({}, 1), ({"by": "video"}, 1), ({"by": "text"}, 0), ({"has_example": True}, 0)):
            notes = [line for line in search.warnings("onion", **options) if NOT_KNOWN in line]
            assert len(notes) == num_notes and all("fewer than 20 captions" in note for note in notes)
        assert not any(NOT_KNOWN in line for line in search.warnings("zzgrk")), "no word is known"
        capsys.readouterr()
        assert search_main([*at(toy), "r", "the onion"]) == 0
        assert capsys.readouterr().out.count(f"note: {NOT_KNOWN}") == 1
        client = TestClient(make_app([search], Access(["127.0.0.1"])), base_url="http://127.0.0.1")
        warnings = client.get("/api/search", params={"q": "onion"}).json()["warnings"]
        assert len([line for line in warnings if NOT_KNOWN in line]) == 1
    finally:
        write_captions_about(toy.captions, about)
    assert search_for_captions(lambda _: 1.0, ["a"] * 19) is None
    assert search_for_captions(lambda _: None, ["a"] * 40) is None


def test_among_many_windows_only_vlalign_index_searches_for_captions(toy, monkeypatch):
    monkeypatch.setattr("vlalign.train.search.search.MAX_WINDOWS_OF_SCORES", 1)
    (toy.path / "index" / "r" / caption_scores.FILE_NAME).unlink(missing_ok=True)
    search = open_search(run=toy.runs / "r")
    assert search.caption_scores is None
    assert "windows; run vlalign-index --dataset toy" in search.warnings("the onion")[-1]
    build_index(SearchSource(toy.path, run=toy.runs / "r"))
    search = open_search(run=toy.runs / "r")
    assert search.caption_scores is not None and not any(NOT_KNOWN in line for line in search.warnings("the onion"))


def test_a_search_of_some_videos_as_json(toy, capsys):
    call = [*at(toy), "r", "a person slices the onion", "--json", "--split", "test", "--max-seconds", "1000"]
    assert search_main(call) == 0
    found = json.loads(capsys.readouterr().out)
    split_of = {caption.video_id: caption.split for caption in read_captions(toy.captions)}
    assert found["num_videos"] == sum(split == "test" for split in split_of.values())
    assert found["moments"] and all(split_of[moment["video_id"]] == "test" for moment in found["moments"])
    assert {"query", "nothing_fits", "warnings", "dataset", "model"} <= found.keys()
    for wrong in (["--split", "all"], ["--min-seconds", "-1"], ["--min-seconds", "5", "--max-seconds", "4"]):
        assert search_main([*at(toy), "r", "onion", *wrong]) == 2
        assert f"{wrong[-2]} " in capsys.readouterr().err
