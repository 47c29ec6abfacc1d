"""Stores from others, whose ``elsewhere.json`` has them stand for an address: opening one dials, sends and removes
nothing."""

import http.server
import json
import os
import re
import shlex
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.stores import video, write
from vlalign.storage import FeatureStore
from vlalign.storage.cli.store import main
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.user_state import state_file, writable_state_file
from vlalign.storage.remote import files
from vlalign.storage.remote.links import trust, trusted_links
from vlalign.storage.remote.store import RemoteStore
from vlalign.storage.shards.read import read_shard

WINS = "9" * 20 + "-00000000.h5"
"""A shard's name, later than all others."""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """An address, and what was asked for there."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    server.server_close()


def given(folder: Path, url: object, *videos: str) -> Path:
    """A store as somebody might hand it on."""
    folder.mkdir(parents=True, exist_ok=True)
    for video_id in videos:
        write(folder, video(video_id, 3))
    (folder / "elsewhere.json").write_text(json.dumps({"url": url}))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(call: list[str], capsys, code: int = 2) -> str:
    assert main(call) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("vlalign-store: error: ")
    return error


def test_opening_a_linked_store_uploads_nothing(tmp_path, capsys):
    mine = tmp_path / "mine"
    write(mine, video("a", 3))
    before = contents(mine)
    store = given(tmp_path / "given", mine.as_uri(), "b")
    (store / "outgoing").mkdir()
    write(tmp_path / "made", video("a", 3, base=500)).rename(store / "outgoing" / WINS)
    for action in ("info", "ls", "verify"):
        error = refused([action, str(store)], capsys)
    assert str(store) in error and mine.as_uri() in error
    assert error.rstrip().endswith(f"vlalign-store link {store} {mine.as_uri()}")
    assert contents(mine) == before and (store / "outgoing" / WINS).exists()


def test_a_linked_folder_uploads_nothing_even_if_its_address_is_trusted(tmp_path, capsys):
    write(tmp_path / "private", video("secret", 3))
    there = (tmp_path / "there").as_uri()
    store = given(tmp_path / "given", there)
    (store / "outgoing").symlink_to(tmp_path / "private")
    refused(["info", str(store)], capsys)
    assert f"{store / 'outgoing'}: " in refused(["link", str(store), there], capsys)
    assert len(contents(tmp_path / "private")) == 1 and not (tmp_path / "there").exists()


def test_only_valid_shards_of_the_outgoing_folder_are_uploaded(tmp_path, capsys):
    there = (tmp_path / "there").as_uri()
    private = write(tmp_path / "private", video("secret", 3))
    store = given(tmp_path / "given", there)
    outgoing = store / "outgoing"
    good = write(outgoing, video("a", 3))
    (outgoing / private.name).symlink_to(private)
    (outgoing / "0000-notes.h5").write_text("no shard")
    (outgoing / f"{1:020d}-00000000.h5").write_text("no shard")
    assert main(["link", str(store), there]) == 0
    out, error = capsys.readouterr()
    assert "1 shard " in out and "1 video " in out
    assert error.count("note: ") == error.count(there) == 3 and private.exists()
    assert [path.name for path in (tmp_path / "there").glob("*.h5")] == [good.name]


def test_a_remote_shard_is_not_overwritten(tmp_path, capsys):
    there = tmp_path / "there"
    theirs = write(there, video("a", 3))
    before = theirs.read_bytes()
    store = given(tmp_path / "given", there.as_uri())
    (store / "outgoing").mkdir()
    mine = write(tmp_path / "made", video("a", 3, base=500)).rename(store / "outgoing" / theirs.name)
    error = refused(["link", str(store), there.as_uri()], capsys, 1)
    assert f"{there.as_uri()}/{theirs.name}: " in error and str(mine) in error and mine.exists()
    assert theirs.read_bytes() == before and FeatureStore(store).get("a").features[0, 0] == 0


def test_linking_reads_back_what_it_sent(tmp_path, capsys):
    store, there = tmp_path / "mine", tmp_path / "there"
    small = write(store, video("a", 3))
    write(store, video("b", 300))
    assert main(["link", str(store), there.as_uri()]) == 0
    lines = capsys.readouterr().out.splitlines()
    linked, compared = lines
    assert linked.startswith(f"{store}: ") and all(part in linked for part in (there.as_uri(), "2 shards", "2 videos"))
    assert all(part in compared for part in ("2 shards", "3 rows", small.name))
    assert main(["link", str(store), there.as_uri()]) == 0
    compared = capsys.readouterr().out.splitlines()[-1]
    assert "1 shards" in compared and "3 rows" in compared


@pytest.mark.parametrize("what", ["gone", "short", "index", "rows"])
def test_what_is_damaged_after_it_was_sent_is_one_line(tmp_path, capsys, monkeypatch, what):
    """Also if the link exists already, and the whole shard is here."""
    store, there = tmp_path / "mine", tmp_path / "there"
    shard = read_shard(write(store, video("a", 300)))
    content = bytearray(shard.path.read_bytes())
    content[shard.offsets["features"] if what == "rows" else content.rindex(b"a" + bytes(3))] ^= 1
    put = RemoteStore.put

    def damage(remote, path):
        put(remote, path)
        sent = there / path.name
        if what == "gone":
            sent.unlink()
        else:
            sent.write_bytes(content[:4096] if what == "short" else content)

    monkeypatch.setattr(RemoteStore, "put", damage)
    error = refused(["link", str(store), there.as_uri()], capsys)
    if what == "gone":
        assert there.as_uri() in error
        return
    assert f"{store}: " in error and there.as_uri() in error and shard.path.name in error
    if what == "rows":
        assert f"{there.as_uri()}/{shard.path.name}: " in refused(["link", str(store), there.as_uri()], capsys)


def test_a_symlink_among_the_shards_is_not_uploaded(tmp_path, capsys):
    private = write(tmp_path / "private", video("secret", 3))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / private.name).symlink_to(private)
    error = refused(["link", str(tmp_path / "mine"), (tmp_path / "there").as_uri()], capsys)
    assert f"{private.name}: " in error and private.exists() and not (tmp_path / "there").exists()


def test_opening_a_store_contacts_no_server_and_removes_nothing(tmp_path, asked, capsys):
    address, paths = asked
    store = given(tmp_path / "given", f"{address}/s3d", "a", "b")
    before = contents(store)
    assert f"vlalign-store link {store} {address}/s3d" in refused(["info", str(store)], capsys)
    with pytest.raises(UserError, match="vlalign-store link"):
        FeatureStore(store)
    assert paths == [] and contents(store) == before


def test_local_shards_missing_at_the_remote_are_ignored_and_kept(tmp_path, capsys):
    there = tmp_path / "there"
    kept = write(there, video("a", 3))
    store = given(tmp_path / "given", there.as_uri(), "b")
    shutil.copy(kept, store / kept.name)
    assert main(["link", str(store), there.as_uri()]) == 0
    capsys.readouterr()
    late = write(store, video("c", 3))
    assert main(["info", str(store)]) == 0
    out, error = capsys.readouterr()
    assert "1 (0 partial" in out and re.search(rf"{re.escape(str(store))}: 1 .*{re.escape(there.as_uri())}", error)
    assert late.exists()


CHAINED = [
    "reference::http://{}/r.json",
    "filecache::http://{}/s3d",
    "http://{}/a::file:///etc",
    "zip://x::http://{}/a.zip",
]
OTHERS = [
    "memory://x",
    "github://a:b@/x",
    "ftp://{}/s3d",
    "local://x",
    "reference://x",
    "relative/path",
    "~/x",
    "",
    3,
    ["s3://x"],
    None,
]
DISGUISED = ["http://{}/\x1b]0;x\x07", "http://{}/\nvlalign-store: all is well"]


@pytest.mark.parametrize("url", [*CHAINED, *OTHERS, *DISGUISED])
def test_forbidden_link_addresses_are_refused(tmp_path, asked, url, capsys):
    address, paths = asked
    url = url.format(address.removeprefix("http://")) if isinstance(url, str) else url
    store = given(tmp_path / "given", url, "a")
    error = refused(["info", str(store)], capsys)
    assert "elsewhere.json: " in error and error[:-1].isprintable()
    if isinstance(url, str):
        assert f"{tmp_path / 'new'}: " in refused(["link", str(tmp_path / "new"), url], capsys)
    assert paths == []


@pytest.mark.parametrize(
    "url", ["https://anna:s3cret@{}/s3d", "http://{}/s3d?Signature=s3cret", "s3://KEY:s3cret@films/s3d"]
)
def test_an_address_with_a_secret_is_refused_and_not_printed(tmp_path, asked, url, capsys):
    address, paths = asked
    url = url.format(address.removeprefix("http://"))
    store = given(tmp_path / "given", url, "a")
    for command in (["info", str(store)], ["link", str(tmp_path / "new"), url]):
        error = refused(command, capsys)
        assert str(command[1]) in error and "AWS_ACCESS_KEY_ID" in error and "s3cret" not in error
    assert paths == [] and not (tmp_path / "new").exists()


def test_records_are_kept_in_a_folder_of_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "vlalign").mkdir(mode=0o755)
    record = writable_state_file("links", "a")
    assert record == state_file("links", "a") and (tmp_path / "vlalign").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("content", ["[]", "[" * 10_000, "{", '{"url": "' + "s3://" * 10_000 + '"}', "\x00"])
def test_an_invalid_link_file_is_one_line(tmp_path, content, capsys):
    store = given(tmp_path / "given", "", "a")
    (store / "elsewhere.json").write_text(content)
    assert f"{store / 'elsewhere.json'}: " in refused(["info", str(store)], capsys)


def test_a_pipe_in_place_of_a_link_file_is_not_opened(tmp_path, capsys):
    for number, make in enumerate((os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path))):
        store = tmp_path / str(number)
        write(store, video("a", 3))
        make(store / "elsewhere.json")
        assert f"{store / 'elsewhere.json'}: " in refused(["info", str(store)], capsys)


def test_the_suggested_command_is_quoted_for_a_shell(tmp_path, capsys):
    url = "https://example.org/$(touch x); touch y"
    store = given(tmp_path / "a folder", url, "a")
    call = refused(["info", str(store)], capsys).partition("run: ")[2]
    assert shlex.split(call) == ["vlalign-store", "link", str(store), url]


def test_an_unconfirmed_store_does_not_hide_the_others(tmp_path, capsys):
    features = tmp_path / "mine" / "features"
    write(features / "s3d", video("a", 3))
    given(features / "resnet152", "s3://bucket/x")
    assert main(["info", "--root", str(tmp_path), "--dataset", "mine", "s3d"]) == 0
    assert f"vlalign-store link {features / 'resnet152'}" in refused(
        ["info", "--root", str(tmp_path), "--dataset", "mine"], capsys
    )


def test_trust_holds_for_one_folder_and_one_address(tmp_path, monkeypatch, capsys):
    there = tmp_path / "there"
    write(there, video("a", 3))
    here = tmp_path / "here"
    assert main(["link", str(here), there.as_uri()]) == 0
    shutil.copytree(here, tmp_path / "copy")
    assert f"link {tmp_path / 'copy'} " in refused(["info", str(tmp_path / "copy")], capsys)
    (here / "elsewhere.json").write_text(json.dumps({"url": "https://example.org/s3d"}))
    assert "https://example.org/s3d" in refused(["info", str(here)], capsys)
    (here / "elsewhere.json").write_text(json.dumps({"url": there.as_uri()}))
    assert main(["info", str(here)]) == 0
    monkeypatch.setattr("vlalign.storage.remote.links._of_this_process", {})
    assert main(["info", str(here)]) == 0, "another process of this user"
    monkeypatch.setattr("vlalign.storage.remote.links._of_this_process", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
    capsys.readouterr()
    refused(["info", str(here)], capsys)


def test_without_a_writable_home_trust_lasts_for_the_process(tmp_path, monkeypatch, capsys):
    write(tmp_path / "there", video("a", 3))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert main(["link", str(tmp_path / "here"), (tmp_path / "there").as_uri()]) == 0
    assert f"note: {tmp_path / 'here'}: " in capsys.readouterr().err
    assert len(FeatureStore(tmp_path / "here")) == 1


def test_remote_names_cannot_leave_the_folder(tmp_path, capsys):
    """A server may list anything."""
    there = tmp_path / "there"
    write(there, video("a", 3))
    assert main(["link", str(tmp_path / "here"), there.as_uri()]) == 0
    for name in ("%2e%2e%2fx.h5", "a\\b.h5", "a b.h5", "-x.h5", "\x1b[2J.h5"):
        (there / name).write_bytes(b"x")
    capsys.readouterr()
    assert main(["info", str(tmp_path / "here")]) == 0
    error = capsys.readouterr().err
    assert f"note: {there.as_uri()}: 5 " in error and "\x1b" not in error
    assert len(list((tmp_path / "here").rglob("*.h5"))) == 1


def test_trust_reaches_processes_with_another_home(tmp_path, monkeypatch):
    """Those of a cluster, which share the root."""
    features = tmp_path / "mine" / "features"
    write(tmp_path / "there", video("a", 3))
    assert main(["link", str(features / "s3d"), (tmp_path / "there").as_uri()]) == 0
    given(features / "resnet152", "s3://bucket/x")
    links = trusted_links(features)
    assert links == {str(features / "s3d"): (tmp_path / "there").as_uri()}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other home"))
    monkeypatch.setattr("vlalign.storage.remote.links._of_this_process", {})
    with pytest.raises(UserError, match="vlalign-store link"):
        FeatureStore(features / "s3d")
    for folder, url in links.items():
        trust(Path(folder), url)
    assert len(FeatureStore(features / "s3d")) == 1


def test_versions_of_fsspec_that_execute_references_are_excluded():
    top = Path(__file__).resolve().parents[3]
    (bound,) = (line for line in (top / "pyproject.toml").read_text().splitlines() if '"fsspec' in line)
    (pinned,) = (line for line in (top / "constraints.txt").read_text().splitlines() if line.startswith("fsspec=="))
    assert re.match(r'\s*"fsspec>=2026\.6\.0"', bound), "2026.4.0 is the last that does"
    assert tuple(map(int, re.findall(r"\d+", pinned))) >= (2026, 6, 0)
