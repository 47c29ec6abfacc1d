"""Files that try to open other files and addresses, and files with awkward names."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.decoding import BACKENDS, ask, pictures_by, take, want
from helpers.needs import PROGRAM, SYSTEM, missing_programs, need, skip_without
from helpers.numbered import HEIGHT, constant, numbered_picture, numbers_of
from helpers.openings import Openings
from helpers.videos import remux
from vlalign.extract.decoding import backends
from vlalign.extract.decoding.decord_backend import decord_reads_well
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.frames import DecodePass
from vlalign.extract.decoding.kernels import Size
from vlalign.extract.decoding.probe import probe_video

# Files that want to harm

SECRETS = ("secret.mp4", "secret.ts")


PLAYLISTS = {
    "m3u8": ("m3u8", "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\nsecret.ts\n#EXT-X-ENDLIST\n"),
    "m3u8, absolute": ("m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\n{folder}/secret.ts\n#EXT-X-ENDLIST\n"),
    "m3u8, file address": (
        "m3u8",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\nfile://{folder}/secret.ts\n#EXT-X-ENDLIST\n",
    ),
    "m3u8, address": ("m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\n{address}/a.ts\n#EXT-X-ENDLIST\n"),
    "m3u8, key": (
        "m3u8",
        '#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-KEY:METHOD=AES-128,URI="{address}/key"\n#EXTINF:0.6,\nsecret.ts\n#EXT-X-ENDLIST\n',
    ),
    "m3u8, map": (
        "m3u8",
        '#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MAP:URI="secret.mp4"\n#EXTINF:0.6,\nsecret.ts\n#EXT-X-ENDLIST\n',
    ),
    "m3u8, master": ("m3u8", "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000\n{address}/list.m3u8\n"),
    "ffconcat": ("ffconcat", "ffconcat version 1.0\nfile secret.mp4\n"),
    "ffconcat, absolute": ("ffconcat", "ffconcat version 1.0\nfile {folder}/secret.mp4\n"),
    "ffconcat, address": ("ffconcat", "ffconcat version 1.0\nfile {address}/a.mp4\n"),
    "sdp": ("sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 33\n"),
    "dash": (
        "mpd",
        '<?xml version="1.0"?>'
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S"><Period>'
        '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>{address}/a.mp4</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>",
    ),
    "dash, file": (
        "mpd",
        '<?xml version="1.0"?>'
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S"><Period>'
        '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>secret.mp4</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>",
    ),
}


class Listener:
    """Something on this machine that a playlist may name by its address."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._num_calls = 0
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            call, _ = self._socket.accept()
            with call:
                said = call.recv(4)
                if said == b"stop":
                    return
                self._num_calls += said != b"sync"

    def _say(self, what: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as call:
            call.sendall(what)
            call.recv(1)

    def num_calls(self) -> int:
        self._say(b"sync")  # calls are answered in turn: all earlier ones are counted by then
        return self._num_calls

    def close(self) -> None:
        self._say(b"stop")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def bait(with_sound, tmp_path) -> Path:
    """A folder with videos that nobody asked for."""
    shutil.copy(with_sound, tmp_path / "secret.mp4")
    remux(with_sound, tmp_path / "secret.ts", "mpegts", sound=False)
    return tmp_path


@pytest.fixture
def openings(bait) -> Iterator[Openings]:
    """Only Linux tells which files are opened."""
    need(SYSTEM, [] if sys.platform == "linux" else ["Linux"])
    openings = Openings([bait / name for name in SECRETS])
    yield openings
    openings.close()


def write_playlist(folder: Path, listener: Listener, which: str, named: str = "") -> Path:
    ending, content = PLAYLISTS[which]
    path = folder / f"list.{named or ending}"
    values = {"folder": folder, "address": f"http://127.0.0.1:{listener.port}", "port": listener.port}
    path.write_text(content.format(**values))
    return path


@pytest.mark.parametrize("named", ["", "mp4"], ids=["by its name", "as mp4"])
@pytest.mark.parametrize("which", PLAYLISTS)
def test_playlists_are_refused_and_nothing_they_name_is_opened(
    bait, openings, listener, monkeypatch, with_sound, which, named
):
    path = write_playlist(bait, listener, which, named)
    monkeypatch.chdir(bait)
    # Each decoder too refuses it, had something else than the playlist been probed.
    info = replace(probe_video(with_sound), path=path)
    attempts = [
        lambda: probe_video(path),
        lambda: list(backends.decode_with_pyav(DecodePass(info, [Size(48)]), np.arange(60))),
        *(
            [lambda: list(backends.decode_with_ffmpeg(DecodePass(info, [Size(48)]), np.arange(60)))]
            if backends.can_use_ffmpeg()
            else []
        ),
        *([lambda: decord_reads_well(info, [Size(48)])] if backends.decord else []),
    ]
    for attempt in attempts:
        with pytest.raises(VideoError) as refused:
            attempt()
        assert refused.value.kind == "unreadable"
    assert openings.since_last() == set()
    assert listener.num_calls() == 0


def test_playlists_are_refused_by_the_child_process(bait, openings, listener, process):
    for which in PLAYLISTS:
        ended = ask(process, write_playlist(bait, listener, which, "mp4"), want(1))
        assert ended.failure.kind == "unreadable", which
    assert openings.since_last() == set() and listener.num_calls() == 0


def test_ffmpeg_left_to_itself_opens_what_a_playlist_names(bait, openings, listener):
    """So that the tests above have something to refuse, and see it."""
    for which, secret in (("ffconcat", "secret.mp4"), ("m3u8", "secret.ts")):
        with av.open(str(write_playlist(bait, listener, which))) as container:
            assert sum(1 for _ in container.decode(video=0)) >= 1
        assert openings.since_last() == {secret}
    assert listener.num_calls() == 0
    with pytest.raises(av.FFmpegError):
        av.open(
            str(write_playlist(bait, listener, "m3u8, address")), options={"protocol_whitelist": "file,http,tcp,crypto"}
        )
    assert listener.num_calls() > 0


@skip_without(PROGRAM, missing_programs("strace"))
def test_a_trace_shows_that_only_the_file_itself_is_opened(bait, listener, tmp_path):
    traced = subprocess.run(["strace", "-o", tmp_path / "x", "true"], capture_output=True)
    need(SYSTEM, ["the right to trace"] if traced.returncode else [])
    lists = [write_playlist(bait, listener, which, f"{place}.mp4") for place, which in enumerate(PLAYLISTS)]
    good = bait / "good.mp4"
    shutil.copy(bait / "secret.mp4", good)
    asked = [*lists, good]
    program = (
        "import sys\nfrom pathlib import Path\nfrom vlalign.extract.decoding.decode import FrameSpec, decode_video\n"
        "from vlalign.extract.decoding.probe import VideoError, probe_video\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        for _ in decode_video(probe_video(Path(path)), [FrameSpec(24, 1, 48, None, 'none')]): pass\n"
        "        print('played')\n"
        "    except VideoError as error: print(error.kind)\n"
    )
    trace = ["strace", "-f", "-y", "-e", "trace=open,openat,connect,socket", "-o", tmp_path / "trace"]
    done = subprocess.run(
        [*trace, sys.executable, "-c", program, *asked], capture_output=True, text=True, cwd=bait, check=True
    )
    assert done.stdout.split() == ["unreadable"] * len(lists) + ["played"]
    lines = (tmp_path / "trace").read_text().splitlines()
    opened = {
        name for line in lines if " = -1 " not in line for name in re.findall(r'open(?:at)?\([^"]*"([^"]*)"', line)
    }
    mine = {str(bait / name) for name in opened if (bait / name).is_relative_to(bait) and (bait / name).is_file()}
    assert mine == {str(path) for path in asked}
    assert not [line for line in lines if "AF_INET" in line]


@pytest.fixture(scope="module")
def other_video(tmp_path_factory) -> Path:
    return constant(
        tmp_path_factory.mktemp("other") / "other.mp4", 60, "25", picture=lambda number: numbered_picture(1000 + number)
    )


AWKWARD_NAMES = [
    *(
        "co:lon.mp4",
        "-dash id.mp4",
        "pct%03d.mp4",
        "with spaces .mp4",
        "ünï 视频.mp4",
        "qu'ote\".mp4",
        "new\nline.mp4",
        "back\\slash.mp4",
    ),
    *(
        "glob*[a]?.mp4",
        "-",
        "pipe:0",
        "concat:other.mp4",
        "file:other.mp4",
        "subfile,,start,0,end,0,,:other.mp4",
        "http:",
        "no ending",
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_awkward_file_names_open_the_file_of_that_name(with_sound, other_video, tmp_path, monkeypatch, name, backend):
    shutil.copy(with_sound, tmp_path / name)
    shutil.copy(other_video, tmp_path / "other.mp4")
    monkeypatch.chdir(tmp_path)
    ((pictures,), _) = pictures_by(backend, probe_video(Path(name)), [HEIGHT], np.array([0, 1, 30]))
    assert numbers_of(pictures) == [0, 1, 30]


def test_undecodable_file_names_do_not_end_the_child(with_sound, tmp_path, process):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.mp4"))
    shutil.copy(with_sound, path)
    ended = ask(process, path, want(24))
    assert ended.failure is None or ended.failure.kind == "unreadable"
    assert process.usable


def test_symlinks_are_followed(with_sound, tmp_path):
    (tmp_path / "link.mp4").symlink_to(with_sound)
    assert numbers_of(take(tmp_path / "link.mp4", want(1)).frames) == numbers_of(take(with_sound, want(1)).frames)
