"""The text in frames of a data set's videos, as transcripts, captions and search results."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.clips_of_text import save_clip_with_processor
from helpers.text_frames import frame
from helpers.videos import encode_frames
from vlalign.extract import TranscriptionSettings, transcribe_dataset
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.cli.transcribe import main
from vlalign.extract.ocr import model as text_model
from vlalign.extract.ocr.reader import TextReader
from vlalign.extract.ocr.transcriber import TextTranscriber
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.storage.captions.files import read_captions_about
from vlalign.storage.captions.transcripts import Transcript, TranscriptStore
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.common.packages import EXTRAS
from vlalign.storage.dataset.folder import DatasetFolder, dataset_at
from vlalign.storage.records import VideoRecord
from vlalign.storage.stores.failure_log import read_failures
from vlalign.train.cli.search import main as search_main


@pytest.fixture(scope="module")
def talk(tmp_path_factory) -> Path:
    """A video that shows text from second 3 on."""
    path = tmp_path_factory.mktemp("videos") / "talk.mp4"
    encode_frames(path, [frame()] * 15 + [frame("Tighten the <M8> screw", "Step 2")] * 20, 5)
    return path


@pytest.fixture(scope="module")
def blank(tmp_path_factory) -> Path:
    """A video without text."""
    path = tmp_path_factory.mktemp("videos") / "blank.mp4"
    encode_frames(path, [frame()] * 10, 5)
    return path


def dataset_of(root: Path, contents: dict[str, bytes]) -> DatasetFolder:
    """Return a data set of some files: {name: content}."""
    dataset = DatasetFolder(root, "mine")
    (dataset.path / "files").mkdir(parents=True)
    for name, content in contents.items():
        (dataset.path / "files" / name).write_bytes(content)
    dataset.write_videos([VideoRecord(video_id=Path(name).stem, path=f"files/{name}") for name in contents])
    return dataset


def settings_of(dataset: DatasetFolder, **more) -> TranscriptionSettings:
    return TranscriptionSettings(dataset=dataset.path, what="text", **more)


def test_text_in_frames_is_found_at_its_second(tmp_path, talk, blank, capsys):
    contents = {"talk.mp4": talk.read_bytes(), "blank.mp4": blank.read_bytes(), "broken.mp4": b"no video at all"}
    dataset = dataset_of(tmp_path, contents)
    place = ["--root", str(tmp_path), "--dataset", "mine"]
    assert main([*place, "--what", "text"]) == 1
    assert "2 videos transcribed (0.00 h of video, 1 video with text), 1 video failed" in capsys.readouterr().out
    assert read_failures(dataset.text_in_frames / "failures.jsonl")["broken"].kind == "unreadable"
    dataset.write_videos([video for video in dataset.read_videos() if video.video_id != "broken"])
    assert main([*place, "--what", "text"]) == 0
    shown = capsys.readouterr()
    assert "0 videos transcribed" in shown.out and shown.err.rstrip().endswith("--protocol text")
    store = TranscriptStore(dataset.text_in_frames)
    assert {video_id: place.num_segments for video_id, place in store.places.items()} == {"talk": 2, "blank": 0}
    segments = store.read("talk").segments
    assert {(s.text, s.start_seconds, s.end_seconds) for s in segments} == {
        ("Tighten the <M8> screw", 3, 7),
        ("Step 2", 3, 7),
    }
    assert min(segment.confidence for segment in segments) > 0.9
    [key] = store.models()
    about = store.describe_model(key)
    assert about["model"].startswith("RapidOCR ") and about["libraries"].keys() >= {"rapidocr", "onnxruntime"}
    assert len(about["files"]) >= 2 and all(len(digest) == 64 for digest in about["files"].values())
    assert not dataset.transcripts.exists()

    assert preprocess_main(place) == 2
    assert "pass --protocol text" in capsys.readouterr().err
    assert preprocess_main([*place, "--protocol", "text"]) == 0
    about_captions = read_captions_about(dataset_at(dataset.path, "text").captions)
    assert about_captions["text_in_frames"] and "speech" not in about_captions
    assert about_captions["transcribed_videos"] == 2
    features = f"hf:{save_clip_with_processor(tmp_path / 'models' / 'small')}"
    assert extract_main([*place, "--features", features]) == 0
    capsys.readouterr()
    assert search_main([*place, "--features", features, "--by", "text", "--json", "a screw of M8"]) == 0
    best = json.loads(capsys.readouterr().out)["moments"][0]
    assert (best["video_id"], best["start_seconds"]) == ("talk", 3) and "screw" in best["caption"]


@pytest.mark.slow
def test_an_interrupted_call_is_resumed(tmp_path):
    dataset = dataset_of(tmp_path, {})
    encode_frames(dataset.path / "files" / "sign.mp4", [frame("Exit")] * 5, 5)
    dataset.write_videos([VideoRecord(video_id=f"v{n}", path="files/sign.mp4") for n in range(3)])
    command = [sys.executable, "-c", "import sys; from vlalign.extract.cli.transcribe import main; sys.exit(main())"]
    arguments = ["--root", str(tmp_path), "--dataset", "mine", "--what", "text"]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL)
    index = dataset.text_in_frames / "index.jsonl"
    while not index.exists() or not index.read_bytes().endswith(b"\n"):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    kept = TranscriptStore(dataset.text_in_frames).places
    assert 1 <= len(kept) < 3
    assert main(arguments) == 0
    store = TranscriptStore(dataset.text_in_frames)
    assert len(store.places) == 3 and {video_id: store.places[video_id] for video_id in kept} == kept
    assert [[segment.text for segment in transcript.segments] for transcript in store] == [["Exit"]] * 3


def test_a_reader_that_is_killed_costs_one_video_and_sound_has_no_text(tmp_path, talk, blank, monkeypatch):
    sound = Path(__file__).parents[2] / "videos" / "audio_only.mp4"
    contents = {"first.mp4": talk.read_bytes(), "second.mp4": blank.read_bytes(), "sound.mp4": sound.read_bytes()}
    dataset = dataset_of(tmp_path, contents)
    read, kills = TextReader.read, []

    def read_or_die(self, pixels):
        if not kills:
            kills.append(self._process.kill())
        return read(self, pixels)

    monkeypatch.setattr(TextReader, "read", read_or_die)
    result = transcribe_dataset(settings_of(dataset))
    assert (result.transcribed, result.failed, result.num_with_text) == (["second", "sound"], ["first"], 0)
    assert read_failures(dataset.text_in_frames / "failures.jsonl")["first"].kind == "crashed"


def test_other_models_are_refused(tmp_path):
    dataset = dataset_of(tmp_path, {"a.mp4": b""})
    store, model = TranscriptStore(dataset.text_in_frames), text_model.find_text_model()
    other = text_model.TextModel("RapidOCR 9", {"det.onnx": "0" * 64})
    assert other.key != model.key
    store.add(Transcript(video_id="a", source="", model=other.key, duration_seconds=1.0))
    store.write_model(other.key, other.about({}))
    with pytest.raises(
        UserError, match=r"1 transcripts were made by 'RapidOCR 9'.*install the earlier version again.*--replace"
    ):
        transcribe_dataset(settings_of(dataset))
    with pytest.raises(UserError, match="install the same version on all machines"):
        TextTranscriber(other)


def test_settings_of_speech_are_refused_for_text(tmp_path):
    with pytest.raises(SettingError, match="--what speech"):
        TranscriptionSettings(dataset=tmp_path / "mine", what="text", weights="models/whisper-small")
    with pytest.raises(SettingError, match="expected auto or cpu"):
        TranscriptionSettings(dataset=tmp_path / "mine", what="text", device="cuda:0")


def test_without_the_library_or_any_text_one_line_says_what_to_do(tmp_path, monkeypatch, capsys):
    dataset_of(tmp_path, {"a.mp4": b""})
    place = ["--root", str(tmp_path), "--dataset", "mine"]
    assert preprocess_main([*place, "--protocol", "text"]) == 2
    error = capsys.readouterr().err
    assert "vlalign-transcribe --dataset mine --what text" in error and error.count("\n") == 1
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    assert main([*place, "--what", "text"]) == 2
    error = capsys.readouterr().err
    assert all(package in error for package in EXTRAS["ocr"]) and error.count("\n") == 1
