"""The page's server: what it answers is what search finds, and it serves nothing else."""

import errno
import io
import os
import random
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import av
import numpy as np
import pytest
from helpers.numbered import numbers_of
from helpers.numbered import write_video as write_numbered
from helpers.page_server import serving
from helpers.toy import make_toy
from starlette.testclient import TestClient
from vlalign.extract.videos import clips as clip_cutting
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord
from vlalign.storage.stores.maintenance import remove
from vlalign.train import open_search
from vlalign.train.cli.serve import main as serve_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.page import app as page_app
from vlalign.train.page import browser_clips as page_clips
from vlalign.train.page.app import make_app
from vlalign.train.page.browser_clips import ClipCache, ClipError
from vlalign.train.page.concurrency import Busy
from vlalign.train.page.guard import POLICY, Access
from vlalign.train.page.library import VideoLibrary
from vlalign.train.page.serve import serve

TRAIN = ["--objective", "taco", "--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--num-negatives", "2"]
HOSTS = ["127.0.0.1", "localhost"]
CONTENT = bytes(range(256)) * 40
LONG_ID = "/".join(["x" * 240] * 17)[:4090]
"""About as long as a path may be."""
SECRET = b"the secret of another folder"
LINKS = {
    "videos/out.mp4": "../../../secret.mp4",
    "videos/named otherwise.mp4": "../notes.json",
    "videos/again.mp4": "out.mp4",
    "videos/circle.mp4": "circle.mp4",
    "videos/nowhere.mp4": "nothing.mp4",
    "videos/folder.mp4": ".",
    "videos/device.mp4": "/dev/zero",
    "elsewhere/secret.mp4": None,
    "videos/pipe.mp4": None,
    "videos/same.mp4": "v000.mp4",
}
"""{path of a video, from v010 on: where it leads}"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy") / "root")
    assert train_main(["--root", str(toy.root), "--dataset", "toy", *TRAIN, "--run-name", "r"]) == 0
    (toy.path / "videos").mkdir()
    (toy.path / "videos" / "v000.mp4").write_bytes(CONTENT)
    (toy.root.parent / "secret.mp4").write_bytes(SECRET)
    toy.write_videos(
        [
            VideoRecord(video_id="v000", path="videos/v000.mp4"),
            VideoRecord(video_id="v001", path=str(toy.root.parent / "secret.mp4")),
            VideoRecord(video_id="v002", path="../../secret.mp4"),
            VideoRecord(video_id="v003", path="videos"),
            VideoRecord(video_id="v004", path="videos/gone.mp4"),
            VideoRecord(video_id="v005", path="videos/old.avi"),
            VideoRecord(video_id="v006", path="videos/page.avi"),
            VideoRecord(video_id="v007", path="videos/photo.jpg"),
            VideoRecord(video_id=LONG_ID, path="videos/v000.mp4"),
            VideoRecord(video_id="v008", path="https://127.0.0.1:9/v008.avi"),
            *(VideoRecord(video_id=f"v{number:03d}", path=path) for number, path in enumerate(LINKS, start=10)),
        ]
    )
    (toy.path / "notes.json").write_bytes(SECRET)
    for path, target in LINKS.items():
        if target is not None:
            os.symlink(target, toy.path / path)
    (toy.path / "elsewhere").symlink_to(toy.root.parent)
    os.mkfifo(toy.path / "videos" / "pipe.mp4")
    write_numbered(toy.path / "videos" / "old.avi", range(96), Fraction(1, 24), container="avi", codec="mpeg4")
    (toy.path / "videos" / "page.avi").write_text("<script>alert(1)</script>")
    (toy.path / "videos" / "photo.jpg").write_bytes(CONTENT)
    return toy


@pytest.fixture(scope="module")
def search(toy):
    return open_search(toy.path, run="r")


@pytest.fixture(scope="module")
def client(search):
    return TestClient(
        make_app([search], Access(HOSTS)), base_url="http://127.0.0.1:8377", raise_server_exceptions=False
    )


def test_json_says_what_search_finds(client, search):
    answer = client.get("/api/search", params={"q": "cut the onion", "num_results": 4}).json()
    moments = search("cut the onion", num_results=4)
    assert [(m["video_id"], m["start_seconds"], m["end_seconds"]) for m in answer["moments"]] == [
        (m.video_id, m.start_seconds, m.end_seconds) for m in moments
    ]
    assert np.allclose([m["score"] for m in answer["moments"]], [m.score for m in moments])
    assert answer["num_videos"] == 24
    first = answer["moments"][0]
    curve = client.get("/api/score_curve", params={"q": "cut the onion", "video_id": first["video_id"]}).json()
    assert np.allclose(curve["scores"], search.score_curve("cut the onion", first["video_id"]).scores)
    part = {"video_id": first["video_id"], "start": 0, "end": 1}
    like = client.get("/api/like", params=part).json()["moments"]
    assert like[0]["video_id"] == search.like(first["video_id"], 0, 1, num_results=12)[0].video_id


def test_a_data_set_is_chosen_by_its_name(toy, search):
    other = DatasetFolder(toy.root, "other")
    other.path.mkdir()
    for name in ("captions", "features", "idf.parquet"):
        (shutil.copytree if (toy.path / name).is_dir() else shutil.copy)(toy.path / name, other.path / name)
    other.write_videos([VideoRecord(video_id="v001", path="v001.avi")])
    write_numbered(other.path / "v001.avi", range(24), Fraction(1, 24), container="avi", codec="mpeg4")
    remove(other.features("s3d"), [f"v{number:03d}" for number in range(4, 24)])
    client = TestClient(
        make_app([search, open_search(other.path, run="r")], Access(HOSTS)), base_url="http://127.0.0.1"
    )
    about = client.get("/api/about").json()["datasets"]
    assert [(of["name"], of["num_videos"]) for of in about] == [("toy", 24), ("other", 4)]
    for dataset, num_videos in (({}, 24), ({"dataset": "toy"}, 24), ({"dataset": "other"}, 4)):
        found = client.get("/api/search", params={"q": "onion", "num_results": 60, **dataset}).json()
        assert found["num_videos"] == num_videos == len({m["video_id"] for m in found["moments"]})
    clip = {"video_id": "v001", "start": 0, "end": 1}
    assert client.get("/media/clip", params=clip | {"dataset": "other"}).status_code == 200
    assert client.get("/media/clip", params=clip).status_code == 404, "a file outside that of the first data set"
    unknown = client.get("/api/search", params={"q": "onion", "dataset": "../toy"})
    assert (unknown.status_code, unknown.json()["detail"][-10:]) == (404, "toy, other")


def test_videos_are_listed_without_a_query(client, search):
    whole = client.get("/api/videos", params={"num_results": 60}).json()
    assert [video["video_id"] for video in whole["videos"]] == list(search.index.video_ids)
    part = client.get("/api/videos", params={"offset": 20, "num_results": 60}).json()
    assert part == {"videos": whole["videos"][20:], "num_videos": 24, "warnings": []}
    first = whole["videos"][0]
    assert (first["shown"], first["caption"]) == (
        "file",
        client.app.state.datasets["toy"].library.first_caption("v000"),
    )
    names = {video["video_id"]: video["file_name"] for video in whole["videos"]}
    assert [names[video_id] for video_id in ("v000", "v001", "v005", "v008")] == [None, "secret.mp4", "old.avi", None]
    assert first["duration_seconds"] == search.encoder.duration_seconds("v000") == 2 * first["middle_seconds"]
    for video_id, found in (("v003", whole["videos"][3:4]), ("nobody", [])):
        answer = client.get("/api/videos", params={"video_id": video_id, "min_seconds": 1e6}).json()
        assert answer["videos"] == found
    assert client.get("/api/videos", params={"offset": 24}).json() == {"videos": [], "num_videos": 24, "warnings": []}
    for wrong in ({"offset": -1}, {"num_results": 61}, {"offset": "x"}):
        assert client.get("/api/videos", params=wrong).status_code == 422


def test_a_page_that_follows_no_folders_says_so(client):
    state = client.get("/api/sync").json()
    assert (state["following"], state["state"], state["problems"], state["version"]) == ([], "idle", [], 0)


def test_filters_choose_videos(client):
    found = client.get("/api/search", params={"q": "cut the onion", "split": "test", "num_results": 60}).json()
    assert found["num_videos"] == 6
    assert {m["video_id"] for m in found["moments"]} <= {f"v{n:03d}" for n in range(13, 24, 2)}
    nothing = client.get("/api/search", params={"q": "onion", "has_caption": "false"}).json()
    assert (nothing["num_videos"], nothing["moments"]) == (0, [])
    assert client.get("/api/search", params={"q": "onion", "min_seconds": 9}).json()["num_videos"] < 24


def test_json_says_what_found_a_moment(client, search):
    found = client.get("/api/search", params={"q": "cut the onion", "by": "text"}).json()["moments"]
    expected = search("cut the onion", num_results=12, by="text")
    assert [(m["found_by"], m["caption"]) for m in found] == [("text", m.caption) for m in expected] and found
    assert {m["found_by"] for m in client.get("/api/search", params={"q": "onion"}).json()["moments"]} > {"both"}
    seen = client.get("/api/search", params={"q": "onion", "by": "video"}).json()["moments"]
    assert {(m["found_by"], m["caption"]) for m in seen} == {("video", None)}
    assert client.get("/api/search", params={"q": "onion", "by": "sound"}).status_code == 422


def test_json_says_where_words_fit(client, search):
    asked = {"q": "cut the onion", "video_id": "v000"}
    words = client.get("/api/word_curves", params=asked).json()
    curves = search.word_curves("cut the onion", "v000")
    assert [of["word"] for of in words] == ["cut", "onion"] and "the" in curves
    only_stop_words = client.get("/api/word_curves", params=asked | {"q": "the"}).json()
    assert [of["word"] for of in only_stop_words] == ["the"]
    assert np.allclose(words[0]["curve"]["scores"], curves[words[0]["word"]].scores)
    assert client.get("/api/word_curves", params=asked | {"video_id": "nobody"}).status_code == 422


def test_a_search_that_takes_too_long_is_ended(client, monkeypatch):
    monkeypatch.setattr(page_app, "SEARCH_SECONDS", 0.0)
    for path, parameters in (("search", {"q": "one onion"}), ("like", {"video_id": "v000", "start": 0, "end": 1})):
        answer = client.get(f"/api/{path}", params=parameters)
        assert answer.status_code == 503 and answer.json()["detail"]
    monkeypatch.undo()
    assert client.get("/api/search", params={"q": "one onion"}).status_code == 200
    monkeypatch.setattr(page_app, "SEARCH_SECONDS", 0.0)
    assert client.get("/api/search", params={"q": "one onion"}).status_code == 200, "what was found takes no time"


def test_an_id_may_be_as_long_as_a_path(search):
    with serving(make_app([search], Access(HOSTS))) as port:
        address = f"http://127.0.0.1:{port}/media/video?video_id={quote(LONG_ID, safe='')}"
        assert urlopen(address).read() == CONTENT


def test_a_file_is_served_by_id_with_ranges(client):
    whole = client.get("/media/video", params={"video_id": "v000"})
    assert (whole.status_code, whole.content, whole.headers["content-type"]) == (200, CONTENT, "video/mp4")
    part = client.get("/media/video", params={"video_id": "v000"}, headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, CONTENT[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(CONTENT)}"
    for wanted in ("bytes=999999-", "bytes=0-1,4-5", "bytes=" + "0-0," * 5000):
        assert client.get("/media/video", params={"video_id": "v000"}, headers={"Range": wanted}).status_code == 416


@pytest.mark.parametrize("video_id", ["v001", "v002", "v003", "v004", "v009", "../secret", "/etc/passwd", "\0"])
@pytest.mark.parametrize("kind", ["video", "clip"])
def test_other_files_are_not_served(client, kind, video_id):
    span = {"start": 0, "end": 1} if kind == "clip" else {}
    answer = client.get(f"/media/{kind}", params={"video_id": video_id, **span})
    assert answer.status_code == 404
    assert SECRET not in answer.content and b"/secret" not in answer.content


@pytest.mark.parametrize("video_id", [f"v{number:03d}" for number, path in enumerate(LINKS, start=10)][:-1])
def test_links_lead_to_no_other_file(client, video_id):
    """Their names end in .mp4, and lie in the data set's folder."""
    for kind in ("video", "clip"):
        span = {"start": 0, "end": 1} if kind == "clip" else {}
        answer = client.get(f"/media/{kind}", params={"video_id": video_id, **span})
        assert answer.status_code == 404
        assert SECRET not in answer.content and b"/secret" not in answer.content


def test_a_link_to_a_video_within_the_root_is_served(client, toy):
    part = client.get("/media/video", params={"video_id": "v019"}, headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content, part.headers["content-type"]) == (206, CONTENT[100:200], "video/mp4")


def test_what_is_sent_is_the_file_that_was_checked(client, toy, monkeypatch):
    """A link takes its name between the check and the answer. No descriptor stays open."""
    path, kept, check = toy.path / "videos" / "v000.mp4", toy.path / "videos" / "kept.mp4", VideoLibrary.file

    def swapped(self: VideoLibrary, video_id: str) -> tuple[int, str]:
        checked = check(self, video_id)
        path.rename(kept)
        path.symlink_to(toy.root.parent / "secret.mp4")
        return checked

    assert client.get("/media/video", params={"video_id": "v000"}).content == CONTENT
    num_open = len(os.listdir("/dev/fd"))
    monkeypatch.setattr(VideoLibrary, "file", swapped)
    try:
        assert client.get("/media/video", params={"video_id": "v000"}).content == CONTENT
    finally:
        kept.replace(path)
    assert len(os.listdir("/dev/fd")) == num_open


def test_a_clip_shows_what_browsers_cannot_play(client):
    """Frames 30 to 53 of an AVI with 24 a second."""
    assert client.get("/media/video", params={"video_id": "v005"}).status_code == 404
    asked = {"video_id": "v005", "start": 1.25, "end": 2.25}
    whole = client.get("/media/clip", params=asked)
    assert (whole.status_code, whole.headers["content-type"]) == (200, "video/webm")
    with av.open(io.BytesIO(whole.content)) as clip:
        assert numbers_of([frame.to_ndarray(format="rgb24") for frame in clip.decode(video=0)]) == list(range(30, 54))
    part = client.get("/media/clip", params=asked, headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, whole.content[100:200]), "it is kept, not made again"
    assert client.get("/media/clip", params=asked, headers={"Range": "bytes=0-1,4-5"}).status_code == 416


@pytest.mark.parametrize(
    "video_id, start, end",
    [
        ("v005", 50, 51),  # after its end
        ("v005", 2, 1),
        ("v006", 0, 1),  # no video
        ("v007", 0, 1),  # an image
        ("v008", 0, 1),  # on another machine
    ],
)
def test_what_cannot_be_shown_as_a_clip_says_why(client, video_id, start, end):
    answer = client.get("/media/clip", params={"video_id": video_id, "start": start, "end": end})
    assert answer.status_code == 404
    assert answer.json()["detail"] and str(page_clips.__file__) not in answer.text


@pytest.mark.parametrize("times", [{}, {"start": -1, "end": 1}, {"start": 0, "end": "inf"}, {"start": "x", "end": 1}])
def test_clips_of_no_time_are_refused(client, times):
    assert client.get("/media/clip", params={"video_id": "v005", **times}).status_code == 422


def test_few_clips_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(page_clips, "MAX_CACHED_CLIPS", 2)
    video = write_numbered(tmp_path / "v.avi", range(48), Fraction(1, 24), container="avi", codec="mpeg4")
    clips = ClipCache()
    first = clips.path(video, 0.0, 0.25)
    assert clips.path(video, 0.0, 0.25) == first, "the same again"
    others = [clips.path(video, start, start + 0.25) for start in (0.5, 1.0)]
    assert not first.exists() and all(other.exists() for other in others)
    write_numbered(video, range(24), Fraction(1, 24), container="avi", codec="mpeg4")
    assert clips.path(video, 0.5, 0.75) != others[0], "another file has come in its place"


def test_a_clip_that_cannot_be_kept_leaves_no_file(tmp_path, monkeypatch):
    def write_half(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(clip_cutting, "cut_clip", lambda *_, **__: b"the clip")
    monkeypatch.setattr(Path, "write_bytes", write_half)
    clips = ClipCache()
    with pytest.raises(ClipError, match=r"^No space left on device$"):
        clips.path(tmp_path, 0.0, 1.0)
    assert os.listdir(clips._folder.path) == ["lock"]


def test_a_clip_is_cut_from_what_lies_in_the_folders_when_it_is_opened(tmp_path):
    (tmp_path / "root").mkdir()
    video = write_numbered(tmp_path / "v.avi", range(12), Fraction(1, 24), container="avi", codec="mpeg4")
    (tmp_path / "root" / "v.avi").symlink_to(video)
    with pytest.raises(ClipError):
        ClipCache().path(tmp_path / "root" / "v.avi", 0.0, 0.25, [str(tmp_path / "root")])
    assert ClipCache().path(tmp_path / "root" / "v.avi", 0.0, 0.25, [str(tmp_path)]).stat().st_size


def test_too_many_clips_at_once_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(page_clips, "MAX_WAITING", 2)
    begun, go_on = threading.Event(), threading.Event()
    clips = ClipCache()

    def cut_slowly(*_) -> str:
        begun.set()
        assert go_on.wait(30)
        return "the clip"

    monkeypatch.setattr(clips, "_path", cut_slowly)
    with ThreadPoolExecutor() as threads:
        results = [threads.submit(clips.path, tmp_path, 0.0, 1.0) for _ in range(2)]
        assert begun.wait(30)
        while clips._waiting._value:  # until both have come
            time.sleep(0.01)
        with pytest.raises(Busy):
            clips.path(tmp_path, 0.0, 1.0)
        go_on.set()
        assert [result.result(30) for result in results] == ["the clip"] * 2


def test_every_answer_forbids_foreign_scripts(client):
    for path in ("/", "/static/page.js", "/api/about", "/api/openapi.json", "/nothing", "/media/video?video_id=x"):
        answer = client.get(path)
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = client.get("/").text
    assert "http://" not in page and "https://" not in page, "nothing is loaded from elsewhere"
    assert "<script>" not in page and "style=" not in page and "onclick" not in page


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8377", "", "127.0.0.1:8377@evil.example"])
def test_other_hosts_are_refused(client, host):
    assert client.get("/api/about", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8377", "localhost:1", "LOCALHOST"])
def test_names_of_this_machine_are_accepted(client, host):
    assert client.get("/api/about", headers={"Host": host}).status_code == 200


def test_methods_bodies_and_long_addresses_are_refused(client):
    for answer, status, expected in (
        (client.post("/api/search", json={}), 405, "GET"),
        (client.get("/api/pictures"), 405, "POST"),
        (client.request("GET", "/api/about", content=b"x"), 413, "a request without"),
        (client.get("/api/search", params={"q": "x" * 9000}), 414, "at most 8,192"),
        (client.get("/api/about", headers={"Host": "evil.example"}), 421, "127.0.0.1 or localhost"),
    ):
        detail = answer.json()["detail"]
        assert answer.status_code == status and f"expected {expected}" in detail, detail


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"q": ""},
        {"q": " "},
        {"q": "x" * 2001},
        {"q": "a", "num_results": 0},
        {"q": "a", "num_results": 10**9},
        {"q": "a", "num_results": "x"},
    ],
)
def test_wrong_queries_are_answered_with_a_reason(client, parameters):
    answer = client.get("/api/search", params=parameters)
    assert answer.status_code == 422 and answer.json()["detail"]


@pytest.mark.parametrize("words", ["🐶", "собака", "<script>alert(1)</script>", "'; --", "\x00\x1b[31m"])
def test_odd_words_are_searched(client, words):
    assert client.get("/api/search", params={"q": words}).status_code == 200


def test_hostile_requests_get_nothing(client):
    rng, page = random.Random(0), client.get("/").content
    parts = [
        "..",
        "%2e%2e",
        "/",
        "\\",
        "%5c",
        "%00",
        "static",
        "media",
        "etc/passwd",
        "secret.mp4",
        "videos",
        "~",
        "%25",
    ]
    starts = ["", "static/", "media/", "media/clip?start=0&end=1&video_id=", "api/"]
    for _ in range(500):
        path = "/" + rng.choice(starts) + "/".join(rng.choices(parts, k=rng.randint(1, 8)))
        low, high = (rng.choice(["", "-1", "0", "5", "99999999999999999999", "x"]) for _ in range(2))
        answer = client.get(path, headers={"Range": f"{rng.choice(['bytes', 'lines', ''])}={low}-{high}"})
        is_page = answer.status_code in (200, 206) and answer.content in page  # ``/x/..`` is the page
        is_page = is_page or answer.url.path == "/api/videos"
        assert is_page or answer.status_code in (400, 404, 405, 416, 422), path
        assert SECRET not in answer.content and b"root:" not in answer.content


def test_a_port_in_use_is_said(search):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port}: "):
            serve([search], port=port, on_ready=print)


def test_the_command_wants_one_thing_to_search_with(toy, capsys):
    assert serve_main(["r", "--root", str(toy.root), "--dataset", "toy", "--features", "s3d"]) == 2
    assert "--features s3d: " in capsys.readouterr().err


@pytest.mark.parametrize("lacking", [(), ("no Landlock: it could read everything that you can",)])
def test_the_command_says_what_the_decoders_sandbox_lacks(toy, monkeypatch, capsys, lacking):
    monkeypatch.setattr(page_clips, "missing_protections", lambda: lacking)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends where it would serve
        port = str(taken.getsockname()[1])
        assert serve_main(["r", "--root", str(toy.root), "--dataset", "toy", "--port", port, "--device", "cpu"]) == 2
    assert ("no Landlock" in capsys.readouterr().err) == bool(lacking)
