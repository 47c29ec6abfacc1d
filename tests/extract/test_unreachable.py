"""Videos that fail because of a server, a network or a disk: the same command tries them again."""

import errno
import http.server
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.http import HTTPFileSystem
from helpers.disks import mounted
from helpers.needs import PROGRAM, SYSTEM, missing_programs, need
from helpers.sounds import sound_of_one_second, write_clip
from vlalign.extract.cli.extract import main
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.extractor import load_extractor
from vlalign.extract.pipeline import download as fetch
from vlalign.extract.pipeline.download import Fetcher
from vlalign.extract.pipeline.engine import extract_videos
from vlalign.extract.pipeline.pending_work import PendingWork
from vlalign.extract.pipeline.video_jobs import VideoJob
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.common.files import file_identity, write_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.remote import http_client as web
from vlalign.storage.remote.addresses import hide_secrets, without_secrets
from vlalign.storage.stores.failure_log import read_failures

pytestmark = pytest.mark.usefixtures("own_temporary_folder")
PASSING = ("400", "401", "403", "408", "425", "429", "500", "502", "503", "504", "reset", "half", "hang", "login")
"""What a server does for a while, whichever video is asked for."""
OF_THE_VIDEO = ("404", "410", "nonsense")


class Server(http.server.BaseHTTPRequestHandler):
    """Sends a recording of one second, or fails as the path's first word says while ``server.ill``."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer(head=True)

    def do_GET(self):
        self._answer(head=False)

    def _answer(self, head: bool) -> None:
        self.server.asked.append(self.path)
        what, content = self.path.split("/")[1], self.server.sound
        if not self.server.ill and what not in OF_THE_VIDEO:
            what = "good"
        if what == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        while what == "hang" and self.server.ill:
            time.sleep(0.02)
        self.send_response(int(what) if what.isdigit() else 200)
        if what.isdigit():
            content = b""
        elif what == "login":
            content = b"\n<!DOCTYPE html><html><title>Sign in</title></html>"
        elif what == "nonsense":
            content = b"no video" * 100
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not head:
            self.wfile.write(content[: len(content) // 2] if what == "half" else content)
            self.close_connection = what == "half"

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[http.server.ThreadingHTTPServer]:
    monkeypatch.setattr(web, "SILENT_SECONDS", 0.3)
    HTTPFileSystem.clear_instance_cache()  # fsspec keeps clients, and their limits, for other tests
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    made.asked, made.ill, made.sound = [], True, sound_of_one_second()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.ill = False
    made.shutdown()
    made.server_close()
    HTTPFileSystem.clear_instance_cache()


def listed(tmp_path: Path, paths: dict[str, str]) -> tuple[DatasetFolder, list[str]]:
    """A data set with these videos, and the call that extracts their sound."""
    dataset = DatasetFolder(tmp_path / "root", "mine")
    dataset.write_videos([VideoRecord(video_id=video_id, path=path) for video_id, path in paths.items()])
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "logmel"]
    return dataset, [*call, "--allow-host", "127.0.0.1"]


def kinds(dataset: DatasetFolder) -> dict[str, str]:
    failed = read_failures(dataset.features("logmel") / "failures.jsonl")
    return {video_id: failure.kind for video_id, failure in failed.items()}


def at(server: http.server.ThreadingHTTPServer, path: str) -> str:
    return f"http://127.0.0.1:{server.server_port}/{path}"


@pytest.mark.parametrize("passing", [PASSING[:4], PASSING[4:8], PASSING[8:11], PASSING[11:]], ids=",".join)
def test_the_same_command_extracts_what_a_mended_server_had_refused(tmp_path, server, capsys, passing):
    dataset, call = listed(tmp_path, {what: at(server, f"{what}/a.wav") for what in (*passing, *OF_THE_VIDEO)})
    assert main(call) == 1
    assert kinds(dataset) == dict.fromkeys(passing, "unreachable") | {
        "404": "missing",
        "410": "missing",
        "nonsense": "unreadable",
    }
    told = capsys.readouterr().err
    assert f"{len(passing)} videos " in told and "3 videos " in told and "--retry-failed" in told
    for status in filter(str.isdigit, passing):
        assert f"127.0.0.1:{server.server_port}/{status}/a.wav: {status} " in told
    assert ("half/a.wav: the connection ended before the whole file came;" in told) == ("half" in passing)

    server.ill = False
    server.asked.clear()
    assert main(call) == 1, "three of them are the videos' own"
    assert sorted(FeatureStore(dataset.features("logmel")).video_ids()) == sorted(passing)
    assert kinds(dataset).keys() == set(OF_THE_VIDEO)
    assert not any(path.split("/")[1] in OF_THE_VIDEO for path in server.asked), "they were not asked for again"
    assert "(unreachable" not in capsys.readouterr().err

    server.asked.clear()
    assert main([*call, "--retry-failed"]) == 1
    assert {path.split("/")[1] for path in server.asked} == set(OF_THE_VIDEO)


def test_a_server_that_stays_ill_is_asked_by_each_call_and_its_videos_are_counted_once(tmp_path, server, capsys):
    dataset, call = listed(tmp_path, {f"v{n}": at(server, f"503/{n}.wav") for n in range(3)})
    for _ in range(2):
        server.asked.clear()
        assert main(call) == 1
        assert {path.split("/")[2] for path in server.asked} == {"0.wav", "1.wav", "2.wav"}
        told = capsys.readouterr().err
        assert re.search(r"\b0 of 3 videos .*\blogmel", told) and "(unreachable 3;" in told
        assert "--retry-failed" not in told and len(kinds(dataset)) == 3


def test_a_closed_port_and_an_unknown_host_are_not_the_video_s_fault(tmp_path, server, capsys):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    paths = {"port": f"http://127.0.0.1:{port}/a.wav", "host": "https://nowhere.invalid/a.wav"}
    dataset, call = listed(tmp_path, paths)
    assert main(call) == 1
    assert kinds(dataset) == {"port": "unreachable", "host": "unreachable"}
    dataset, call = listed(tmp_path, dict.fromkeys(paths, at(server, "good/a.wav")))
    assert main(call) == 0 and kinds(dataset) == {}
    error = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in error and "nowhere.invalid" in error and "(unreachable 2;" in error


def test_messages_name_host_and_status_but_no_password(tmp_path, server, capsys):
    port = server.server_port
    secret = f"http://anna:s3cret@127.0.0.1:{port}/403/a.wav?X-Amz-Signature=0123abcd"
    paths = {"a": secret, "b": secret.replace("403", "hang"), "c": secret.replace("403", "404")}
    dataset, call = listed(tmp_path, paths)
    assert main(call) == 1
    told = capsys.readouterr().err + (dataset.features("logmel") / "failures.jsonl").read_text()
    assert f"127.0.0.1:{port}/403/a.wav?...: 403 " in told
    for word in ("s3cret", "anna", "0123abcd"):
        assert word not in told
    server.ill = False
    assert main(call) == 1 and kinds(dataset) == {"c": "missing"}, "the whole address is still what is fetched"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://anna:s3cret@host:8080/a%20b.mp4?Signature=01", "https://host:8080/a%20b.mp4?..."),
        ("http://anna@host?a=1", "http://host?..."),
        ("sftp://anna:s3cret@host/a@b.mp4", "sftp://host/a@b.mp4"),
        ("https://host/a@b.mp4", "https://host/a@b.mp4"),
        ("s3://films/what?.mp4", "s3://films/what?.mp4"),
        ("abfs://films@account.dfs.core.windows.net/a.mp4", "abfs://films@account.dfs.core.windows.net/a.mp4"),
    ],
)
def test_addresses_are_shown_without_secrets_and_otherwise_whole(address, shown):
    assert without_secrets(address) == shown
    assert hide_secrets(f"no answer from '{address}' in time") == f"no answer from '{shown}' in time"


def test_a_server_that_recovers_within_the_call_is_asked_again_after_longer_and_longer_pauses(server, monkeypatch):
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        server.ill = len(pauses) < 2

    monkeypatch.setattr("vlalign.storage.common.retry.time.sleep", sleep)
    fetcher = Fetcher(allowed_hosts=["127.0.0.1"])
    jobs = fetcher.jobs([VideoJob("x", Path(), [], url=at(server, "503/a.wav"))])
    job = next(job for job in jobs if job is not None)
    assert fetcher.done(job) is None
    first, second = (pause for pause in pauses if pause >= fetch.PAUSE_SECONDS)
    assert second == 2 * first
    fetcher.close()


def test_a_disk_that_is_full_during_a_download_is_not_the_servers_fault(tmp_path, server, monkeypatch, capsys):
    server.ill = False
    _, call = listed(tmp_path, {"a": at(server, "good/a.wav")})

    def write(self, path, local, **_):
        Path(local).write_bytes(bytes(10))
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(HTTPFileSystem, "get_file", write)
    server.asked.clear()
    assert main(call) == 1
    told = capsys.readouterr().err
    assert "disk full: no room for http://127.0.0.1" in told and "set TMPDIR" in told and "unreachable" not in told


def test_a_file_for_which_the_disk_has_no_room_is_tried_again_once_there_is(tmp_path, server, monkeypatch, capsys):
    """One that is larger than a download may be is not."""
    server.ill = False
    dataset, call = listed(tmp_path, {"a": at(server, "good/a.wav")})
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=48k", "none") as small:
        monkeypatch.setattr(tempfile, "tempdir", str(small))
        assert main(call) == 1 and kinds(dataset) == {"a": "no_room"}
        assert "set TMPDIR" in capsys.readouterr().err
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with monkeypatch.context() as limits:
        limits.setitem(Fetcher.__init__.__kwdefaults__, "max_bytes", 20_000)
        assert main(call) == 1 and kinds(dataset) == {"a": "too_large"}
    assert main(call) == 1 and kinds(dataset) == {"a": "too_large"}
    assert main([*call, "--retry-failed"]) == 0


def test_a_folder_of_downloads_that_is_removed_meanwhile_ends_the_call_and_fails_no_video(tmp_path, server, capsys):
    """As a job that cleans /tmp does at night."""
    dataset, call = listed(tmp_path, {"a": at(server, "hang/a.wav")})

    def remove() -> None:
        while not server.asked:
            time.sleep(0.01)
        for folder in (tmp_path / "temporary").iterdir():
            shutil.rmtree(folder)
        server.ill = False

    cleaner = threading.Thread(target=remove)
    cleaner.start()
    assert main(call) == 1
    cleaner.join()
    assert f"{tmp_path / 'temporary'}" in capsys.readouterr().err
    assert kinds(dataset) == {}
    assert main(call) == 0


@pytest.mark.parametrize(
    ("kind", "is_tried"), [("unreachable", True), ("missing", False), ("refused", False), ("unreadable", False)]
)
def test_failures_of_addresses_that_an_earlier_version_wrote(tmp_path, kind, is_tried):
    dataset, _ = listed(tmp_path, {})
    row = {"video_id": "a", "path": "https://example.org/a.mp4", "kind": kind, "message": "403", "source": ""}
    write_jsonl(dataset.features("logmel") / "failures.jsonl", [row])
    video = VideoRecord(video_id="a", path=row["path"])
    assert PendingWork(dataset, ["logmel"]).missing_features(video, only_failed=False) == (
        ["logmel"] if is_tried else []
    )


@pytest.mark.parametrize(
    ("kind", "is_tried"), [("unreachable", True), ("missing", True), ("unreadable", False), ("timeout", False)]
)
def test_failures_of_a_file_that_has_not_changed_since(tmp_path, kind, is_tried):
    dataset, _ = listed(tmp_path, {"a": "a.wav"})
    path = dataset.path / "a.wav"
    path.write_bytes(b"content")
    row = {"video_id": "a", "path": str(path), "kind": kind, "message": "why", "source": file_identity(path)}
    write_jsonl(dataset.features("logmel") / "failures.jsonl", [row])
    left = PendingWork(dataset, ["logmel"]).missing_features(dataset.read_videos()[0], only_failed=False)
    assert left == (["logmel"] if is_tried else [])


def test_a_file_that_was_gone_is_extracted_once_it_is_there(tmp_path, capsys):
    dataset, call = listed(tmp_path, {"a": "a.wav", "b": "b.wav"})
    (dataset.path / "b.wav").write_bytes(sound_of_one_second())
    assert main(call) == 1 and kinds(dataset) == {"a": "missing"}
    assert "(missing 1;" in capsys.readouterr().err
    (dataset.path / "a.wav").write_bytes(sound_of_one_second())
    assert main(call) == 0 and kinds(dataset) == {}


def test_videos_whose_disk_is_not_mounted_are_left_for_the_next_call(tmp_path, capsys):
    films, away = tmp_path / "films", tmp_path / "away"
    call = ["--root", str(tmp_path / "root"), "--dataset", "mine", "--videos", str(films), "--features", "logmel"]
    for name in ("x/a", "x/b", "y/c", "y/d"):
        (films / name).parent.mkdir(parents=True, exist_ok=True)
        (films / f"{name}.wav").write_bytes(sound_of_one_second())
    dataset = DatasetFolder(tmp_path / "root", "mine")
    (films / "y").rename(away)
    (films / "y").mkdir()
    assert main(call) == 0, "nothing is known of the others"
    (films / "y").rmdir()
    away.rename(films / "y")
    assert main(call) == 0
    shutil.rmtree(dataset.path / "features")

    (films / "y").rename(away)
    (films / "y").mkdir()
    capsys.readouterr()
    accepting = [*call, "--accept-failures", "all", "--accept-failures", "missing"]
    assert main(accepting) == 1 and kinds(dataset) == {"y/c": "unreachable", "y/d": "unreachable"}
    told = capsys.readouterr().err
    assert f"{films}/y is empty; is it mounted?" in told and "2 of 4 videos have features" in told
    films.rename(tmp_path / "gone")
    assert main(call) == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert error == (
        f"vlalign-extract: error: {films} cannot be listed (No such file or directory); is it mounted? 4 videos of "
        "earlier calls are in it; run the same command again once it can be read"
    )
    (tmp_path / "gone").rename(films)
    (films / "y").rmdir()
    away.rename(films / "y")
    assert main(call) == 0 and kinds(dataset) == {}

    (films / "y" / "d.wav").unlink()
    assert main(call) == 0
    assert f"note: {films}: 1 listed video is missing, such as {films}/y/d.wav" in capsys.readouterr().err


NOT_READABLE = {
    Path("/proc/self/mem"): errno.EIO,  # a regular file whose first byte cannot be read
    Path("/proc/sys/vm/compact_memory"): errno.EACCES,  # one that even root cannot open for reading
}


@pytest.mark.parametrize("path", NOT_READABLE, ids=lambda path: path.name)
@pytest.mark.parametrize("features", [["logmel"], ["s3d"], ["s3d", "logmel"]], ids="+".join)
def test_a_disk_that_cannot_be_read_is_not_the_video_s_fault(tmp_path, path, features):
    need(SYSTEM, [] if path.exists() else [str(path)])
    extractors = [load_extractor(name, weights="random") for name in features]
    ((_, result),) = extract_videos([VideoJob("a", path, extractors)], extractors)
    assert isinstance(result, VideoError)
    assert result.kind == "unreachable" and os.strerror(NOT_READABLE[path]) in str(result)


@pytest.mark.parametrize("features", [["logmel"], ["s3d"]], ids="+".join)
def test_a_disk_that_fails_in_the_middle_of_a_video_gives_no_partial_features(tmp_path, features):
    """Its second half cannot be read; a decoder sees the same as at the end of a file that was cut."""
    image = tmp_path / "image"
    image.write_bytes(bytes(16 << 20))
    need(PROGRAM, missing_programs("mkfs.ext4"))
    subprocess.run(["mkfs.ext4", "-q", "-b", "1024", image], check=True)
    noise = 0.1 * np.random.default_rng(0).standard_normal((1, 20 * 48_000))
    video = write_clip(tmp_path / "a.mkv", sound=noise, seconds=20.0, codec="pcm_s16le")
    with mounted(tmp_path / "disk", "-o", "loop", image) as disk:
        shutil.copy(video, disk / "a.mkv")
    content, whole = image.read_bytes(), video.read_bytes()
    middle = content.index(whole[len(whole) // 2 :][:512])
    extractors = [load_extractor(name, weights="random") for name in features]
    with mounted(tmp_path / "disk", "-o", "loop,ro", image) as disk:
        os.truncate(image, middle // 4096 * 4096)
        ((_, result),) = extract_videos([VideoJob("a", disk / "a.mkv", extractors)], extractors)
    assert isinstance(result, VideoError)
    assert result.kind == "unreachable" and "Input/output error" in str(result)


def test_videos_that_could_not_be_reached_come_after_new_ones(tmp_path, server):
    """However many there are, they do not hold up what was added to the list since."""
    _, call = listed(tmp_path, {"a": at(server, "503/a.wav")})
    assert main(call) == 1
    server.asked.clear()
    listed(tmp_path, {"a": at(server, "503/a.wav")} | {f"v{n}": at(server, f"nonsense/{n}.wav") for n in range(20)})
    assert main(call) == 1
    assert server.asked[0] != "/503/a.wav" and "/503/a.wav" in server.asked[20:]
