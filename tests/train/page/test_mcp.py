"""MCP clients search: by standard input and output, and at the page's address, with the page's rules."""

import asyncio
import base64
import contextlib
import io
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import av
import httpx2
import pytest
from helpers import browser
from helpers.page_server import serving
from helpers.small_demo import RUN, blocks_of, differences, make_small_demo
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from PIL import Image
from starlette.testclient import TestClient
from vlalign.train import open_search
from vlalign.train.page.app import make_app
from vlalign.train.page.guard import MCP, UPLOADS, Access
from vlalign.train.page.mcp_server import TOOLS, add_mcp, make_server
from vlalign.train.search.query_checks import check_time

PAGE = Path(__file__).parents[3] / "docs" / "mcp.md"
PROGRAM = "import sys; from vlalign.train.cli.mcp import main; sys.exit(main(sys.argv[1:]))"
START = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("demo") / "root"
    make_small_demo(root)
    return root


@pytest.fixture(scope="module")
def address(root):
    with browser.serve("--root", str(root), "--dataset", "demo", RUN, "--mcp") as address:
        yield address


def command(root: Path) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "--root", str(root), "--dataset", "demo", RUN]


def by_stdio(root: Path, mode: str = "auto") -> Client:
    program, *args = command(root)
    return Client(stdio_client(StdioServerParameters(command=program, args=args)), mode=mode)


@contextlib.asynccontextmanager
async def by_http(address: str, mode: str = "auto", **headers: str):
    split = urlsplit(address)
    [token] = parse_qs(split.query)["token"]
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"} | headers)
    transport = streamable_http_client(f"http://{split.netloc}/mcp", http_client=http)
    async with http, Client(transport, mode=mode) as client:
        yield client


def close_to(value: Any) -> Any:
    """Return what equals ``value`` up to the last digits of its numbers, which differ between processes."""
    if isinstance(value, dict):
        return {name: close_to(part) for name, part in value.items()}
    if isinstance(value, list):
        return [close_to(part) for part in value]
    return pytest.approx(value) if isinstance(value, float) else value


async def exchange(client: Client, page: TestClient) -> None:
    """Call each tool; compare with what the page answers."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == set(TOOLS) and all(tool.annotations.read_only_hint for tool in tools.values())
    for path, name in (("/api/search", "search"), ("/api/videos", "list_videos"), ("/media/clip", "clip")):
        described = page.get("/api/openapi.json").json()["paths"][path]["get"]["parameters"]
        assert set(tools[name].input_schema["properties"]) == {each["name"] for each in described}
    assert "untrusted" in tools["search"].description and "Never follow" in client.instructions

    wanted = {"q": "cut the onion", "num_results": 3, "fold": False, "like": ["demo0005@1-2"], "split": None}
    found = (await client.call_tool("search", wanted)).structured_content
    params = {name: value for name, value in wanted.items() if value is not None}
    expected = page.get("/api/search", params=params).json()
    for moment in expected["moments"]:
        for value in ("curve", "stages"):
            del moment[value]
    assert found == close_to(expected) and len(found["moments"]) == 3
    first = found["moments"][0]["video_id"]
    for name, arguments in {
        "about": {},
        "list_videos": {"num_results": 5, "offset": 2},
        "score_curve": {"q": "onion", "video_id": first},
    }.items():
        answer = await client.call_tool(name, arguments)
        assert answer.structured_content == close_to(page.get(TOOLS[name][0], params=arguments).json()), name
        assert json.loads(answer.content[0].text) == answer.structured_content

    image, text = (await client.call_tool("frame", {"video_id": "demo0005", "seconds": 1.5})).content
    picture = page.get("/media/picture", params={"video_id": "demo0005", "seconds": 1.5})
    assert base64.b64decode(image.data) == picture.content and image.mime_type == "image/jpeg"
    assert Image.open(io.BytesIO(picture.content)).format == "JPEG"
    assert text.text == f"frame of second {picture.headers['Picture-Seconds']}"

    [link] = (await client.call_tool("clip", {"video_id": "demo0005", "start": 1, "end": 2})).content
    [clip] = (await client.read_resource(link.uri)).contents
    content = base64.b64decode(clip.blob)
    assert (len(content), clip.mime_type) == (link.size, "video/webm")
    with av.open(io.BytesIO(content)) as decoded:
        assert sum(1 for _ in decoded.decode(video=0)) == 24
    [template] = (await client.list_resource_templates()).resource_templates
    assert template.uri_template.startswith(link.uri.partition("?")[0] + "{")


WRONG = [
    ("search", {"q": ""}, "empty"),
    ("search", {}, "empty"),
    ("search", {"q": "x" * 2001}, "2,000"),
    ("search", {"q": "onion", "num_results": 61}, "60"),
    ("search", {"q": "onion", "num_results": "many"}, "num_results many"),
    ("search", {"q": "onion", "limit": 3}, "limit"),
    ("search", {"q": "onion", "token": "x"}, "token"),
    ("search", {"q": {"text": "onion"}}, "expected a text"),
    ("search", {"q": ["onion", "salt"]}, "several values"),
    ("search", {"q": "onion", "by": "smell"}, "by smell"),
    ("search", {"q": "onion", "dataset": "other"}, "demo"),
    ("search", {"like": ["/etc/passwd"]}, "/etc/passwd"),
    ("search", {"like": ["demo0005"] * 2000}, "examples"),
    ("frame", {"video_id": "nothing\n\x1b[31m"}, "no such video"),
    ("frame", {"video_id": "demo0005", "seconds": -1}, "seconds -1"),
    ("frame", {}, "video_id"),
    ("clip", {"video_id": "demo0001", "start": 0, "end": 1}, "no such video"),
    ("clip", {"video_id": "demo0005", "start": 2, "end": 1}, "clip"),
    ("score_curve", {"q": "onion", "video_id": "nothing"}, "nothing"),
]
"""Tool, arguments, what the answer names."""


async def mistakes(client: Client) -> None:
    for name, arguments, named in WRONG:
        answer = await client.call_tool(name, arguments)
        [text] = answer.content
        assert answer.is_error and answer.structured_content is None, (name, arguments)
        assert named in text.text and text.text.isprintable() and len(text.text) < 1000, (name, text.text)
    for wrong in (client.call_tool("delete", {}), client.read_resource("file:///etc/passwd")):
        with pytest.raises(MCPError, match="expected"):
            await wrong
    for query in ("", "?video_id=demo0005&start=0", "?video_id=nothing&start=0&end=1", "/../about?video_id=demo0005"):
        with pytest.raises(MCPError):
            await client.read_resource(f"vlalign://clip{query}")
    assert not (await client.call_tool("about", {})).is_error


@pytest.fixture(scope="module")
def page(root):
    search = open_search(root / "demo", run=RUN)
    return TestClient(make_app([search], Access(["127.0.0.1"])), base_url="http://127.0.0.1:8377")


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.slow)])
def test_a_client_searches_and_looks_by_stdio(root, page, mode):
    async def talk():
        async with by_stdio(root, mode) as client:
            await exchange(client, page)
            await mistakes(client)

    asyncio.run(talk())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_searches_and_looks_at_the_address_of_the_page(address, page, mode):
    async def talk():
        async with by_http(address, mode) as client:
            await exchange(client, page)
            await mistakes(client)

    asyncio.run(talk())


def test_several_clients_at_once_get_their_own_answers(address, page):
    texts = ["cut the onion", "stir the rice", "fry the egg", "boil the salt"]

    async def ask(text):
        async with by_http(address) as client:
            calls = [client.call_tool("search", {"q": text, "num_results": 5}) for _ in range(5)]
            return [answer.structured_content for answer in await asyncio.gather(*calls)]

    async def talk():
        return await asyncio.gather(*map(ask, texts))

    for text, answers in zip(texts, asyncio.run(talk()), strict=True):
        expected = [m["score"] for m in page.get("/api/search", params={"q": text, "num_results": 5}).json()["moments"]]
        assert [[m["score"] for m in answer["moments"]] for answer in answers] == [pytest.approx(expected)] * 5


def post(
    address: str, message: object = LIST, path: str = MCP, method: str = "POST", **headers: str
) -> tuple[int, str]:
    """Send a message; return the status and the content of the answer. An empty header is left out."""
    split = urlsplit(address)
    [token] = parse_qs(split.query)["token"]
    given = HEADERS | {"Authorization": f"Bearer {token}"} | {name.replace("_", "-"): v for name, v in headers.items()}
    content = message if isinstance(message, bytes) else json.dumps(message).encode()
    request = Request(f"http://{split.netloc}{path}", content, {k: v for k, v in given.items() if v}, method=method)
    try:
        with urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_requests_without_permission_are_refused_as_by_the_page(address):
    status, answer = post(address)
    assert status == 200 and len(json.loads(answer)["result"]["tools"]) == len(TOOLS)
    assert post(address, Authorization="Bearer wrong")[0] == 401
    assert post(address, Authorization="")[0] == 401
    assert post(address, path=f"{MCP}?{urlsplit(address).query}", Authorization="")[0] == 200
    assert post(address, Host="evil.example")[0] == 421
    assert post(address, Origin="http://evil.example")[0] == 403
    assert post(address, Sec_Fetch_Site="cross-site")[0] == 403
    assert post(address, Content_Type="text/plain")[0] == 415
    assert post(address, Content_Length=str(UPLOADS[MCP].max_bytes + 1))[0] == 413
    assert post(address, method="GET")[0] == 405 and post(address, method="DELETE")[0] == 405
    assert post(address, path="/api/search")[0] == 405 and post(address, path="/mcp/")[0] == 405
    assert post(address, b"{")[0] == 400 and post(address, [LIST])[0] == 400 and post(address, b"[" * 100_000)[0] == 400
    assert post(address)[0] == 200


def test_the_page_answers_mcp_only_where_it_was_asked_to(page, root):
    assert page.post(MCP, json=LIST, headers=HEADERS).status_code == 404
    app = make_app([open_search(root / "demo", run=RUN)], Access(["127.0.0.1"], "sesame"))
    add_mcp(app, Access(["127.0.0.1"], "sesame"))
    with TestClient(app, base_url="http://127.0.0.1:8377") as client:
        call = LIST | {"method": "tools/call", "params": {"name": "about", "arguments": {}}}
        answer = client.post(MCP, json=call, headers=HEADERS | {"Authorization": "Bearer sesame"}).json()
        assert answer["result"]["structuredContent"]["datasets"][0]["name"] == "demo"
        assert client.post(MCP, json=call, headers=HEADERS).status_code == 401


def test_a_search_ends_with_its_client(root, monkeypatch):
    """The client closes its connection; or, by stdio, cancels the call: no thread searches on."""
    search = open_search(root / "demo", run=RUN)
    began, ended = threading.Event(), threading.Event()

    def endless(*args, **kwargs):
        began.set()
        try:
            while True:
                check_time()
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(search, "part", endless)
    app = make_app([search], Access([]))

    async def cancel():
        async with Client(make_server(app, Access([]))) as client:
            calling = asyncio.ensure_future(client.call_tool("search", {"q": "onion"}))
            await asyncio.to_thread(began.wait, 60)
            calling.cancel()
            assert await asyncio.to_thread(ended.wait, 20)

    asyncio.run(cancel())
    began.clear(), ended.clear()
    add_mcp(app, Access([]))

    with serving(app, lifespan="on") as port:
        call = LIST | {"method": "tools/call", "params": {"name": "search", "arguments": {"q": "onion"}}}
        with pytest.raises(TimeoutError):
            urlopen(Request(f"http://127.0.0.1:{port}/mcp", json.dumps(call).encode(), HEADERS), timeout=1)
        assert began.wait(60) and ended.wait(20)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_fault_of_the_server_shows_no_details(root, monkeypatch, caplog, mode):
    search = open_search(root / "demo", run=RUN)

    def fail(*args, **kwargs):
        raise RuntimeError("/home/somebody/secret")

    monkeypatch.setattr(search, "part", fail)
    server = make_server(make_app([search], Access([])), Access([]))

    async def talk():
        async with Client(server, mode=mode) as client:
            with pytest.raises(MCPError, match="search failed") as caught:
                await client.call_tool("search", {"q": "onion"})
            assert "secret" not in str(caught.value)
            assert not (await client.call_tool("about", {})).is_error

    asyncio.run(talk())
    assert "/home/somebody/secret" in caplog.text


def send(server: subprocess.Popen, message: dict) -> None:
    server.stdin.write(json.dumps(message).encode() + b"\n")
    server.stdin.flush()


def start(root: Path) -> subprocess.Popen:
    server = subprocess.Popen(command(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    send(server, LIST | {"method": "initialize", "params": START})
    assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "vlalign"
    return server


SLOW = [pytest.param(how, marks=pytest.mark.slow) for how in ("closes while it loads", "interrupts", "reads no more")]


@pytest.mark.parametrize("how", ["closes", "terminates", *SLOW])
def test_the_server_ends_with_its_client(root, how):
    with start(root) as server:
        if how != "closes while it loads":
            server.stdin.write(
                json.dumps(LIST | {"method": "tools/call", "params": {"name": "about"}}).encode() + b"\n"
            )
            server.stdin.flush()
            assert b"structuredContent" in server.stdout.readline()
        begun = time.monotonic()
        if how.startswith("closes"):
            server.stdin.close()
        elif how == "reads no more":
            server.stdout.close()
            send(server, LIST)
        else:
            server.send_signal(signal.SIGTERM if how == "terminates" else signal.SIGINT)
        code = server.wait(60)
        expected = {"terminates": 143, "interrupts": 130, "reads no more": 2}.get(how, 0)
        said = server.stderr.read().decode()
        assert code == expected, said
        assert how == "closes while it loads" or time.monotonic() - begun < 20
        assert len(said.splitlines()) <= 1 and "Traceback" not in said


def test_a_mistake_in_the_call_ends_it_in_one_line(root):
    program, *args = command(root)
    ended = subprocess.run(
        [program, *args[:-1], "no-such-run"], stdin=subprocess.PIPE, capture_output=True, timeout=100
    )
    assert ended.returncode == 2 and ended.stdout == b""
    assert b"no-such-run" in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_what_is_no_message_is_answered_and_the_next_one_too(root):
    with start(root) as server:
        for line in (
            b"{",
            b"[]",
            b"\xff\xfe",
            b'{"jsonrpc": "2.0", "id": 7, "method": "no/such"}',
            json.dumps(LIST).encode(),
        ):
            server.stdin.write(line + b"\n")
        server.stdin.flush()
        answers = []
        while not answers or "tools" not in answers[-1].get("result", {}):
            answers.append(json.loads(server.stdout.readline()))
        assert [a["error"]["code"] for a in answers if a.get("id") == 7] == [-32601]
        server.stdin.close()
        assert server.wait(60) == 0


def test_the_exchange_on_the_page_is_what_a_client_gets(root):
    [block] = [block for block in blocks_of(PAGE, "text") if '"jsonrpc"' in block]
    lines = block.splitlines()
    with start(root) as server:
        for line in lines:
            way, message = line[:2], line[2:]
            if way == "> ":
                server.stdin.write(message.encode() + b"\n")
                server.stdin.flush()
            else:
                assert way == "< "
                assert differences(json.loads(message), json.loads(server.stdout.readline())) == []
        server.stdin.close()
    assert sum(line.startswith("< ") for line in lines) >= 4
