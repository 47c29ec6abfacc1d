"""Wrong and unknown parameters of the page's addresses are refused in a line that names them."""

import pytest
from helpers.planted_search import open_planted, plant
from starlette.testclient import TestClient
from vlalign.train.page.app import make_app
from vlalign.train.page.guard import Access

NEEDED = {"form": "csv", "q": "dog", "video_id": "v0", "start": "0", "end": "5", "picture": "x"}
ONE_VIDEO = ("/api/videos", "video_id")
"""With it, the address ignores the filters."""
NO_NUMBERS = ["-1", "nan", "inf", "abc", "", "9" * 400]
WRONG = {
    "num_results": [*NO_NUMBERS, "0", "1001", "1.5"],
    "offset": [*NO_NUMBERS, "1.5"],
    "by": ["foo", "VIDEO", "", "both,text", "1"],
    "group": ["x", "Video", "", "folder", "1"],
    "form": ["doc", "CSV", "", ".csv", "json,csv"],
    "exact": ["maybe", "2", "", "None", "x"],
    "fold": ["maybe", "2", "", "None", "x"],
    "has_caption": ["maybe", "2", "", "None", "x"],
    "split": ["foo", "Train", "train|test", "1", "x" * 101],
    "min_seconds": NO_NUMBERS,
    "max_seconds": NO_NUMBERS,
    "seconds": NO_NUMBERS,
    "start": NO_NUMBERS,
    "end": NO_NUMBERS,
    "since": ["2026-13-40", "yesterday", "2026", "1960-01-01", "2026-01-31T00:00", "x" * 101],
    "until": ["2026-13-40", "tomorrow", "31.01.2026", "9999-12-31", "-1", "x" * 101],
    "folder": ["nowhere", "../..", "/etc", ".", "a" * 5000],
    "caption": ["the", "!!!", "x" * 2001],
    "caption_language": ["xx", "german", "EN", "-1", "x" * 101],
    "q": ["x" * 2001],
    "without": ["x" * 2001],
    "like": ["", "x" * 5000],
    "video_id": ["", "x" * 5000],
    "dataset": ["", "x" * 256],
    "picture": ["", "x" * 101],
}
"""{parameter: values that no address takes}"""
OF_PYDANTIC = ("Input", "String", "pattern", "^(", "Field", "parse", "expected another")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    captions = {"v0": [(0.0, 5.0, "the dog is on the beach")]}
    dataset = plant(tmp_path_factory.mktemp("root"), {"v0": [(10, "dog")], "v1": [(10, "car")]}, captions)
    app = make_app([open_planted(dataset)], Access(["127.0.0.1"]))
    return TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)


def parameters_of(client):
    """Return {address that only reads: names of its parameters}."""
    paths = client.get("/api/openapi.json").json()["paths"]
    return {
        path: [each["name"] for each in of["get"].get("parameters", ()) if each["in"] == "query"]
        for path, of in paths.items()
        if "get" in of
    }


def refused(client, path, parameters):
    answer = client.get(path, params=parameters)
    detail = answer.json()["detail"]
    assert answer.status_code == 422 and isinstance(detail, str) and detail.isprintable(), (path, parameters, detail)
    assert len(detail) < 400 and not any(word in detail for word in OF_PYDANTIC), detail
    return detail


def test_each_wrong_value_of_each_address_is_named(client):
    asked = 0
    for path, names in parameters_of(client).items():
        for name in names:
            for value in WRONG[name]:
                right = {each: NEEDED[each] for each in names if each in NEEDED and (path, each) != ONE_VIDEO}
                assert refused(client, path, right | {name: value}).startswith(name), (path, name)
                asked += 1
    assert asked > 250
    detail = refused(client, "/api/search", {"like": ["v0"] * 21})
    assert detail == "like (21 values): expected at most 20 of them"


@pytest.mark.parametrize(
    ("path", "parameters", "expected"),
    [
        (
            "/api/search",
            {"q": "dog", "min_second": "3"},
            "min_second: unknown parameter of /api/search; did you mean min_s",
        ),
        ("/api/videos", {"q": "dog"}, "q: unknown parameter of /api/videos; expected "),
        ("/api/about", {"x\n": "1"}, "x\\n: unknown parameter of /api/about; expected none"),
        ("/api/score_curve", {"q": "dog", "video_id": "v0", "": "1"}, "(empty): unknown parameter of /api/score_curve"),
        ("/media/picture", {"videoID": "v0"}, "videoID: unknown parameter of /media/picture; did you mean video_id?"),
        ("/api/search", {"q": ["a", "b"]}, "q a, b: several values; pass one"),
        ("/api/search", {"q": "dog", "num_results": "61"}, "num_results 61: expected at most 60"),
        ("/media/picture", {}, "video_id: missing; pass it"),
    ],
)
def test_what_an_address_does_not_know_is_not_ignored(client, path, parameters, expected):
    assert refused(client, path, parameters).startswith(expected)


def test_the_page_keeps_the_options_of_a_search(client):
    options = {"without": "car", "by": "video", "group": "video", "fold": "false", "token": "x"}
    assert client.get("/api/videos", params=options).json()["num_videos"] == 2
    assert client.get("/", params={"open": "v0@1", "q": "dog", "start": "1"}).status_code == 200
    assert client.get("/api/search", params={"like": ["v0@0-1", "v1"]}).status_code == 200
    assert client.get("/api/search", params={"q": "dog", "fold": ["false", "false"]}).status_code == 200
    assert client.get("/api/search", params={"q": "dog", "split": "", "folder": "", "since": ""}).status_code == 200
