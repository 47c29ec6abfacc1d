"""Features of sound, in one pass with the pictures and from the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.extractors import stub
from helpers.needs import needs_linux
from helpers.sounds import heard, tone, write_clip, write_sound
from helpers.videos import remux
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.cli.extract import main
from vlalign.extract.decoding import log_mel, sound
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.log_mel import RATE
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.pipeline.engine import extract_videos
from vlalign.extract.pipeline.video_jobs import VideoJob
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

# In one pass with the pictures


def bursts() -> np.ndarray:
    """2 s of noise that is as loud as it likes for 50 ms at a time."""
    rng = np.random.default_rng(5)
    return 0.2 * rng.normal(0, 1, (1, 96000)) * np.geomspace(1, 1e-3, 7)[rng.integers(0, 7, 40)].repeat(2400)


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clips")
    both = write_clip(folder / "both.mp4", sound=bursts())
    write_sound(folder / "sound.mp4", tone(48000, 1.0), 48000, codec="aac")
    remux(both, folder / "pictures.mp4", "mp4", sound=False)
    (folder / "broken.mp4").write_bytes(b"no video" * 1000)
    return {path.stem: path for path in folder.iterdir()}


def test_pictures_and_sound_are_decoded_by_one_request(clips, logmel, monkeypatch):
    asked = []
    start = decode_process.DecodeProcess.start

    def start_and_note(process, request):
        asked.append(request.sound)
        start(process, request)

    monkeypatch.setattr(decode_process.DecodeProcess, "start", start_and_note)
    made = extract_video(clips["both"], [stub("s3d"), logmel, stub("resnet152")])
    assert sorted(made) == ["logmel", "resnet152", "s3d"] and len(asked) == 1
    for name, extractor in (("s3d", stub("s3d")), ("logmel", logmel), ("resnet152", stub("resnet152"))):
        alone = extract_video(clips["both"], [extractor])[name]
        np.testing.assert_allclose(made[name].features, alone.features, rtol=1e-6)
        assert made[name].source == alone.source
    assert asked == [True, False, True, False]


def test_missing_streams_are_left_out_and_others_extracted(clips, logmel):
    extractors = [stub("s3d"), logmel]
    jobs = [VideoJob(name, path, extractors) for name, path in clips.items()]
    made = {job.video_id: result for job, result in extract_videos(jobs, extractors)}
    assert made.pop("broken").kind == "unreadable"
    assert {name: sorted(result.features) for name, result in made.items()} == {
        "both": ["logmel", "s3d"],
        "sound": ["logmel"],
        "pictures": ["s3d"],
    }
    failures = {name: {n: e.kind for n, e in result.failures.items()} for name, result in made.items()}
    assert failures == {"both": {}, "sound": {"s3d": "no_video"}, "pictures": {"logmel": "no_sound"}}
    assert len(made["pictures"].thumbnails) == 3 and made["sound"].thumbnails == []


ENDING = """
import os, signal, time
from vlalign.extract.decoding import child, request_handler, sound

def ending(*args, **how):
    for part in sound.sound_rows(*args, **how):
        {what}
        yield part

request_handler.sound_rows = ending
child.main()
"""


@pytest.mark.parametrize(
    "what, kind",
    [
        ("signal.raise_signal(signal.SIGSEGV)", "crashed"),
        pytest.param("raise MemoryError", "out_of_memory", marks=pytest.mark.slow),
        pytest.param("time.sleep(1000)", "timeout", marks=pytest.mark.slow),
    ],
)
def test_a_decoder_that_dies_of_the_sound_still_gives_the_pictures(clips, logmel, monkeypatch, what, kind):
    monkeypatch.setattr(decode_process, "COMMAND", ENDING.format(what=what))
    if kind == "timeout":
        monkeypatch.setattr("vlalign.extract.decoding.process.SILENCE_SECONDS", 15.0)
    expected = extract_video(clips["both"], [stub("s3d")])["s3d"]
    extractors = [stub("s3d"), logmel]
    ((_, made),) = extract_videos([VideoJob("x", clips["both"], extractors)], extractors)
    assert {name: error.kind for name, error in made.failures.items()} == {"logmel": kind}
    np.testing.assert_array_equal(made.features["s3d"].features, expected.features)
    assert made.features["s3d"].decoder == expected.decoder, "no decoder of pictures is to blame"
    ((_, alone),) = extract_videos([VideoJob("x", clips["both"], [logmel])], [logmel])
    assert isinstance(alone, VideoError) and alone.kind == kind


LONG_RUN = """
import sys
from pathlib import Path
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.decoding.sound import sound_rows
path = Path(sys.argv[2])
if sys.argv[1] == "decoding":
    print(sum(getattr(part, "num_rows", 0) for part in sound_rows(path)))
else:
    print(len(extract_video(path, [load_extractor("logmel")])["logmel"].features))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


@pytest.mark.slow
@needs_linux
@pytest.mark.parametrize("what, most_mb", [("decoding", 10), ("extracting", 180)])
def test_memory_does_not_grow_with_the_length_of_the_sound(tmp_path, what, most_mb):
    """But for the rows themselves, of which an hour has 59 MB, and which are put together at the end."""
    peaks_kb = {}
    for minutes in (1, 60):
        path = write_sound(
            tmp_path / f"{minutes}.wav", np.zeros((1, minutes * 60 * 8000), dtype=np.float32), 8000, codec="pcm_mulaw"
        )
        answer = subprocess.run(
            [sys.executable, "-c", LONG_RUN, what, path], capture_output=True, text=True, check=True
        ).stdout.split()
        assert int(answer[0]) == minutes * 6000
        peaks_kb[minutes] = int(answer[1])
    print(f"{what}, peak memory in KB: {peaks_kb}")
    assert peaks_kb[60] < peaks_kb[1] + 1024 * most_mb


# The command


def call(folder: Path, root: Path, *options: str, features: str) -> int:
    return main(["--root", str(root), "--dataset", "mine", "--videos", str(folder), "--features", features, *options])


def test_the_command_writes_present_streams_and_records_missing_ones(clips, tmp_path, capsys):
    root, dataset = tmp_path / "root", DatasetFolder(tmp_path / "root", "mine")
    folder = clips["both"].parent
    assert call(folder, root, "--weights", "random", features="resnet152,logmel") == 1
    printed = capsys.readouterr().err
    lines = [line for line in printed.splitlines() if "'pictures'" in line]
    assert len(lines) == 1 and "logmel: no_sound: " in lines[0] and "failures.jsonl" in lines[0]
    assert "'sound'" in printed and "resnet152: no_video: " in printed
    assert re.search(r"\b1 of 4 videos .*resnet152,logmel", printed) and "3 videos" in printed
    failed = {
        name: {f["video_id"]: f["kind"] for f in read_jsonl(dataset.features(name) / "failures.jsonl")}
        for name in ("resnet152", "logmel")
    }
    assert failed == {
        "resnet152": {"broken": "unreadable", "sound": "no_video"},
        "logmel": {"broken": "unreadable", "pictures": "no_sound"},
    }
    assert sorted(FeatureStore(dataset.features("resnet152")).video_ids()) == ["both", "pictures"]
    store = FeatureStore(dataset.features("logmel"))
    assert sorted(store.video_ids()) == ["both", "sound"]
    assert store.profile == PROFILES["logmel"] and (store.weights.name, store.weights.sha256) == ("none", "")
    made, stored = heard(clips["both"]), store.get("both")
    np.testing.assert_array_equal(stored.features, made.features.astype(np.float16))
    np.testing.assert_array_equal(stored.start_seconds, made.start_seconds)
    clip = store.get("both", start_seconds=0.5, end_seconds=1.0)
    np.testing.assert_allclose(clip.start_seconds[[0, -1]], [0.5, 1.0])

    assert call(folder, root, "--weights", "random", features="resnet152,logmel") == 1
    error = capsys.readouterr().err
    assert "'pictures'" not in error and "'broken'" not in error, "neither what is there nor what failed is tried"
    assert call(folder, root, "--retry-failed", features="logmel") == 1
    assert re.search(r": 2 videos .*\b2 ", capsys.readouterr().err)


def test_audio_files_are_accepted_if_only_sound_is_requested(tmp_path, capsys):
    folder = tmp_path / "spoken"
    folder.mkdir()
    for name, codec in (("a.wav", "pcm_s16le"), ("b.mp3", "libmp3lame"), ("c.flac", "flac")):
        write_sound(folder / name, tone(RATE), RATE, codec=codec)
    assert call(folder, tmp_path / "root", features="logmel") == 0
    assert sorted(FeatureStore(tmp_path / "root/mine/features/logmel").video_ids()) == ["a", "b", "c"]
    assert call(folder, tmp_path / "other", "--weights", "random", features="logmel,s3d") == 2
    assert f"{folder}: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_includes_sound(clips, tmp_path, capsys):
    assert (
        call(clips["both"].parent, tmp_path / "root", "--weights", "random", "--plan", features="resnet152,logmel") == 1
    )
    planned = capsys.readouterr()
    assert "logmel: no_sound: " in planned.err
    assert "resnet152: no_video: " in planned.err
    assert "1 of 4 videos" in planned.out
    table = {
        line.split()[0]: line.split()[1:]
        for line in planned.out.splitlines()
        if line.startswith(("resnet152", "logmel"))
    }
    assert table["resnet152"][0] == table["logmel"][0] == "2" and table["resnet152"][2] == "4"
    num_rows = sum(len(heard(clips[name]).features) for name in ("both", "sound"))
    assert int(table["logmel"][2]) == pytest.approx(num_rows, abs=6)


def test_sound_rows_of_other_programs_are_compared(clips, tmp_path, capsys):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    rows = heard(clips["both"]).features
    for made, code, remark in (
        (rows, 0, "same"),
        (rows * 0.23, 0, r"same: .*\b0\.23 "),
        (
            rows - rows.max() - 20,
            1,
            f"DIFFERENT: .* {re.escape(f'{-rows.max() - 20:+.2f}')} ",
        ),
        (np.roll(rows, 3, axis=0), 1, "DIFFERENT: .* 3 "),
        (np.flip(rows, axis=1), 1, r"DIFFERENT: [^\d]*$"),
    ):
        np.save(theirs / "both.npy", made)
        assert call(clips["both"].parent, tmp_path / "root", "--verify-against", str(theirs), features="logmel") == code
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("both"))
        assert re.search(remark, line), line


def test_weights_and_precision_do_not_apply_to_sound(clips, tmp_path, capsys):
    assert load_extractor("logmel", weights="random", precision="bf16").profile == PROFILES["logmel"]
    with pytest.raises(UserError, match=r"x\.pth: logmel .*--weights"):
        load_extractor("logmel", weights="x.pth")
    assert call(clips["both"].parent, tmp_path / "root", "--weights", "x.pth", features="logmel") == 2
    assert "--weights" in capsys.readouterr().err
    assert call(clips["both"].parent, tmp_path / "root", "--weights", "x.pth", features="logmel,s3d") == 2
    assert "x.pth" in capsys.readouterr().err, "they are for the other one"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "logmel" in capsys.readouterr().out


def test_probing_gives_the_sounds_own_timestamps(clips):
    """Both count from the same zero, to the tick of the pictures."""
    info = probe_video(clips["both"])
    with av.open(str(clips["both"])) as container:
        assert sound.time_zero(container) == info.offset * info.time_base
    assert json.dumps(log_mel.row_times(3, 2)[0].tolist()) == "[0.03, 0.04]"
