"""Transcripts of made-up videos, by a small Whisper model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.needs import needs_linux
from helpers.speech import SPOKEN, VIDEOS, plain_words, small_model, spoken_dataset
from helpers.telemetry import telemetry_files
from vlalign.extract import TranscriptionSettings, transcribe_dataset, transcribe_video
from vlalign.extract.cli.transcribe import main
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.messages import Request, SamplesFollow
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.decoding.sound import SamplesFinished, sound_samples
from vlalign.extract.speech import video as speech_video
from vlalign.extract.speech.model import find_model
from vlalign.extract.speech.recogniser import Recogniser
from vlalign.storage.captions.transcripts import TranscriptStore
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.stores.failure_log import read_failures

ENGLISH = VIDEOS / "english.mkv"


@pytest.fixture
def model():
    return small_model()


def settings_of(dataset, model, **more) -> TranscriptionSettings:
    return TranscriptionSettings(dataset=dataset.path, weights=str(model), device="cpu", **more)


def test_samples_are_those_of_the_file_from_time_zero():
    *blocks, finished = sound_samples(ENGLISH)
    samples = np.concatenate(blocks)
    assert isinstance(finished, SamplesFinished)
    assert samples.dtype == np.int16 and len(samples) == finished.num_samples
    assert len(samples) == pytest.approx(20 * 16_000, abs=100)
    samples = samples[: len(samples) // 1600 * 1600]
    loud = np.abs(samples.astype(float)).reshape(-1, 1600).max(axis=1) > 2000
    begins = [n / 10 for n in range(1, len(loud)) if loud[n] and not loud[max(n - 30, 0) : n].any()]
    assert begins == pytest.approx(list(SPOKEN), abs=0.3)


def test_the_sandboxed_decoder_gives_the_same_samples():
    *blocks, _ = sound_samples(ENGLISH)
    process = DecodeProcess()
    try:
        process.start(Request(str(ENGLISH), [], samples=True))
        received = []
        while not isinstance(message := process.receive(), SamplesFinished):
            if isinstance(message, SamplesFollow):
                received.append(process.receive_bytes())
        assert b"".join(received) == np.concatenate(blocks).tobytes()
        process.start(Request(str(VIDEOS.parent / "raw_es.mp4"), [], samples=True))
        with pytest.raises(VideoError, match="no sound"):
            while True:
                process.receive()
    finally:
        process.close()


def test_sentences_are_found_at_their_seconds(model):
    transcript = transcribe_video(ENGLISH, weights=str(model))
    assert [plain_words(segment.text) for segment in transcript.segments] == [*map(plain_words, SPOKEN.values())]
    assert [segment.start_seconds for segment in transcript.segments] == pytest.approx(list(SPOKEN), abs=0.5)
    for segment in transcript.segments:
        assert "".join(word.word for word in segment.words) == segment.text.replace(" ", "")
        assert segment.start_seconds == segment.words[0].start_seconds
        assert segment.end_seconds == segment.words[-1].end_seconds
    assert (transcript.language, transcript.language_probability) == ("en", None)
    assert transcript.duration_seconds == 20


def test_a_cut_in_parts_loses_no_word(model, monkeypatch):
    whole = transcribe_video(ENGLISH, weights=str(model))
    monkeypatch.setattr(speech_video, "PART_SECONDS", 10)  # amid the second sentence
    parts = transcribe_video(ENGLISH, weights=str(model))
    words = [[plain_words(segment.text) for segment in each.segments] for each in (parts, whole)]
    assert [len(segment) for segment in words[0]] == [len(segment) for segment in words[1]]
    differs = [a != b for one, two in zip(*words, strict=True) for a, b in zip(one, two, strict=True)]
    assert sum(differs) <= 1
    starts = [[segment.start_seconds for segment in each.segments] for each in (parts, whole)]
    assert starts[0] == pytest.approx(starts[1], abs=0.3)


def test_a_data_set_is_transcribed_once(tmp_path, model):
    dataset = spoken_dataset(tmp_path, ("english", "german", "music"))
    (dataset.path / "files" / "silent.mp4").write_bytes((VIDEOS.parent / "rot90.mp4").read_bytes())
    (dataset.path / "files" / "broken.mp4").write_bytes(b"no video at all")
    listed = dataset.read_videos()
    names = ("silent", "broken")
    dataset.write_videos([*listed, *(type(listed[0])(video_id=n, path=f"files/{n}.mp4") for n in names)])
    seen = []
    result = transcribe_dataset(settings_of(dataset, model), on_progress=seen.append)
    assert set(result.transcribed) == {"english", "german", "music", "silent"} and result.failed == ["broken"]
    assert result.num_with_text == 1 and not result.complete and seen[-1].done == 5
    store = TranscriptStore(dataset.transcripts)
    assert {name for name in store.places if store.read(name).segments} == {"english"}
    assert store.read("german").left_out.keys() == {"not English"}
    [key] = store.models()
    about = store.describe_model(key)
    assert about["sha256"] == find_model(str(model)).sha256 and about["libraries"].keys() >= {"faster-whisper", "av"}
    failure = read_failures(dataset.transcripts / "failures.jsonl")["broken"]
    assert failure.kind == "unreadable" and failure.source
    again = transcribe_dataset(settings_of(dataset, model))
    assert (again.num_tried, again.failed) == (0, ["broken"])
    assert transcribe_dataset(settings_of(dataset, model, retry_failed=True)).num_tried == 1
    (dataset.path / "files" / "broken.mp4").write_bytes(ENGLISH.read_bytes())
    TranscriptStore(dataset.transcripts).remove(["music"])
    retried = transcribe_dataset(settings_of(dataset, model, retry_failed=True))
    assert (retried.transcribed, retried.num_untried, retried.complete) == (["broken"], 1, False)
    (dataset.path / "files" / "music.mkv").write_bytes(ENGLISH.read_bytes())
    changed = transcribe_dataset(settings_of(dataset, model))
    assert set(changed.transcribed) == {"music"} and changed.complete
    assert not read_failures(dataset.transcripts / "failures.jsonl")


def other_model(folder, model):
    """Return a folder with the same model, whose weights have another hash."""
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes() + (b"\0" if path.name == "model.bin" else b""))
    return folder


def test_selected_videos_alone_are_transcribed_and_unknown_ids_are_refused(tmp_path, model):
    dataset = spoken_dataset(tmp_path)
    with pytest.raises(UserError, match=r"1 id not in .*'onion'"):
        transcribe_dataset(settings_of(dataset, model, video_ids=["music", "onion"]))
    result = transcribe_dataset(settings_of(dataset, model, video_ids=["music"]))
    assert (result.num_videos, result.transcribed) == (1, ["music"])


def test_another_model_is_refused_or_replaces_all(tmp_path, model):
    dataset = spoken_dataset(tmp_path, ("english",))
    transcribe_dataset(settings_of(dataset, model))
    other = other_model(tmp_path / "other", model)
    with pytest.raises(UserError, match=r"1 transcripts were made by 'model'.*--replace"):
        transcribe_dataset(settings_of(dataset, other))
    result = transcribe_dataset(settings_of(dataset, other, replace=True))
    assert result.transcribed == ["english"]
    assert list(TranscriptStore(dataset.transcripts).models()) == [find_model(str(other)).key]


def test_another_model_replaces_those_that_fail_and_not_those_that_were_deleted(tmp_path, model):
    dataset = spoken_dataset(tmp_path, ("music", "german", "english"))
    transcribe_dataset(settings_of(dataset, model))
    music, german, _ = dataset.read_videos()
    dataset.write_videos([music, german])
    (dataset.path / "files" / "german.mkv").write_bytes(b"no video at all")
    other = other_model(tmp_path / "other", model)
    result = transcribe_dataset(settings_of(dataset, other, replace=True))
    assert (result.transcribed, result.failed) == (["music"], ["german"])
    store = TranscriptStore(dataset.transcripts)
    assert {name: place.model == find_model(str(other)).key for name, place in store.places.items()} == {
        "music": True,
        "english": False,
    }
    assert transcribe_dataset(settings_of(dataset, other)).num_tried == 0


def test_the_next_call_brings_captions_up_to_date_as_they_were_made(tmp_path, model, capsys):
    dataset = spoken_dataset(tmp_path, ("music",))
    arguments = ["--root", str(tmp_path), "--dataset", "mine", "--weights", str(model), "--device", "cpu"]
    assert main(arguments) == 0 and "now: vlalign-preprocess" in capsys.readouterr().err
    (dataset.path / "sync").mkdir()
    (dataset.path / "sync" / "folders.json").write_text("{}")
    assert main(arguments) == 0 and "now: vlalign-sync" in capsys.readouterr().err


def test_folders_that_are_no_model_get_one_line(tmp_path):
    with pytest.raises(SettingError, match="no such folder; for a model of the hub write hf:ORG/MODEL"):
        find_model(str(tmp_path / "nothing"))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(SettingError, match=r"no model.bin.*ct2-transformers-converter"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("name", ["model.bin", "config.json", "tokenizer.json"])
def test_damaged_models_get_one_line(tmp_path, model, name):
    for path in model.iterdir():
        if path.name != name:
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / name).write_bytes(b"\x06\0\0\0" + os.urandom(100_000))
    with pytest.raises(UserError, match="the model cannot be loaded") as caught:
        Recogniser(find_model(str(tmp_path)), "cpu", 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.bin", "tokenizer.json", "vocabulary.txt"])
def test_a_model_whose_files_are_gigantic_is_refused_before_they_are_read(tmp_path, model, name):
    for path in model.iterdir():
        if path.name != name:
            (tmp_path / path.name).symlink_to(path)
    with open(tmp_path / name, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SettingError, match=rf"{name} has 1,048,576 MiB; expected at most"):
        find_model(str(tmp_path))


def test_a_transcript_that_is_too_large_costs_one_video(tmp_path, model, monkeypatch):
    dataset = spoken_dataset(tmp_path, ("german", "english"))
    monkeypatch.setattr(speech_video, "MAX_TRANSCRIPT_BYTES", 500)
    result = transcribe_dataset(settings_of(dataset, model))
    assert (result.transcribed, result.failed) == (["german"], ["english"])
    failure = read_failures(dataset.transcripts / "failures.jsonl")["english"]
    assert "a transcript of" in failure.message


def test_a_recogniser_that_is_killed_costs_one_video(tmp_path, model, monkeypatch):
    dataset = spoken_dataset(tmp_path, ("german", "english"))
    recognise, kills = Recogniser.recognise, []

    def recognise_or_die(self, blocks, *, is_last):
        if not kills:
            kills.append(self.kill())
        return recognise(self, blocks, is_last=is_last)

    monkeypatch.setattr(Recogniser, "recognise", recognise_or_die)
    result = transcribe_dataset(settings_of(dataset, model))
    assert (result.transcribed, result.failed) == (["english"], ["german"])
    failure = read_failures(dataset.transcripts / "failures.jsonl")["german"]
    assert failure.kind == "out_of_memory" and "recogniser" in failure.message


@needs_linux
def test_the_telemetry_of_onnx_runtime_is_off(model):
    before = telemetry_files()
    assert transcribe_video(ENGLISH, weights=str(model)).segments
    assert telemetry_files() == before


@needs_linux
def test_the_recogniser_can_open_no_file_and_no_socket(model):
    """The process that holds sound and weights is the child of the one that was started."""
    recogniser = Recogniser(find_model(str(model)), "cpu", 1)
    try:
        [child] = _children(recogniser._process.pid)
        status = Path(f"/proc/{child}/status").read_text()
        assert "Seccomp:\t2" in status and "CapEff:\t0000000000000000" in status
        links = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
        opened = {os.path.basename(link) for link in links if link.startswith("/")}
        assert opened <= {path.name for path in model.iterdir()} | {"null"}
    finally:
        recogniser.close()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_command_keeps_what_is_done_when_it_is_stopped(tmp_path, model, capsys):
    dataset = spoken_dataset(tmp_path, ("english",))
    videos = [type(v)(video_id=f"v{n}", path=v.path) for n in range(40) for v in dataset.read_videos()]
    dataset.write_videos(videos)
    arguments = ["--root", str(tmp_path), "--dataset", "mine", "--weights", str(model), "--device", "cpu"]
    command = [sys.executable, "-c", "import sys; from vlalign.extract.cli.transcribe import main; sys.exit(main())"]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
    index = dataset.transcripts / "index.jsonl"
    while not index.exists() or index.read_bytes().count(b"\n") < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    num_kept = len(TranscriptStore(dataset.transcripts).places)
    assert process.returncode == 143 and f"the transcripts of {num_kept} videos are kept" in errors
    dataset.write_videos(videos[: num_kept + 1])
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "1 video transcribed" in shown.out and "now: vlalign-preprocess" in shown.err
    assert json.loads(index.read_text().splitlines()[-1])["video_id"] == f"v{num_kept}"


def test_mistakes_of_the_call_end_the_command_with_2(tmp_path, model, capsys):
    assert main(["--root", str(tmp_path), "--dataset", "mine"]) == 2
    assert "lists no videos" in capsys.readouterr().err
    spoken_dataset(tmp_path, ("english",))
    assert main(["--root", str(tmp_path), "--dataset", "mine", "--weights", "nowhere"]) == 2
    assert "--weights nowhere: no such folder" in capsys.readouterr().err
    both = ["--root", str(tmp_path), "--dataset", "mine", "--weights", str(model)]
    assert main([*both, "--device", "mps"]) == 2
    assert "--device mps: expected one of auto, cpu" in capsys.readouterr().err
