"""Text in frames: read by RapidOCR in its process, merged over a video; and a process that ends, hangs or lies."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.needs import needs_linux
from helpers.telemetry import telemetry_files
from helpers.text_frames import frame
from helpers.videos import encode_frames
from PIL import Image
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.ocr import reader as text_reader
from vlalign.extract.ocr.reader import MAX_LINES, TextReader
from vlalign.extract.ocr.video_text import looks_the_same, video_text
from vlalign.storage import UserError
from vlalign.storage.common.packages import EXTRAS


@pytest.fixture(scope="module")
def reader():
    with TextReader() as started:
        yield started


def test_lines_are_read_with_their_places_and_without_text_there_are_none(reader):
    upper, lower = sorted(reader.read(frame("Preheat the oven", "180 degrees")), key=lambda line: line.box[1])
    assert (upper.text, lower.text) == ("Preheat the oven", "180 degrees")
    assert min(upper.confidence, lower.confidence) > 0.9
    left, top, right, bottom = upper.box
    assert 0 < left < 0.1 and 0.05 < top < bottom < 0.3 and 0.5 < right < 0.8 and lower.box[1] > bottom
    assert reader.read(frame()) == []
    assert reader.read(np.random.default_rng(0).integers(0, 256, (360, 640, 3), dtype=np.uint8)) == []


@needs_linux
def test_the_telemetry_of_onnx_runtime_is_off():
    before = telemetry_files()
    with TextReader() as started:
        assert [line.text for line in started.read(frame("Preheat"))] == ["Preheat"]
    assert telemetry_files() == before


def test_the_text_of_a_video_has_its_times(reader, tmp_path):
    shown = [frame("Chapter one")] * 30 + [frame()] * 20 + [frame("Any questions?", "Thank you")] * 30
    encode_frames(tmp_path / "talk.mp4", shown, 10)
    text = video_text(tmp_path / "talk.mp4", reader)
    assert (text.duration_seconds, text.partial) == (8, "")
    assert [(span.text, span.start_seconds, span.end_seconds) for span in text.spans] == [
        ("Chapter one", 0, 3),
        ("Any questions?", 5, 8),
        ("Thank you", 5, 8),
    ]
    Image.fromarray(frame("Exit")).save(tmp_path / "sign.png")
    [span] = video_text(tmp_path / "sign.png", reader).spans
    assert (span.text, span.start_seconds) == ("Exit", 0)


def test_a_file_that_is_no_video_is_refused(reader, tmp_path):
    (tmp_path / "no.mp4").write_bytes(b"nothing" * 100)
    with pytest.raises(VideoError) as refused:
        video_text(tmp_path / "no.mp4", reader)
    assert refused.value.kind == "unreadable"


def test_a_frame_looks_the_same_unless_a_letter_changes():
    first = frame("Step 1", px=24)
    noise = np.random.default_rng(0).integers(-2, 3, first.shape)
    assert looks_the_same(np.clip(first + noise, 0, 255).astype(np.uint8), first)
    assert not looks_the_same(frame("Step 2", px=24), first)
    assert not looks_the_same(first, first[:-2])


LIES = {
    "no JSON": b"\xff",
    "an object": b"{}",
    "a line without a place": json.dumps([["a", 0.5]]).encode(),
    "a place outside": json.dumps([["a", 0.5, 0, 0, 2, 1]]).encode(),
    "a confidence that is no number": b'[["a", NaN, 0, 0, 1, 1]]',
    "half a character": b'[["\\ud800", 0.5, 0, 0, 1, 1]]',
    "very many lines": json.dumps([["a", 0.5, 0, 0, 1, 1]] * (MAX_LINES + 1)).encode(),
    "very long text": json.dumps([["a" * 2000, 0.5, 0, 0, 1, 1]]).encode(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_process_is_ended(monkeypatch, lie):
    answer = (
        "from multiprocessing.connection import Connection; import time\n"
        "from vlalign.storage.common.child_connection import parent_socket\n"
        f"Connection(parent_socket().detach()).send_bytes({LIES[lie]!r}); time.sleep(60)"
    )
    monkeypatch.setattr(text_reader, "COMMAND", answer)
    with TextReader() as lying, pytest.raises(VideoError) as refused:
        lying.read(frame())
    assert refused.value.kind == "crashed" and lying._process.returncode is not None


def test_a_process_that_hangs_or_ends_is_an_error_of_the_video(monkeypatch):
    monkeypatch.setattr(text_reader, "FRAME_SECONDS", 1.0)
    monkeypatch.setattr(text_reader, "COMMAND", "import time; time.sleep(60)")
    began = time.monotonic()
    with TextReader() as hanging, pytest.raises(VideoError) as refused:
        hanging.read(frame())
    assert refused.value.kind == "timeout" and time.monotonic() - began < 30
    monkeypatch.setattr(text_reader, "FRAME_SECONDS", 60.0)
    monkeypatch.setattr(text_reader, "COMMAND", "import os; os._exit(3)")
    with TextReader() as ended, pytest.raises(VideoError, match="3") as refused:
        ended.read(frame())
    assert refused.value.kind == "crashed"


@needs_linux
def test_the_process_is_confined_and_ends_with_its_parent(reader):
    reader.read(frame())
    status = Path(f"/proc/{reader._process.pid}/status").read_text()
    assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status
    program = (
        "from vlalign.extract.ocr.reader import TextReader; import numpy as np, os\n"
        "reader = TextReader(); reader.read(np.zeros((64, 64, 3), np.uint8)); print(reader._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1][:3]:
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    pytest.fail("it lives on")


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(UserError) as caught:
        TextReader()
    assert all(package in str(caught.value) for package in EXTRAS["ocr"]) and "\n" not in str(caught.value)
