"""Data sets of one's own: what their modules may be, and what they may not do."""

import pytest
from helpers.captions import call
from vlalign.preprocess import Dataset
from vlalign.preprocess.cli import main
from vlalign.storage import read_captions
from vlalign.storage.captions.files import read_captions_about
from vlalign.storage.dataset.folder import DatasetFolder

HEAD = "from vlalign.preprocess import Dataset\nfrom vlalign.storage import Caption\n"
READ = 'def read(annotations, protocol):\n    yield Caption(video_id="a", caption="a dog runs", split="train")\n'


def write_module(tmp_path, monkeypatch, name, text):
    (tmp_path / f"{name}.py").write_text(HEAD + text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "annotations").mkdir(exist_ok=True)


@pytest.mark.parametrize("name", ["../x", "..", ".x", "a/b", "a\\b", "a b", "x\n"])
def test_the_name_of_a_data_set_stays_in_the_root(name):
    with pytest.raises(ValueError, match="data set name"):
        Dataset(lambda *_: iter(()), name=name)


def test_a_name_that_leaves_the_root_writes_nothing(tmp_path, monkeypatch, capsys):
    write_module(tmp_path, monkeypatch, "leaves_root", READ + 'D = Dataset(read, name="../x")\n')
    assert call(tmp_path / "root", "--dataset", "leaves_root:D", "--annotations", "annotations") == 2
    assert "'../x'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists() and not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("rest", "named"),
    [
        pytest.param("D = Dataset(read)\n", "name", id="no name"),
        pytest.param('D = Dataset(read, name="youcook2")\n', "'youcook2'", id="name of ours"),
        pytest.param("D = read\n", "function", id="no data set"),
        pytest.param('D = Dataset(lambda a, p: iter([{}]), name="x")\n', "dict", id="no record"),
        pytest.param('D = Dataset(lambda a, p: iter([1 / 0]), name="x")\n', "ZeroDivisionError", id="fails"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_one_line(tmp_path, monkeypatch, capsys, rest, named, request):
    module = "unusable_" + request.node.callspec.id.replace(" ", "_")
    write_module(tmp_path, monkeypatch, module, READ + rest)
    assert call(tmp_path / "root", "--dataset", f"{module}:D", "--annotations", "annotations", "--workers", "1") == 2
    error = capsys.readouterr().err
    assert f"{module}:D" in error and named in error and "Traceback" not in error


def test_an_option_file_needs_trust_and_cannot_trust_itself(tmp_path, monkeypatch, capsys):
    text = READ + 'from pathlib import Path\nPath("imported").touch()\nD = Dataset(read, name="mine")\n'
    write_module(tmp_path, monkeypatch, "in_a_file", text)
    options = tmp_path / "options.yaml"
    named = "dataset: in_a_file:D\n"
    for content in (named, f"{named}trust: in_a_file\n", "dataset: [in_a_file:D]\n"):
        options.write_text(content + "annotations: annotations\nroot: root\n")
        with pytest.raises(SystemExit) as stopped:
            main(["--config", str(options)])
        assert stopped.value.code == 2 and "trust" in capsys.readouterr().err
        assert not (tmp_path / "imported").exists()
    options.write_text("dataset: in_a_file:D\nannotations: annotations\nroot: root\n")
    assert main(["--config", str(options), "--trust", "in_a_file", "--workers", "1"]) == 0
    captions = DatasetFolder(tmp_path / "root", "mine").captions
    assert [c.caption for c in read_captions(captions)] == ["a dog runs"]
    about = read_captions_about(captions)
    assert about is not None and about["plugins"]["dataset"]["module"] == "in_a_file"
