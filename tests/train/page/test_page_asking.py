"""The page's search route: a text, examples, the next moments, groups and near-duplicates, as the search itself has."""

from io import BytesIO

import pytest
from helpers.planted_search import open_planted, plant
from PIL import Image
from starlette.testclient import TestClient
from vlalign.storage import FeatureStore
from vlalign.storage.stores.maintenance import remove
from vlalign.train.page.app import make_app
from vlalign.train.page.guard import Access
from vlalign.train.search.query_checks import VideoSpan

THINGS = ["beach", "dog", "forest", "car", "snow"]


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    scenes = {f"v{n}": [(10, THINGS[(n + k * (n % 3 + 1)) % 5]) for k in range(6)] for n in range(8)}
    scenes["copy"] = scenes["v1"]
    return open_planted(plant(tmp_path_factory.mktemp("root"), scenes))


@pytest.fixture(scope="module")
def app(search):
    return make_app([search], Access(["127.0.0.1"]))


@pytest.fixture(scope="module")
def client(app):
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def spans(moments):
    return [(m["video_id"], m["start_seconds"], m["end_seconds"]) for m in moments]


def as_spans(moments):
    return [(m.video_id, m.start_seconds, m.end_seconds) for m in moments]


@pytest.mark.parametrize("options", [{}, {"fold": True}, {"group": "video"}, {"group": "video", "fold": True}])
def test_pages_follow_each_other_without_gap_or_repetition(client, search, options):
    asked, found = {"q": "dog", "num_results": 4, "fold": False} | options, []
    while True:
        page = client.get("/api/search", params=asked | {"offset": len(found)}).json()
        found += page["moments"]
        if not page["has_more"]:
            break
        assert len(page["moments"]) == 4
    every = search("dog", num_results=1000, **options)
    assert spans(found) == as_spans(every)
    assert [spans(m["similar"]) for m in found] == [as_spans(m.similar) for m in every]
    times = [[(o["start_seconds"], o["best_seconds"], o["score"]) for o in m["occurrences"]] for m in found]
    assert times == [[(o.start_seconds, o.best_seconds, o.score) for o in m.occurrences] for m in every]
    assert any(m["similar"] for m in found) == ("fold" in options)
    assert all(not s["curve"]["scores"] for m in found for s in m["similar"]) and found[0]["curve"]["scores"]
    best = [[s["best_seconds"] for s in m["similar"]] for m in found]
    assert best == [[s.best_seconds for s in m.similar] for m in every]


def test_near_duplicates_are_folded_unless_told_otherwise(client, search):
    asked = {"q": "dog", "num_results": 60}
    folded, every = (client.get("/api/search", params=asked | more).json() for more in ({}, {"fold": "false"}))
    assert spans(folded["moments"]) == as_spans(search("dog", num_results=60, fold=True))
    assert spans(every["moments"]) == as_spans(search("dog", num_results=60))
    assert len(folded["moments"]) < len(every["moments"])


def test_several_examples_and_a_text(client, search):
    like = ["v0@0-10", "v2"]
    expected = search("snow", like=[VideoSpan("v0", 0, 10), VideoSpan("v2")], num_results=9)
    found = client.get("/api/search", params={"q": "snow", "like": like, "num_results": 9, "fold": False}).json()
    assert spans(found["moments"]) == as_spans(expected) and found["nothing_fits"] is None
    for more in ({"fold": False}, {"fold": True, "offset": 2, "num_results": 3}):
        alone = client.get("/api/search", params={"like": "v0@0-10", **more}).json()
        part = client.get("/api/like", params={"video_id": "v0", "start": 0, "end": 10, **more}).json()
        assert alone["moments"] == part["moments"] and alone["has_more"] == part["has_more"]


def test_a_client_opens_no_file(client, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"no picture")
    for like in (str(tmp_path / "photo.jpg"), "http://127.0.0.1:9/photo.jpg"):
        answer = client.get("/api/search", params={"like": like})
        assert answer.status_code == 422 and answer.json()["detail"].endswith("one of its ids, such as 'copy'")


def test_uploaded_pictures_are_named_by_their_ids(client, search, monkeypatch):
    for name in ("unknown", "../../etc/passwd", ""):
        assert client.get("/api/search", params={"like": f"picture:{name}"}).status_code == 404
    png = BytesIO()
    Image.new("RGB", (8, 8)).save(png, "PNG")
    picture = client.post("/api/pictures", content=png.getvalue(), headers={"Content-Type": "image/png"}).json()[
        "picture"
    ]
    monkeypatch.setattr(type(search.encoder), "encode_image", lambda self, file: search.encode_query("dog"))
    found = client.get("/api/search", params={"like": f"picture:{picture}", "fold": False}).json()
    assert spans(found["moments"]) == as_spans(search("dog", num_results=12))
    assert client.get("/api/search", params={"like": "picture:two"}).status_code == 404


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({}, "empty"),
        ({"like": "nobody"}, "nobody"),
        ({"like": "v0@70-80"}, "60.00 s"),
        ({"like": ["v0"] * 21}, "like"),
        ({"like": ""}, "like"),
        ({"like": "v0", "by": "text"}, "by text"),
        ({"q": "dog", "offset": -1}, "offset"),
        ({"q": "dog", "offset": 100_001}, "offset"),
        ({"q": "dog", "group": "folder"}, "group"),
    ],
)
def test_wrong_questions_are_answered_with_a_reason(client, parameters, word):
    answer = client.get("/api/search", params=parameters)
    assert answer.status_code == 422 and word in answer.text


def test_videos_that_are_pruned_meanwhile_are_skipped(tmp_path, monkeypatch):
    search = open_planted(plant(tmp_path, {f"v{n}": [(10, "dog"), (10, THINGS[n])] for n in range(5)}))
    app = make_app([search], Access(["127.0.0.1"]))
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    asked = {"q": "dog", "num_results": 60, "fold": True}
    before = [client.get("/api/search", params=asked | more).json() for more in ({}, {"group": "video"})]
    dataset = app.state.datasets["planted"]
    shown = dataset.search("dog", num_results=60, fold=True)
    folder = search.encoder.dataset.features("clip_vit_b32")
    remove(folder, ["v1", "v3"])
    monkeypatch.setattr(search.encoder, "store", FeatureStore(folder))
    of_response = dataset.respond(shown, None, False)
    assert {m.video_id for m in of_response.moments} <= {"v0", "v2", "v4"}
    assert {s.video_id for m in of_response.moments for s in m.similar} <= {"v0", "v2", "v4"}
    for page, more in zip(before, ({}, {"group": "video"}), strict=True):
        answer = client.get("/api/search", params=asked | more)
        assert answer.status_code == 200
        moments = [m for m in answer.json()["moments"] for m in (m, *m["similar"])]
        assert {m["video_id"] for m in moments} <= {"v0", "v2", "v4"} and page["moments"] and moments
    for offset, ids in ((0, ["v0", "v2"]), (2, ["v4"])):
        answer = client.get("/api/videos", params={"num_results": 2, "offset": offset})
        assert answer.status_code == 200 and [v["video_id"] for v in answer.json()["videos"]] == ids
    assert answer.json()["num_videos"] == 3
