"""Transcripts on disk: an index and logs, to which killed processes may have written half."""

import json
import os
from dataclasses import asdict, replace

import pytest
from vlalign.storage.captions import transcripts
from vlalign.storage.captions.transcripts import TimedWord, Transcript, TranscriptSegment, TranscriptStore
from vlalign.storage.common.errors import UserError

KEY = "0123456789abcdef"


def transcript(video_id: str, text: str = "Cut the onion.") -> Transcript:
    words = [TimedWord(word, 0.5 * n, 0.5 * n + 0.4, 0.9) for n, word in enumerate(text.split())]
    segment = TranscriptSegment(0.0, 0.5 * len(words), text, 0.9, tuple(words))
    return Transcript(
        video_id=video_id,
        source="12-ab",
        model=KEY,
        duration_seconds=20.0,
        languages={"en": 1.5, "de": 0.5},
        language_probability=0.75,
        left_out={"the model was unsure": 2.0},
        partial="it ends early",
        segments=[segment],
    )


def test_what_is_added_is_read_again_by_another_process(tmp_path):
    store = TranscriptStore(tmp_path / "transcripts")
    added = [transcript("b"), transcript("a", "Zwiebel schneiden: ö 你好"), transcript("b", "again")]
    for each in added:
        store.add(each)
    again = TranscriptStore(tmp_path / "transcripts")
    assert again.read("a") == added[1] and again.read("b") == added[2]
    assert [each.video_id for each in again] == ["a", "b"]
    assert again.models() == {KEY: 2}
    assert again.read("a").language == "en"


def test_a_line_is_what_whisper_writes(tmp_path):
    TranscriptStore(tmp_path).add(transcript("a"))
    [line] = (tmp_path / "part-00000.jsonl").read_text(encoding="utf-8").splitlines()
    values = json.loads(line)
    assert values["language"] == "en"
    assert {name: values["segments"][0][name] for name in ("start", "end", "text")} == {
        "start": 0.0,
        "end": 1.5,
        "text": "Cut the onion.",
    }
    assert values["segments"][0]["words"][1] == ["the", 0.5, 0.9, 0.9]


@pytest.mark.parametrize("num_bytes", [1, 20, 60])
def test_lines_that_a_killed_process_left_unfinished_are_ignored_and_ended(tmp_path, num_bytes):
    store = TranscriptStore(tmp_path)
    store.add(transcript("a"))
    for name in ("index.jsonl", "part-00000.jsonl"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content + content[:num_bytes])
    again = TranscriptStore(tmp_path)
    assert set(again.places) == {"a"}
    again.add(transcript("b"))
    assert [each.video_id for each in TranscriptStore(tmp_path)] == ["a", "b"]


def test_large_parts_are_not_appended_to(tmp_path, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_PART_BYTES", 500)
    store = TranscriptStore(tmp_path)
    for name in "abcde":
        store.add(transcript(name))
    assert len(list(tmp_path.glob("part-*.jsonl"))) > 1
    assert [each.video_id for each in TranscriptStore(tmp_path)] == list("abcde")


def test_removed_transcripts_are_nowhere_on_disk(tmp_path):
    store = TranscriptStore(tmp_path)
    store.add(transcript("a", "secret words"))
    store.add(transcript("b"))
    store.add(transcript("c", "an older secret"))
    store.add(transcript("c"))
    store.remove(["a", "not there"])
    assert [each.video_id for each in TranscriptStore(tmp_path)] == ["b", "c"]
    assert "secret" not in "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.jsonl"))
    store.add(transcript("d"))
    store.remove(["b", "c", "d"])
    assert TranscriptStore(tmp_path).places == {} and not list(tmp_path.glob("part-*"))


@pytest.mark.parametrize(
    "change",
    [
        {"num_bytes": 10**12},
        {"num_bytes": -1},
        {"offset": 1.5},
        {"part": "../../x"},
        {"model": "../../etc"},
        {"video_id": 3},
        {"written_ns": None},
    ],
)
def test_an_index_with_other_values_is_refused_in_one_line(tmp_path, change):
    TranscriptStore(tmp_path).add(transcript("a"))
    index = tmp_path / "index.jsonl"
    index.write_text(json.dumps(json.loads(index.read_text(encoding="utf-8")) | change) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"index.jsonl, line 1.*remove that line"):
        TranscriptStore(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"video_id": "b"},
        {"duration_seconds": float("nan")},
        {"segments": [{"start": 2, "end": 1, "text": "x", "confidence": 1, "words": []}]},
        {"segments": [{"start": 0, "end": 1, "text": "\ud800", "confidence": 1, "words": []}]},
        {"segments": [{"start": 0, "end": 1, "text": "x", "confidence": 2, "words": []}]},
        {"segments": 3},
        {"languages": []},
    ],
)
def test_a_transcript_with_other_values_is_refused(tmp_path, change):
    store = TranscriptStore(tmp_path)
    store.add(transcript("a"))
    line = json.dumps(transcript("a").to_json() | change).encode() + b"\n"
    (tmp_path / "part-00000.jsonl").write_bytes(line)
    store.places["a"] = replace(store.places["a"], num_bytes=len(line))
    with pytest.raises(UserError, match="not a readable transcript"):
        store.read("a")


def test_no_file_is_written_through_a_link(tmp_path):
    other = tmp_path / "other"
    other.write_text("mine", encoding="utf-8")
    folder = tmp_path / "transcripts"
    folder.mkdir()
    (folder / "part-00000.jsonl").symlink_to(other)
    with pytest.raises(UserError, match="link"):
        TranscriptStore(folder).add(transcript("a"))
    assert other.read_text(encoding="utf-8") == "mine"


def test_the_model_is_described_once(tmp_path):
    store = TranscriptStore(tmp_path)
    store.write_model(KEY, {"model": "tiny"})
    store.write_model(KEY, {"model": "other"})
    assert store.describe_model(KEY) == {"model": "tiny"} and store.describe_model("../x") == {}


def index_of(store: TranscriptStore, **change) -> None:
    """Write an index whose lines differ from those of a store."""
    lines = [json.dumps(asdict(replace(place, **change))) + "\n" for place in store.places.values()]
    (store.folder / "index.jsonl").write_text("".join(lines), encoding="utf-8")


def test_an_index_names_no_byte_twice_so_a_small_folder_takes_no_large_time_or_disk(tmp_path):
    store = TranscriptStore(tmp_path)
    for name in "abc":
        store.add(transcript(name))
    index_of(store, offset=0)
    with pytest.raises(UserError, match="'b': its transcript shares bytes with another one; remove"):
        TranscriptStore(tmp_path)


def test_a_part_with_a_strange_number_is_refused_or_left_alone(tmp_path):
    store = TranscriptStore(tmp_path)
    store.add(transcript("a"))
    for digits in ("9" * 30, "\u0661" * 5):
        (tmp_path / f"part-{digits}.jsonl").write_text("mine")
    store.add(transcript("b"))
    assert TranscriptStore(tmp_path).places["b"].part == 0
    (tmp_path / "part-999999999.jsonl").write_text("")
    with pytest.raises(UserError, match="has the highest possible number"):
        TranscriptStore(tmp_path).remove(["a"])
    assert [each.video_id for each in TranscriptStore(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize("kind", ["link", "pipe", "huge", "list"])
def test_what_made_transcripts_is_a_small_file_of_the_folder(tmp_path, kind):
    store = TranscriptStore(tmp_path / "transcripts")
    store.write_model(KEY, {"model": "small"})
    assert store.describe_model(KEY) == {"model": "small"} and store.describe_model("../" + KEY) == {}
    path, secret = store.model_file(KEY), tmp_path / "secret.json"
    path.unlink()
    secret.write_text('{"model": "a secret of this machine"}')
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("[]" if kind == "list" else json.dumps({"model": "x" * (2 << 20)}))
    with pytest.raises(UserError, match=f"{KEY}.json: .*remove it") as caught:
        store.describe_model(KEY)
    assert "secret of" not in str(caught.value) and len(str(caught.value)) < 1000


def test_names_of_languages_are_text(tmp_path):
    values = transcript("a").to_json()
    for name in ("languages", "left_out"):
        with pytest.raises(ValueError, match="valid Unicode"):
            Transcript.from_json(values | {name: {"\ud800": 1.0}})
