"""Stores whose shards lie elsewhere: in another folder through fsspec, or on a web server."""

import functools
import http.server
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers.stores import video, write
from vlalign.extract.cli.extract import main as extract_main
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.remote import files
from vlalign.storage.remote import http_client as web
from vlalign.storage.remote import store as module
from vlalign.storage.remote.store import is_stub, link_store
from vlalign.storage.stores import maintenance
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.clips import Clip


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(module, "FREE_SHARE", 0.0)  # however full the disk of this machine is


def put(folder: Path, *numbers: int) -> Path:
    return write(folder, *(video(f"video{number}", 1000 + number, base=number) for number in numbers))


@pytest.fixture
def there(tmp_path) -> Path:
    """A store of three shards, of two videos each."""
    for number in range(3):
        put(tmp_path / "there" / "s3d", 2 * number, 2 * number + 1)
    return tmp_path / "there" / "s3d"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def served(there) -> Iterator[str]:
    """The address of ``there`` at a server that gives whole files only."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(there.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/s3d"
    server.shutdown()
    server.server_close()


def whole(folder: Path) -> int:
    return sum(not is_stub(path) for path in folder.glob("*.h5"))


def assert_same(one: FeatureStore, other: FeatureStore) -> None:
    assert one.video_ids() == other.video_ids() and one.rows_checksum() == other.rows_checksum()
    for video_id in other.video_ids():
        a, b = one.get(video_id), other.get(video_id)
        np.testing.assert_array_equal(a.features, b.features)
        np.testing.assert_array_equal(a.start_seconds, b.start_seconds)
        assert (a.source, a.partial, a.duration_seconds) == (b.source, b.partial, b.duration_seconds)


def test_rows_of_clips_are_fetched_before_training_needs_them(tmp_path, there):
    here = tmp_path / "here"
    link_store(here, there.as_uri())
    features = ClipFeatures([FeatureStore(here)])
    features.prefetch([Clip("video0", None, None), Clip("video5", 0.0, 2.0)])
    assert whole(here) == 2, "the shards of these two videos, and no other"


@pytest.mark.parametrize("by", ["http", "file"])
def test_when_rows_begin_and_end_is_known_without_downloading_rows(tmp_path, there, served, by):
    here = tmp_path / "here"
    link_store(here, served if by == "http" else there.as_uri())
    store, expected = FeatureStore(here), FeatureStore(there)
    ids = [*reversed(store.video_ids()), "video3"]
    np.testing.assert_array_equal(store.spans(ids), expected.spans(ids))
    assert whole(here) == 0
    store.get("video3")
    np.testing.assert_array_equal(store.spans(ids), expected.spans(ids))
    assert whole(here) == 1, "only the shard that was asked for"


def test_threads_that_need_the_same_shard_fetch_it_once(tmp_path, there, monkeypatch):
    fetched, fetch = [], files.RemoteFiles.fetch

    def slow(remote, name, *args):
        fetched.append(name)
        time.sleep(0.1)  # the others come meanwhile
        fetch(remote, name, *args)

    monkeypatch.setattr(files.RemoteFiles, "fetch", slow)
    link_store(tmp_path / "here", there.as_uri())
    store = FeatureStore(tmp_path / "here")
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(store.get, ["video0", "video1", "video0", "video4"])]
    assert len(fetched) == len(set(fetched)) == 2
    assert found[0].features.tobytes() == FeatureStore(there).get("video0").features.tobytes()


@pytest.mark.parametrize("by", ["http", "file"])
def test_a_remote_store_lists_its_videos_without_downloading_rows(tmp_path, there, served, by):
    here = tmp_path / "here"
    link_store(here, served if by == "http" else there.as_uri())
    store = FeatureStore(here, check_rows=True)
    assert len(store) == 6 and whole(here) == 0
    assert sum(path.stat().st_blocks for path in here.glob("*.h5")) < sum(
        path.stat().st_blocks for path in there.glob("*.h5")
    )
    np.testing.assert_array_equal(store.get("video3").features, FeatureStore(there).get("video3").features)
    assert whole(here) == 1, "only the shard that was asked for"
    assert_same(store, FeatureStore(there))
    assert whole(here) == 3
    for path in here.glob("*.h5"):
        assert path.read_bytes() == (there / path.name).read_bytes()


def test_downloaded_shards_are_evicted_if_the_disk_is_nearly_full(tmp_path, there, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "FREE_SHARE", 2.0)  # which no disk has
    here = tmp_path / "here"
    link_store(here, there.as_uri())
    store = FeatureStore(here)
    views = store.get_rows([(video_id, 0, 2) for video_id in store.video_ids()])
    assert whole(here) == 1
    assert caplog.text.count(f"note: {here}: ") == 1
    expected = FeatureStore(there)
    for video_id, view in zip(store.video_ids(), views, strict=True):
        np.testing.assert_array_equal(view, expected.get(video_id, dtype=None).features[:2])
    assert_same(FeatureStore(here), expected)


def test_opening_a_remote_store_sees_new_and_removed_shards(tmp_path, there):
    here = tmp_path / "here"
    link_store(here, there.as_uri())
    FeatureStore(here).get("video0")
    put(there, 6)
    assert "video6" in FeatureStore(here)
    maintenance.remove(there, ["video0", "video2"])
    assert "video0" not in FeatureStore(here), "though its shard was whole here"
    assert_same(FeatureStore(here), FeatureStore(there))
    before = {path.name for path in here.glob("*.h5")}
    link_store(here, there.as_uri()).send()
    assert {path.name for path in here.glob("*.h5")} == {path.name for path in there.glob("*.h5")} < before


def test_an_open_store_survives_compaction_at_the_remote(tmp_path, there):
    here = tmp_path / "here"
    link_store(here, there.as_uri())
    store = FeatureStore(here)
    maintenance.remove(there, ["video0"])
    np.testing.assert_array_equal(store.get("video1").features, FeatureStore(there).get("video1").features)
    for path in there.glob("*.h5"):
        path.unlink()
    with pytest.raises(UserError, match=rf"{re.escape(there.as_uri())}: .*{re.escape(str(here))}.* 4\b"):
        FeatureStore(here)


def test_a_failed_upload_is_repeated_the_next_time(tmp_path, there):
    here = tmp_path / "here"
    link_store(here, there.as_uri())
    shard = put(here / module.OUTGOING, 9)
    assert "video9" not in FeatureStore(here) and shard.exists(), "reading brings nothing anywhere"
    link_store(here, there.as_uri()).send()
    store = FeatureStore(here)
    assert (there / shard.name).exists() and is_stub(here / shard.name) and not shard.exists()
    assert "video9" in FeatureStore(there)
    assert_same(store, FeatureStore(there))
    assert [path.name for path in there.iterdir() if path.name.startswith(".")] == []


def test_a_local_store_is_uploaded(tmp_path, there):
    before = FeatureStore(there)
    link_store(there, (tmp_path / "bucket").as_uri()).send()
    assert len(FeatureStore(there)) == 6 and whole(there) == 0
    assert_same(FeatureStore(tmp_path / "bucket"), FeatureStore(there))
    assert before.rows_checksum() == FeatureStore(there).rows_checksum()


def test_store_commands_work_on_a_remote_store_or_explain_why_not(tmp_path, there, capsys):
    here = tmp_path / "here"
    assert store_main(["link", str(here), there.as_uri()]) == 0
    assert re.search(rf"{re.escape(there.as_uri())}.*\b6 videos", capsys.readouterr().out)
    assert store_main(["verify", str(here)]) == 0
    assert f"{here}: 3 shards" in capsys.readouterr().out
    for action in (["repair", str(here)], ["compact", str(here)], ["rm", str(here), "video0"]):
        assert store_main(action) == 2
        error = capsys.readouterr().err
        assert f"{here}: " in error and there.as_uri() in error
    assert store_main(["merge", str(here), "--into", str(tmp_path / "copy")]) == 0
    assert_same(FeatureStore(tmp_path / "copy"), FeatureStore(there))
    assert store_main(["link", str(here), "https://127.0.0.1/other"]) == 2
    error = capsys.readouterr().err
    assert there.as_uri() in error and "https://127.0.0.1/other" in error


def test_a_damaged_remote_shard_is_found(tmp_path, there, capsys):
    shard = sorted(there.glob("*.h5"))[1]
    content = bytearray(shard.read_bytes())
    content[4096 + len(content) // 2] ^= 1
    shard.write_bytes(content)
    link_store(tmp_path / "here", there.as_uri())
    assert store_main(["verify", str(tmp_path / "here")]) == 1
    assert shard.name in capsys.readouterr().err


def test_a_remote_file_that_is_not_a_shard_is_named(tmp_path, there):
    (there / "notes.h5").write_bytes(b"no shard")
    link_store(tmp_path / "here", there.as_uri())
    with pytest.raises(UserError, match=r"s3d/notes.h5: "):
        FeatureStore(tmp_path / "here")


def test_an_unreachable_address_is_one_line(tmp_path, capsys):
    link_store(tmp_path / "here", "http://127.0.0.1:9/s3d")
    assert store_main(["info", str(tmp_path / "here")]) == 1
    error = capsys.readouterr().err
    assert "http://127.0.0.1:9/s3d: " in error and re.search(r"\b3\b", error) and error.count("\n") == 1


MOST = 8 << 20
ENDLESS = {"listing": "/s3d", "first block": ".h5", "whole shard": ".h5"}


@pytest.fixture(params=ENDLESS)
def endless(request, there) -> Iterator[tuple[str, str, list[int]]]:
    """A server that does not stop sending, in answer to one kind of request: which, its address, and how many bytes it
    sent each time."""
    sent: list[int] = []

    class Handler(Quiet):
        def do_GET(self):
            is_part = "Range" in self.headers
            if not self.path.rstrip("/").endswith(ENDLESS[request.param]) or is_part != (
                request.param == "first block"
            ):
                super().do_GET()
                return
            self.send_response(206 if is_part else 200)
            self.end_headers()
            sent.append(0)
            try:
                while sent[-1] < 1 << 30:
                    sent[-1] += self.wfile.write(bytes(1 << 16))
            except OSError:
                pass  # it is not listened to any more

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(there.parent)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield request.param, f"http://127.0.0.1:{server.server_port}/s3d", sent
    server.shutdown()
    server.server_close()


def test_a_download_stops_when_the_server_sends_too_much(tmp_path, endless, monkeypatch):
    what, address, sent = endless
    monkeypatch.setattr(web, "MAX_RESPONSE_BYTES", MOST)
    link_store(tmp_path / "here", address)
    with pytest.raises((UserError, OSError), match=rf"{re.escape(address)}.* [\d,]+ bytes") as refused:
        store = FeatureStore(tmp_path / "here")
        assert what == "whole shard"
        store.get("video0")
    assert "\n" not in str(refused.value) and sent and max(sent) < 4 * MOST
    assert not list((tmp_path / "here").glob("*.partial"))


@pytest.mark.slow
def test_features_are_extracted_to_a_remote_store_once(tmp_path, short_video, capsys):
    address = (tmp_path / "bucket").as_uri()
    for machine in ("one", "other"):
        dataset = DatasetFolder(tmp_path / machine, "mine")
        dataset.path.mkdir(parents=True)
        shutil.copy(short_video, dataset.path / "a.mp4")
        os.utime(dataset.path / "a.mp4", (1e9, 1e9))
        dataset.write_videos([VideoRecord(video_id="a", path="a.mp4")])
        call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "s3d", "--weights", "random"]
        assert extract_main([*call, "--stores", address, "--plan"]) == 0
        assert not dataset.features("s3d").exists() and address in capsys.readouterr().err
        assert extract_main([*call, "--stores", address]) == 0
        assert ("1 video tried" in capsys.readouterr().err) == (machine == "one")
        assert whole(dataset.features("s3d")) == 0
        assert extract_main(call) == 0, "once is enough"
        assert "1 video tried" not in capsys.readouterr().err
    assert len(list((tmp_path / "bucket" / "s3d").glob("*.h5"))) == 1
    assert_same(FeatureStore(dataset.features("s3d")), FeatureStore(tmp_path / "bucket" / "s3d"))
