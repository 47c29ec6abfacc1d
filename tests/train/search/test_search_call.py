"""Which run and which text a call of vlalign-search means, and what it says if that is not clear."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from helpers.toy import make_toy
from PIL import Image
from vlalign.storage import UserError
from vlalign.train import open_search
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main
from vlalign.train.cli.serve import main as serve_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.search.query_checks import VideoSpan, parse_example

TRAIN = ["--objective", "taco", "--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--num-negatives", "2"]
LONG = "cut the onion " * 30
"""Longer than a file's name may be, shorter than a query may be."""
ODD_TEXTS = [
    pytest.param(LONG, id="long"),
    pytest.param("x" * 2000, id="one long word"),
    pytest.param("a/" * 900, id="a long path"),
    pytest.param("onion\0", id="NUL"),
    pytest.param("cut [the] *onion*?", id="wildcards"),
    pytest.param("**", id="any folder"),
    pytest.param("/", id="the root"),
    pytest.param("../../onion", id="dots"),
    pytest.param("onion.jpg", id="a name of a picture"),
    pytest.param("x" * 1000 + ".jpg", id="a long name of a picture"),
]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    assert train_main(["--root", str(toy.root), "--dataset", "toy", *TRAIN, "--run-name", "r"]) == 0
    return toy


@pytest.fixture
def search(toy, capsys):
    """Call the command, and return its exit code, what it found and its lines of errors."""

    def call(*words: str) -> tuple[int, str, list[str]]:
        try:
            code = main(["--root", str(toy.root), *words])
        except SystemExit as error:  # the parser's own mistakes
            code = int(str(error.code))
        shown = capsys.readouterr()
        return code, shown.out, shown.err.splitlines()

    return call


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["cut the onion", "r"], ["r", "cut the onion"], id="order swapped"),
        pytest.param(["onion", "r"], ["r", "onion"], id="order swapped, one word"),
        pytest.param(["cut the onion", "RUN'S FOLDER"], ["RUN'S FOLDER", "cut the onion"], id="a folder"),
        pytest.param(["r", "cut", "onion"], ["r", "cut onion"], id="two words"),
        pytest.param(["r", "cut", "the", "big", "onion"], ["r", "cut the big onion"], id="many words"),
        pytest.param(["cut", "the", "onion", "r"], ["r", "cut the onion"], id="swapped, no quotes"),
        pytest.param(["cut", "the", "onion"], ["cut the onion"], id="no run, no quotes"),
        pytest.param(["cut", "onion"], ["cut onion"], id="no run, two words"),
        pytest.param(["like", "the", "rerank"], ["like the rerank"], id="words like options"),
        pytest.param(["r", "what's", "that"], ["r", "what's that"], id="an apostrophe"),
    ],
)
def test_a_call_that_was_meant_otherwise_is_one_line_with_the_right_call(toy, search, words, expected):
    words, expected = ([w.replace("RUN'S FOLDER", str(toy.runs / "r")) for w in of] for of in (words, expected))
    code, found, [line] = search(*words, "--dataset", "toy")
    assert code == 2 and not found and line.startswith("vlalign-search: error: ")
    assert f"vlalign-search {shlex.join(expected)}" in line and "Traceback" not in line
    assert search(*expected, "--dataset", "toy")[0] == 0, "the call that it names works"


def test_several_words_and_features_are_no_run(search):
    code, _, [line] = search("cut", "onion", "--dataset", "toy", "--features", "s3d")
    assert code == 2 and "vlalign-search 'cut onion'" in line
    code, _, [line] = search("r", "onion", "--dataset", "toy", "--features", "s3d")
    assert code == 2 and "--features s3d" in line and "run r" in line, "this one names a run"


def test_the_order_stays_as_it_was(search):
    for words in (["r", "onion"], ["onion"], ["r", "--num-results", "2", "cut the onion"], ["r", "--", "-onion"]):
        code, found, _ = search("--dataset", "toy", *words)
        assert code == 0 and re.match(rf"{re.escape(repr(words[-1]))} .*\b24\b", found)


def test_a_text_that_is_a_runs_name_too_can_be_searched(search):
    assert re.match(r"'r' .*\b24\b.* toy\n", search("r", "r")[1])


def test_help_shows_two_arguments(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.splitlines()[0] == "usage: vlalign-search [RUN] [TEXT] [OPTIONS]"


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("run", [[], ["r"]], ids=["without a run", "with a run"])
def test_any_text_is_searched_and_never_looked_up_as_a_file(search, text, run):
    code, found, lines = search(*run, text)
    assert code == 0 and re.search(r" .*\b24\b.* toy$", found.splitlines()[0]), lines


@pytest.mark.parametrize("words", [["r", "\udcff onion"], ["\udcff onion"]])
def test_bytes_that_are_no_text_are_one_line(search, words):
    code, _, [line] = search(*words)
    assert code == 2 and "'\\udcff onion'" in line and "UTF-8" in line and line.isprintable()


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_as_a_run_is_one_line(toy, search, text, capsys):
    code, _, [line] = search(text, "onion")
    assert code == 2 and line.startswith("vlalign-search: error: ") and len(line) < 700
    for other in (evaluate_main, serve_main):
        assert other(["--root", str(toy.root), text]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert re.search(r"error: run .*: .* /.*; .*\bvlalign-train$", line) and len(line) < 700
    with pytest.raises(UserError, match=r"^run .*: .* /.*; .*\bvlalign-train$"):
        open_search(toy.path, run=text)
    with pytest.raises(UserError, match=r"^run .{0,100}: .*\bfolder\b"):
        open_search(run=text)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_as_an_example_is_one_line(search, text):
    assert parse_example(text) == VideoSpan(text)
    code, _, lines = search("r", "--like", text)
    assert code == 2 and re.search(r"error: video .*: .*\btoy\b", lines[-1]) and len(lines) == 1


@pytest.mark.parametrize("name", ["a.bmp", "a.tiff", "noext", "folder/", "pipe.jpg", "missing.jpg"])
def test_a_file_that_is_no_image_as_an_example_says_which_are_taken(search, tmp_path, name):
    if name == "folder/":
        (tmp_path / name).mkdir()
    elif name == "pipe.jpg":
        os.mkfifo(tmp_path / name)
    elif name != "missing.jpg":
        Image.new("RGB", (30, 30)).save(tmp_path / name, {"a.tiff": "TIFF"}.get(name, "BMP"))
    code, _, [line] = search("r", "--like", f"{tmp_path}/{name}")
    assert code == 2 and re.search(r"its ids, .*, or the path of an image file \(\.jpg, .*\.png, .* or \.avif\)$", line)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--since", "x"),
        ("--until", "2026-02-30"),
        ("--split", "half"),
        ("--min-seconds", "-1"),
        ("--max-seconds", "nan"),
    ],
)
def test_a_wrong_filter_is_refused_before_torch_is_there(option, value):
    program = "import sys; from vlalign.train.cli.search import main\n"
    program += f"code = main(['dog', '--features', 'clip_vit_b32', '{option}', '{value}'])\n"
    program += "sys.exit(9 if 'torch' in sys.modules else code)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 2 and option in done.stderr
