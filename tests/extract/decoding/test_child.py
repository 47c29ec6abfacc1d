"""What a decoder process may use, and how it ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.decoding import ask, children_of, want
from helpers.needs import SYSTEM, skip_without
from helpers.numbered import HEIGHT, WIDTH, numbered_picture
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.process import DecodeProcess

pytestmark = pytest.mark.portable

# What a decoder's process may take, and how it ends


def repeated(path: Path, num_frames: int, picture: np.ndarray) -> Path:
    """One picture's packet over and over: long to decode, and quick to write."""
    with av.open(str(path), "w", format="mp4") as written:
        stream = written.add_stream("libx264", rate=24, options={"preset": "ultrafast", "threads": "1", "bf": "0"})
        stream.height, stream.width = picture.shape[:2]
        stream.pix_fmt = "yuv420p"
        content = b"".join(
            bytes(p)
            for p in [*stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")), *stream.encode(None)]
        )
        for number in range(num_frames):
            packet = av.Packet(content)
            packet.stream, packet.time_base = stream, Fraction(1, 24)
            packet.pts = packet.dts = number
            packet.duration, packet.is_keyframe = 1, True
            written.mux(packet)
    return path


@pytest.fixture(scope="module")
def laborious(tmp_path_factory) -> Path:
    """Minutes of work in a small file."""
    return repeated(
        tmp_path_factory.mktemp("long") / "long.mp4", 6000, numbered_picture(0).repeat(20, axis=0).repeat(20, axis=1)
    )


@contextmanager
def child(monkeypatch, **constants: int) -> Iterator[DecodeProcess]:
    """The real child process, with other limits."""
    settings = [f"request_handler.{name} = {value}" for name, value in constants.items()]
    command = "; ".join(["from vlalign.extract.decoding import child, request_handler", *settings, "child.main()"])
    monkeypatch.setattr(decode_process, "COMMAND", command)
    process = DecodeProcess()
    try:
        yield process
    finally:
        process.close()


@pytest.mark.parametrize("without", [[], pytest.param(["decord"], marks=pytest.mark.slow)], ids=["", "no decord"])
def test_a_video_that_takes_too_much_processor_time_is_ended(laborious, monkeypatch, without):
    with child(monkeypatch, CPU_SECONDS=0, CPU_SECONDS_PER_SECOND=0) as process:
        ended = ask(process, laborious, want(24), excluded_decoders=without)
        assert ended.failure.kind == "timeout"
        assert len(ended.rows) < 6000
        assert not process.usable


def test_processor_time_is_counted_for_each_video_anew(with_sound, monkeypatch):
    with child(monkeypatch, CPU_SECONDS=1, CPU_SECONDS_PER_SECOND=0) as process:
        used_seconds = 0.0
        while used_seconds < 1.5:  # all together use more than one may
            assert ask(process, with_sound, want(24, 480)).failure is None
            (decoder,) = children_of(process._process.pid)
            used_seconds = time.clock_gettime(~decoder << 3 | 2)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    return repeated(tmp_path_factory.mktemp("large") / "large.mp4", 6, np.zeros((4096, 6144, 3), dtype=np.uint8))


def test_pictures_that_take_too_much_memory_fail_and_do_not_hang(large, monkeypatch):
    with child(monkeypatch, MEMORY_BYTES=800 << 20) as process:
        ended = ask(process, large, want(1, 8000))
        assert (ended.failure.kind, ended.rows) == ("out_of_memory", [])
        assert len(ask(process, large, want(1, 48)).rows) == 1, "when small it is an ordinary one"


@pytest.mark.xfail(strict=True, reason="FFmpeg's decoder calls packets damaged for which it has no memory")
def test_frames_that_need_too_much_memory_are_not_reported_as_damage(large, monkeypatch):
    with child(monkeypatch, MEMORY_BYTES=400 << 20) as process:
        assert ask(process, large, want(24)).failure.kind == "out_of_memory"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run_parent(lines: str, *arguments: object) -> subprocess.Popen:
    """A Python process of its own that has a DecodeProcess."""
    start = (
        "import os, signal, sys, time\nfrom pathlib import Path\nimport numpy as np\n"
        "from vlalign.extract.decoding.sampling import FrameSpec\n"
        "from vlalign.extract.decoding.messages import Request\n"
        "from vlalign.extract.decoding.process import DecodeProcess\n"
        "def answer(process):\n"
        "    while (answer := type(process.receive()).__name__) == 'Heartbeat': pass\n"
        "    return answer\n"
    )
    command = [sys.executable, "-c", start + textwrap.dedent(lines), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


HANGING = """
import time
from vlalign.extract.decoding import child, request_handler
from vlalign.extract.decoding.decode import DecodingStarted
def hang(request, responder):
    responder.send(DecodingStarted("PyAV"))
    time.sleep(1000)
request_handler.handle_request = hang
child.main()
"""


@pytest.mark.parametrize("hangs", [False, True], ids=["while it decodes", "while it hangs"])
def test_the_child_does_not_outlive_its_parent(laborious, hangs):
    parent = run_parent(
        """
        from vlalign.extract.decoding import process as decode_process
        decode_process.COMMAND = sys.argv[2] or decode_process.COMMAND
        process = DecodeProcess()
        process.start(Request(sys.argv[1], [FrameSpec(24, 1, 48, None, "none")]))
        answer(process)
        print(process._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        laborious,
        HANGING if hangs else "",
    )
    out, _ = parent.communicate(timeout=120)
    pid = int(out)
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        assert not alive(pid)
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_ctrl_c_does_not_disturb_the_child(with_sound):
    parent = run_parent(
        """
        process = DecodeProcess()
        process.start(Request(sys.argv[1], [FrameSpec(24, 1, 480, None, "none")]))
        what = answer(process)
        try:
            print(what, flush=True)
            while True:  # signal.pause() would wait for ever for a signal that came just before it
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        while type(message := process.receive()).__name__ != "DecodingFinished":
            if hasattr(message, "shape"):
                process.take_frames(message, np.empty(message.shape, np.uint8))
            elif hasattr(message, "seconds"):
                process.receive_bytes()
        print("Finished", process._link.take_output())
        process.close()
        """,
        with_sound,
    )
    assert parent.stdout.readline() == "DecodingStarted\n"
    os.killpg(parent.pid, signal.SIGINT)
    out, err = parent.communicate(timeout=120)
    assert (out, err) == ("interrupted\nFinished b''\n", "")


linux = skip_without(SYSTEM, [] if sys.platform == "linux" else ["processes that confine decoders"])


# A decoder that was taken over and keeps its parent waiting

KEEPS_WAITING = """
import os, signal, struct, time
from vlalign.extract.decoding import child, confined_process, request_handler
from vlalign.extract.decoding.messages import Heartbeat
request_handler.CPU_SECONDS = request_handler.CPU_SECONDS_PER_SECOND = {cpu_seconds}
def answer_never(request, responder):
    for number in range(1, 65):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_IGN)
    line = responder._connection
    {what}
request_handler.handle_request = answer_never
child.main()
"""
WAYS = {
    "sleeps": ("time.sleep(1000)", "timeout"),
    "stops itself": ("signal.raise_signal(signal.SIGSTOP)", "timeout"),
    "sends now and then": ("while True: time.sleep(0.2); responder.send(Heartbeat())", "timeout"),
    "sends half a message": ("os.write(line.fileno(), struct.pack('!i', 1000) + b'{'); time.sleep(1000)", "timeout"),
    "sends byte by byte": (
        "os.write(line.fileno(), struct.pack('!i', 1000))\n    while not time.sleep(.2): os.write(line.fileno(), b'{')",
        "timeout",
    ),
    "sends a large message": ("line.send_bytes(bytes(2 << 20))", "crashed"),
    "works without end": ("while True: responder.heartbeat()", "timeout"),
    "says that it is done and works on": (
        "os.write(responder.on_duration.args[0].fileno(), confined_process.DONE)\n"
        "    while True: responder.heartbeat()",
        "timeout",
    ),
    "prints without end": ("while True: os.write(2, b'x' * 4096)", "crashed"),
    "closes everything": ("os.closerange(0, 256); time.sleep(1000)", "out_of_memory"),
}


@linux
@pytest.mark.parametrize("way", WAYS)
def test_a_decoder_that_keeps_its_parent_waiting_is_ended(with_sound, monkeypatch, way):
    what, kind = WAYS[way]
    silence, longest = (2.0, 3.0) if kind == "timeout" else (60.0, 60.0)  # a busy machine needs seconds to start it
    monkeypatch.setattr(decode_process, "SILENCE_SECONDS", silence)
    monkeypatch.setattr(decode_process, "MAX_WAIT_SECONDS", longest)
    cpu_seconds = 0 if "work" in way else 100
    monkeypatch.setattr(decode_process, "COMMAND", KEEPS_WAITING.format(what=what, cpu_seconds=cpu_seconds))
    process = DecodeProcess()
    try:
        started = time.monotonic()
        failure = ask(process, with_sound, want(1)).failure
        assert (failure.kind, process.usable) == (kind, False)
        assert time.monotonic() - started < 30
    finally:
        process.close()


def test_ctrl_c_while_the_child_starts_prints_no_traceback():
    parent = run_parent(
        """
        process = DecodeProcess()
        try:
            print("ready", flush=True)
            while True:  # signal.pause() would wait for ever for a signal that came just before it
                time.sleep(0.01)
        except KeyboardInterrupt:
            process.close()
        """
    )
    assert parent.stdout.readline() == "ready\n"
    os.killpg(parent.pid, signal.SIGINT)
    _, err = parent.communicate(timeout=120)
    assert (parent.returncode, err) == (0, "")


def test_lower_limits_of_the_machine_are_kept(with_sound):
    """As under a batch system. A superuser may lift them: that right is given up first."""
    parent = run_parent(
        """
        import ctypes, resource
        ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_RESOURCE: gone in the child
        resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        process = DecodeProcess()
        process.start(Request(sys.argv[1], [FrameSpec(24, 1, 48, None, "none")], only_probe=True))
        print(answer(process))
        process.close()
        """,
        with_sound,
    )
    out, err = parent.communicate(timeout=120)
    assert (out, err) == ("VideoProbed\n", "")


def test_a_child_is_replaced_after_many_videos(with_sound, monkeypatch):
    monkeypatch.setattr(decode_process, "MAX_VIDEOS_PER_PROCESS", 2)
    with child(monkeypatch) as process:
        assert ask(process, with_sound, want(24), only_probe=True).finished.num_frames == [58] and process.usable
        assert ask(process, with_sound, want(1), only_probe=True).finished.num_frames == [2] and not process.usable


def test_only_probing_decodes_nothing(with_sound, process):
    probed = ask(process, with_sound, want(24), want(1), only_probe=True)
    assert (probed.begun, probed.rows) == ([], [])
    info = probe_video(with_sound)
    expected = {
        "codec": "h264",
        "width": WIDTH,
        "height": HEIGHT,
        "duration_seconds": info.duration_seconds,
        "missing": "",
    }
    assert {name: getattr(probed.finished, name) for name in expected} == expected
