"""The token of the page: needed on this machine, too; a cookie of its own for each port."""

import http.cookies
from urllib.parse import parse_qs, urlsplit

import pytest
import uvicorn
from starlette.testclient import TestClient
from vlalign.storage.common.errors import SettingError
from vlalign.train.page import serve as page_serve
from vlalign.train.page.guard import Access, Guard

HOSTS = ["127.0.0.1", "localhost"]
TOKEN = "sesame-open"


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


def new_client(port: int = 8377, token: str | None = TOKEN) -> TestClient:
    guard = Guard(app, Access(HOSTS, token, port))
    return TestClient(guard, base_url=f"http://127.0.0.1:{port}", follow_redirects=False)


def served(monkeypatch, **options) -> tuple[TestClient, str]:
    """Return a client of what ``serve`` serves, without cookies, and the address that it prints."""
    printed, apps = [], []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: apps.append(server.config.app))
    monkeypatch.setattr(page_serve, "make_app", lambda searches, access: Guard(app, access))
    page_serve.serve([], port=0, on_ready=printed.append, **options)
    address = urlsplit(printed[0])
    return TestClient(apps[0], base_url=f"http://{address.netloc}", follow_redirects=False), printed[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_the_printed_address_is_answered(monkeypatch, host):
    client, printed = served(monkeypatch, host=host)
    assert printed.startswith(f"http://{host}:")
    assert client.get("/api/about").status_code == 401
    assert client.get(printed).headers["location"] == "/"
    for path in ("/", "/api/about", "/media/video", "/static/page.js"):
        assert client.get(path).status_code == 200
        assert client.get(path, headers={"Host": "other.example"}).status_code == 421


def test_each_start_has_a_token_of_its_own(monkeypatch):
    tokens = {parse_qs(urlsplit(served(monkeypatch)[1]).query)["token"][0] for _ in range(3)}
    assert len(tokens) == 3 and min(map(len, tokens)) >= 32


def test_without_a_token_by_choice_and_on_this_machine_only(monkeypatch):
    client, printed = served(monkeypatch, no_token=True)
    assert urlsplit(printed).query == "" and client.get("/api/about").status_code == 200
    assert client.get("/api/about", headers={"Host": "other.example"}).status_code == 421
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(SettingError, match="--no-token"):
            served(monkeypatch, host=host, no_token=True)


def test_the_token_leaves_the_address_for_a_cookie():
    client = new_client(port=8001)
    answer = client.get("/?q=a+b&token=sesame-open&by=&q=%26token%3Dx%0d%0a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?q=a+b&by=&q=%26token%3Dx%0D%0A")
    assert answer.headers["referrer-policy"] == "no-referrer"
    [cookie] = http.cookies.SimpleCookie(answer.headers["set-cookie"]).values()
    assert (cookie.key, cookie.value, cookie["path"], cookie["domain"]) == ("vlalign_token_8001", TOKEN, "/", "")
    assert cookie["httponly"] and cookie["samesite"].lower() == "strict"
    assert client.get(answer.headers["location"]).status_code == 200
    for path in ("//evil.example/?token=", "/\\evil.example?token=", "/static?token="):
        assert "location" not in client.get(f"http://127.0.0.1:8001{path}{TOKEN}").headers


def test_the_cookie_is_found_among_any_others():
    client = new_client(port=8001)
    for others in ('a="', 'a="\\a\\a"; ', "=; ;", "b=" + "x" * 5000 + "; "):
        headers = {"Cookie": f"{others}; vlalign_token_8001={TOKEN}; c"}
        assert client.get("/api/about", headers=headers).status_code == 200
        assert client.get("/api/about", headers={"Cookie": others}).status_code == 401


def test_programs_give_the_token_with_each_request():
    client = new_client()
    assert client.get("/api/about", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    answer = client.get("/api/about", params={"token": TOKEN})
    assert (answer.status_code, answer.headers.get("set-cookie")) == (200, None)
    assert client.get("/api/about").status_code == 401


@pytest.mark.parametrize(
    "headers, query",
    [
        ({}, ""),
        ({}, "?token="),
        ({}, "?token=wrong&token=sesame-open"),
        ({}, "?token=sesame-ope"),
        ({}, "?token=sesame-open%00"),
        ({}, "?Token=sesame-open"),
        ({}, "?" + "a&" * 2000),
        ({"Authorization": "Bearer "}, ""),
        ({"Authorization": "Basic sesame-open"}, ""),
        ({"Cookie": "vlalign_token_8378=sesame-open"}, ""),
        ({"Cookie": "vlalign_token=sesame-open; vlalign_token_=sesame-open"}, ""),
        ({"Cookie": b"vlalign_token_8377=wr\xc3\xb6ng; ;;=;"}, ""),
        ({"Origin": "http://127.0.0.1:8378", "Referer": "http://127.0.0.1:8377/?token=sesame-open"}, ""),
    ],
)
def test_a_wrong_or_missing_token_says_where_to_find_it(headers, query):
    client = new_client()
    page, answer = client.get(f"/{query}", headers=headers), client.get(f"/api/about{query}", headers=headers)
    assert (page.status_code, answer.status_code) == (401, 401)
    assert "set-cookie" not in page.headers and "location" not in page.headers
    assert page.headers["content-type"].startswith("text/html") and len(page.text) < 500
    for told in (page.text, answer.json()["detail"]):
        assert "vlalign-serve" in told and TOKEN not in told


def test_pages_on_two_ports_keep_their_cookies():
    """A browser sends the cookies of all ports of a host, those of other programs among them."""
    pages = {8001: new_client(8001, "one"), 8002: new_client(8002, "two")}
    jar = ['odd"; {"a": 1}', "session=x y,z"]
    for port, token in ((8001, "one"), (8002, "two")):
        cookie = pages[port].get("/", params={"token": token}).headers["set-cookie"].split(";")[0]
        pages[port].cookies.clear()
        jar.append(cookie)
    for client in pages.values():
        assert client.get("/api/about", headers={"Cookie": "; ".join(jar)}).status_code == 200
    swapped = "vlalign_token_8001=two; vlalign_token_8002=one"
    assert [client.get("/", headers={"Cookie": swapped}).status_code for client in pages.values()] == [401, 401]


def test_every_answer_forbids_frames_scripts_and_guessing():
    client = new_client()
    for answer in (
        client.get("/"),
        client.get("/api/about"),
        client.get("/", params={"token": TOKEN}),
        client.post("/"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert not {name for name in answer.headers if name.startswith("access-control-")}
