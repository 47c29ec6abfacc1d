"""Tables of captions and of idf values: read as written, and refused in one line if damaged."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vlalign.storage import Caption, IdfEntry, read_captions, read_idf, write_idf
from vlalign.storage.captions import files as captions
from vlalign.storage.captions.idf import has_token_idf
from vlalign.storage.common.errors import UserError

pytestmark = pytest.mark.portable

CAPTIONS = [
    Caption(
        video_id="v",
        caption="a cat — 😀",
        split="train",
        words=["a", "cat"],
        word_starts=[0, 2],
        pos_tags=["DET", "NOUN"],
    ),
    Caption(video_id="v", caption="sits", split="test", start_seconds=0.0, end_seconds=1.25, recording="wavs/7/ä"),
    Caption(
        video_id="w", caption="a dog", split="test", start_seconds=2.0, end_seconds=4.0, query="7", saliency=[4, 0, 3]
    ),
]


def test_captions_are_read_as_written(tmp_path):
    assert captions.read_captions_about(tmp_path) is None
    captions.write_part(tmp_path, 0, CAPTIONS[:1], {"model": "tiny"})
    captions.write_part(tmp_path, 1, CAPTIONS[1:], {"model": "tiny"})
    with pytest.raises(UserError, match=r"about\.json: .*vlalign-preprocess"):
        read_captions(tmp_path)  # not yet all of them
    captions.write_captions_about(tmp_path, {"tagger": "tiny"})
    assert list(read_captions(tmp_path)) == CAPTIONS
    assert captions.read_captions_about(tmp_path) == {"tagger": "tiny"}
    assert captions.read_part_about(captions.part_path(tmp_path, 1)) == {"model": "tiny"}
    clip_ids = [pq.read_table(captions.part_path(tmp_path, n))["clip_id"].to_pylist() for n in (0, 1)]
    assert clip_ids == [["v"], ["v#0.0-1.25", "w#2.0-4.0"]]


def test_texts_are_those_of_the_records_in_the_order_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(captions, "RECORDS_AT_ONCE", 3)
    for number in range(4):
        made = [replace(CAPTIONS[0], caption=f"{number}-{i}") for i in range(5)]
        captions.write_part(tmp_path, number, made, {})
    captions.write_captions_about(tmp_path, {})
    table = read_captions(tmp_path)
    for of in (table, table.take([17, 2, 11, 11, 0, 19]), table.take([])):
        assert list(of.texts()) == [caption.caption for caption in of]


def test_a_caption_table_without_the_columns_that_were_added_later_is_read(tmp_path):
    captions.write_part(tmp_path, 0, CAPTIONS, {})
    captions.write_captions_about(tmp_path, {})
    path = captions.part_path(tmp_path, 0)
    pq.write_table(pq.read_table(path).drop_columns(["recording", "query", "saliency"]), path)
    assert list(read_captions(tmp_path)) == [replace(c, recording=None, query=None, saliency=[]) for c in CAPTIONS]


@pytest.mark.parametrize("column", ["clip_id", "words"])
def test_a_caption_table_without_a_required_column_is_refused(tmp_path, column):
    captions.write_part(tmp_path, 0, CAPTIONS, {})
    captions.write_captions_about(tmp_path, {})
    path = captions.part_path(tmp_path, 0)
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    with pytest.raises(UserError, match=rf"part-00000\.parquet: .*\b{column}\b"):
        read_captions(tmp_path)


@pytest.mark.parametrize("recording", ["", "  ", 7, "half \ud800"])
def test_an_invalid_recording_id_is_refused(recording):
    with pytest.raises(ValueError, match=r"recording|text"):
        Caption(video_id="v", caption="a", split="train", recording=recording)


def test_idf_is_read_as_written(tmp_path):
    entries = [
        IdfEntry(word="ü", part_of_speech="NOUN", document_count=3, idf=-0.25, token_count=4, token_idf=-0.5),
        IdfEntry(word="ü", part_of_speech="VERB", document_count=1, idf=0.5, token_count=4, token_idf=-0.5),
    ]
    write_idf(tmp_path / "idf.parquet", entries)
    assert read_idf(tmp_path / "idf.parquet") == entries and has_token_idf(tmp_path / "idf.parquet")


def test_an_idf_table_of_an_earlier_version_is_read_and_written_without_the_counts_of_tokens(tmp_path):
    path, names = tmp_path / "idf.parquet", ["word", "part_of_speech", "document_count", "idf"]
    pq.write_table(pa.table([["ü"], ["NOUN"], [3], [-0.25]], names), path)
    entries = [IdfEntry(word="ü", part_of_speech="NOUN", document_count=3, idf=-0.25)]
    assert read_idf(path) == entries and not has_token_idf(path)
    write_idf(path, entries)
    assert read_idf(path) == entries and pq.read_table(path).column_names == names


@pytest.mark.parametrize("content", [b"", b"PAR1 cut", "another table"], ids=["empty", "cut", "another table"])
def test_a_damaged_caption_table_is_refused_by_name(tmp_path, content):
    path = tmp_path / "part-00000.parquet"
    captions.write_captions_about(tmp_path, {})
    if content == "another table":
        pq.write_table(pa.table({"video_id": ["v"]}), path)
    else:
        path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_captions(tmp_path)
    message = str(refused.value)
    assert str(path) in message and "vlalign-preprocess" in message and "\n" not in message


def test_clips_late_in_a_long_video_have_different_ids():
    clips = [
        Caption(video_id="v", caption="a", split="train", start_seconds=s, end_seconds=2000.0)
        for s in (1234.561, 1234.562)
    ]
    assert clips[0].clip_id != clips[1].clip_id
