"""The examples of the page about the HTTP interface work, and it names all addresses and parameters."""

import io
import json
import re
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import av
import pytest
from helpers import browser
from helpers.needs import PROGRAM, missing_programs, skip_without
from helpers.small_demo import RUN, differences, make_small_demo
from PIL import Image

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|json|python)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
SHOWN = [answer for language, answer in BLOCKS if language == "json"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return the address and the token of a server with the data set of the page's examples."""
    root = tmp_path_factory.mktemp("demo") / "root"
    make_small_demo(root)
    with browser.serve("--root", str(root), "--dataset", "demo", RUN) as address:
        split = urlsplit(address)
        yield f"http://{split.netloc}", parse_qs(split.query)["token"][0]


@skip_without(PROGRAM, missing_programs("curl", "bash"))
def test_the_calls_get_the_answers_that_are_shown(server, tmp_path):
    page, token = server
    compared = 0
    for number, (language, code) in enumerate(BLOCKS):
        if language != "bash" or "curl" not in code:
            continue
        for call in code.splitlines():
            given = {"PAGE": page, "TOKEN": token, "PATH": "/usr/bin:/bin:/usr/local/bin"}
            said = subprocess.run(
                ["bash", "-c", call.replace("curl", "curl -sS", 1)], env=given, cwd=tmp_path, capture_output=True
            )
            assert said.returncode == 0 and said.stderr == b"", (call, said.stderr)
            if " -o " not in call:
                answer = json.loads(said.stdout)
                assert ("detail" in answer) == ("limit=3" in call), (call, answer)
                if number + 1 < len(BLOCKS) and BLOCKS[number + 1][0] == "json":
                    compared += 1
                    assert differences(json.loads(BLOCKS[number + 1][1]), answer) == [], call
    assert compared == len(SHOWN) >= 8
    assert Image.open(tmp_path / "frame.jpg").format == "JPEG"
    with av.open(str(tmp_path / "clip.webm")) as clip:
        assert sum(1 for _ in clip.decode(video=0)) == 24
    assert (tmp_path / "start.mp4").stat().st_size == 1000


def test_the_python_examples_run(server, tmp_path, monkeypatch, capsys):
    page, token = server
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 48)).save("frame.jpg")
    monkeypatch.setenv("PAGE", page)
    monkeypatch.setenv("TOKEN", token)
    names: dict = {}
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), names)
    *found, problem = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in found] == [moment["video_id"] for moment in names["found"]["moments"]]
    assert problem.startswith("422 limit: ")
    assert len(names["found"]["moments"]) == 3
    assert Image.open(io.BytesIO((tmp_path / "example.jpg").read_bytes())).size == (64, 48)


def test_all_addresses_parameters_and_limits_are_named(server):
    page, token = server
    with urlopen(Request(f"{page}/api/openapi.json", headers={"Authorization": f"Bearer {token}"})) as answer:
        described = json.load(answer)["paths"]
    text = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(?:GET |POST )?([^`]+)`", text))
    assert set(described) - named == set()
    parameters = {
        each["name"] for path in described.values() for of in path.values() for each in of.get("parameters", [])
    }
    assert parameters - {"picture"} - named == set()
    assert "picture=picture" in TEXT
