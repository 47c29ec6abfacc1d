"""The caption index: captions and subtitles are found by their words, and fused with moments that the videos give."""

import re
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from helpers.toy import make_toy
from vlalign.preprocess import cli as preprocess
from vlalign.storage import Caption, FeatureStore, UserError, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train import SearchSource, build_index, open_search
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.search.caption_index import FILE_NAME, NO_CURVE, CaptionIndex, open_caption_index
from vlalign.train.search.moments import Moment, fuse_rankings

CUES = {
    "kitchen": ["we heat the pan", "now she mentions the oven", "the oven is hot and the bread goes in"],
    "garden": ["the roses are red", "the weather is fine", "water them in the evening"],
    "street": ["the bus is late", "the bus comes", "the door of the bus opens"],
}


def subtitles(texts):
    times = [f"00:00:{4 * n:02d},000 --> 00:00:{4 * n + 3:02d},500" for n in range(len(texts))]
    return "\n\n".join(f"{n}\n{at}\n{text}" for n, (at, text) in enumerate(zip(times, texts, strict=True), 1))


@pytest.fixture
def mine(tmp_path):
    """Three videos of 12 s with subtitles, whose features' model reads no texts."""
    dataset, rng = DatasetFolder(tmp_path, "mine"), np.random.default_rng(0)
    starts = np.arange(12.0)
    times = {"start_seconds": starts, "end_seconds": starts + 1, "valid_frames": np.ones(12, int)}
    videos = [
        VideoFeatures(video_id=v, features=rng.normal(size=(12, 1024)), duration_seconds=12.0, **times) for v in CUES
    ]
    write_shard(dataset.features("s3d"), PROFILES["s3d"], Weights(name="w", sha256="0" * 64), videos, made_with={})
    folder = tmp_path / "subtitles"
    folder.mkdir()
    for video_id, texts in CUES.items():
        (folder / f"{video_id}.srt").write_text(subtitles(texts))
    assert preprocess.main(["--root", str(tmp_path), "--dataset", "mine", "--annotations", str(folder)]) == 0
    return dataset


def test_subtitles_are_found_without_a_training(mine, capsys):
    search = open_search(mine.path, features="s3d")
    found = search("where does she mention the oven")
    assert [(m.video_id, m.start_seconds, m.end_seconds, m.caption) for m in found] == [
        ("kitchen", 4.0, 7.5, "now she mentions the oven")
    ]
    assert (found[0].found_by, found[0].percentile) == ("text", None) and found[0].score > 0
    assert [m.start_seconds for m in search("oven")] == [4.0, 8.0], "the shorter caption first"
    assert {m.video_id for m in search("bus", num_results=2)} == {"street"} and len(search("bus", num_results=2)) == 2
    assert search("oven", videos={"street"}) == [] and search("zeppelin") == []
    capsys.readouterr()
    call = ["--root", str(mine.root), "--dataset", "mine", "--features", "s3d"]
    assert search_main([*call, "the oven"]) == 0
    out = capsys.readouterr().out
    assert 'text      kitchen  "now she mentions the oven"' in out
    assert out.splitlines()[-1:] == [f"note: {warning}" for warning in search.warnings("the oven")]
    assert search_main([*call, "--like", "kitchen@0-4"]) == 0, "an example needs no text tower"


QUERIES = ['"', "x OR y", "oven*", "NEAR(oven, 2)", "text:oven", "'; DROP TABLE said; --", "🙂", "^"]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_no_language(mine, query):
    found = open_search(mine.path, features="s3d")(query)
    assert {m.video_id for m in found} <= {"kitchen"}
    assert bool(found) == ("oven" in query)


def test_a_protocol_is_searched_too_and_changes_are_seen(mine):
    first = open_caption_index(mine)
    assert first.find("trees", 9, CUES) == []
    file = mine.path / "index" / FILE_NAME
    made = file.stat().st_mtime_ns
    assert open_caption_index(mine) is not None and file.stat().st_mtime_ns == made, "not read again"
    folder = mine.root / "subtitles"
    (folder / "garden.srt").write_text(subtitles(["tall trees", "the weather is fine"]))
    call = ["--root", str(mine.root), "--dataset", "mine", "--annotations", str(folder), "--protocol", "merged"]
    assert preprocess.main(call) == 0
    again = open_caption_index(mine)
    assert [match.text for match in again.find("trees", 9, CUES)] == ["tall trees the weather is fine"]
    assert len(again.find("roses", 9, CUES)) == 1, "the usual captions stay"


def test_captions_after_the_end_of_the_features_are_left_out(mine):
    times = {"before": (10.0, 13.0), "after": (12.0, 14.0)}
    captions = [
        Caption(video_id="garden", caption=f"a word {text}", split="test", start_seconds=start, end_seconds=end)
        for text, (start, end) in times.items()
    ]
    folder = mine.captions / "other"
    write_part(folder, 0, captions, {})
    write_captions_about(folder, {"protocol": "other"})
    found = open_search(mine.path, features="s3d")("a word")
    assert [(m.caption, m.start_seconds, m.end_seconds) for m in found] == [("a word before", 10.0, 12.0)]


def test_a_damaged_file_is_refused_in_one_line(mine):
    open_caption_index(mine)
    path = mine.path / "index" / FILE_NAME
    whole = path.read_bytes()
    for content in (b"", b"no database", whole[:5000], whole[:100] + bytes(len(whole) - 100)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=re.escape(str(path))) as refused:
            CaptionIndex(path).find("oven", 3, CUES)
            CaptionIndex(path).made_from()
        assert "\n" not in str(refused.value)
    path.write_bytes(whole)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE said SET end_seconds = 'x'")
    with pytest.raises(UserError, match=re.escape(str(path))):
        CaptionIndex(path).find("oven", 3, CUES)
    path.write_bytes(whole)
    with sqlite3.connect(path) as database:
        database.execute("CREATE VIEW trap AS SELECT load_extension('evil')")
    with pytest.raises(UserError, match=re.escape(str(path))):
        open_caption_index(mine)


def test_what_is_seen_and_said_is_fused(tmp_path):
    toy = make_toy(tmp_path)
    call = ["--root", str(toy.root), "--dataset", "toy", "--features", "s3d", "--num-steps", "2", "--run-name", "r"]
    assert train_main(call) == 0
    assert build_index(SearchSource(toy.path, run="r")).num_videos == 24 and (toy.path / "index" / FILE_NAME).exists()
    search = open_search(toy.path, run="r")
    captions = {v: search.caption_index.find("onion", 99, {v}) for v in search.index.video_ids}
    with_onion = {video_id for video_id, found in captions.items() if found}
    by_text = search("onion", num_results=24, by="text")
    assert {m.video_id for m in by_text} <= with_onion and all("onion" in m.caption for m in by_text)
    fused = search("onion", num_results=24)
    assert {m.found_by for m in fused} <= {"both", "video", "text"}
    assert {m.video_id for m in fused if m.found_by != "video"} == {m.video_id for m in by_text}
    seen = {(m.video_id, m.window): m.score for m in search("onion", num_results=99, by="video")}
    for moment in fused:
        assert moment.score == pytest.approx(seen[moment.video_id, moment.window], abs=1e-4), "the score is the run's"


def moment(video_id, start, end, found_by="video"):
    caption = None if found_by == "video" else f"of {video_id}"
    return Moment(
        video_id=video_id, start_seconds=start, end_seconds=end, score=1.0, percentile=1.0, window=(start, end),
        curve=NO_CURVE, found_by=found_by, caption=caption,
    )  # fmt: skip


def test_fusion_adds_reciprocal_ranks():
    """Of equal points, moments that the video found come first."""
    by_video = [moment("a", 0, 4), moment("b", 0, 4), moment("c", 8, 12)]
    by_text = [
        moment("x", 1, 2, "text"),
        moment("c", 0, 8, "text"),
        moment("c", 11, 13, "text"),
        moment("c", 9, 10, "text"),
    ]
    fused = list(fuse_rankings(by_video, by_text))
    # c: 1/63 + 1/63; a and x: 1/61; b and c's other caption, which only touches the moment: 1/62
    assert [(m.video_id, m.found_by, m.start_seconds) for m in fused] == [
        ("c", "both", 8),
        ("a", "video", 0),
        ("x", "text", 1),
        ("b", "video", 0),
        ("c", "text", 0),
    ]
    assert fused[0].caption == "of c"


def test_captions_that_fit_equally_well_share_their_rank():
    """The last of four equal ones has the rank of the first, so that the best video stays in front."""
    by_video = [moment("a", 0, 4), moment("b", 0, 4), moment("c", 0, 4)]
    by_text = [replace(moment(name, 0, 4, "text"), caption_score=2.5) for name in "cdea"]
    by_text.append(replace(moment("b", 0, 4, "text"), caption_score=2.0))
    fused = list(fuse_rankings(by_video, by_text))
    # a: 1/61 + 1/61; c: 1/63 + 1/61; b: 1/62 + 1/65; d and e: 1/61
    assert [m.video_id for m in fused] == ["a", "c", "b", "d", "e"]
    assert [m.caption_score for m in fused] == [2.5, 2.5, 2.0, 2.5, 2.5]


def test_later_ranks_are_fused_behind_the_first_ones():
    """Rank 21 of both lists has more points than rank 1 of one list, and a moment is listed once."""
    by_video = [moment(f"v{n}", 0, 4) for n in range(30)]
    by_text = [moment(f"t{n}", 0, 4, "text") for n in range(20)] + [moment("v20", 0, 4, "text")]
    by_text += [moment("v3", 0, 2, "text"), moment("new", 0, 2, "text")]
    fused = [(m.video_id, m.found_by) for m in fuse_rankings(by_video, by_text)]
    assert [fused.index((f"v{n}", "video")) for n in range(20)] == list(range(0, 40, 2))
    assert fused[40] == ("v20", "both") and len(fused) == 30 + 20 + 1 and fused.count(("v3", "video")) == 1


IN_GAP, IN_LAST_HALF_SECOND, BEYOND = (4.2, 4.8), (9.1, 9.4), (50.0, 51.0)


@pytest.fixture(scope="module")
def gaps(tmp_path_factory):
    """A trained toy set, and a video of 9.5 s with a gap in its rows and captions outside of rows."""
    dataset, rng = make_toy(tmp_path_factory.mktemp("gaps")), np.random.default_rng(0)
    starts = np.array([0.0, 1, 2, 3, 5, 6, 7, 8])
    times = {"start_seconds": starts, "end_seconds": starts + 1, "valid_frames": np.ones(8, int)}
    video = VideoFeatures(video_id="gap", features=rng.normal(size=(8, 1024)), duration_seconds=9.5, **times)
    weights = FeatureStore(dataset.features("s3d")).weights
    write_shard(dataset.features("s3d"), PROFILES["s3d"], weights, [video], made_with={})
    spans = [(5.0, 7.0), IN_GAP, IN_LAST_HALF_SECOND, BEYOND]
    captions = [
        Caption(
            video_id="gap",
            caption="a zebra",
            split="test",
            start_seconds=start,
            end_seconds=end,
            words=["a", "zebra"],
            word_starts=[0, 2],
            pos_tags=["DET", "NOUN"],
        )
        for start, end in spans
    ]
    write_part(dataset.captions, 1, captions, {})
    write_captions_about(dataset.captions, {"made": "by a test"})
    options = ["--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--run-name", "r", "--device", "cpu"]
    assert train_main(["--root", str(dataset.root), "--dataset", dataset.name, *options]) in (0, 1)
    return dataset


@pytest.mark.parametrize("by", ["text", "both"])
@pytest.mark.parametrize(
    ("target", "without"), [({"run": "r"}, [IN_LAST_HALF_SECOND, BEYOND]), ({"features": "s3d"}, [BEYOND])]
)
def test_a_caption_without_rows_is_left_out_by_name_and_count(gaps, by, target, without, caplog):
    """A model without training takes the nearest row; a clip in a gap has the row before it."""
    caplog.set_level("INFO", "vlalign")
    search = open_search(gaps.path, **target)
    caplog.clear()
    found = search("zebra", by=by, num_results=30)
    assert all(np.isfinite(moment.score) for moment in found)
    with_zebra = [(m.video_id, m.start_seconds, m.end_seconds) for m in found if m.caption == "a zebra"]
    if by == "text":
        spans = [(5.0, 7.0), IN_GAP, IN_LAST_HALF_SECOND][: 4 - len(without)]
        assert sorted(with_zebra) == sorted(("gap", *span) for span in spans)
    assert with_zebra and all(start < 9.5 for _, start, _ in with_zebra)
    [line] = [record.getMessage() for record in caplog.records if "gap#" in record.getMessage()]
    assert f" {len(without)} " in line and all(f"gap#{start}-{end}" in line for start, end in without)
    assert line.count("gap#") == len(without)


def test_a_page_gets_no_number_that_json_lacks(gaps):
    search = open_search(gaps.path, run="r")
    for moment in search("zebra", num_results=30):
        assert all(map(np.isfinite, [moment.score, moment.percentile or 0.0, *moment.stages.values()]))
