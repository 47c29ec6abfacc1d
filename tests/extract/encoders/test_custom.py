"""Encoders of one's own: a profile in a file, and a network from a module that was named as trusted."""

import json
import re
import shutil
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from helpers.needs import SYSTEM, skip_without
from helpers.own_network import OWN_NETWORK
from helpers.videos import scene
from vlalign.extract import ExtractionSettings, extract_video, load_extractor
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.decoding.kernels import KERNELS, KERNELS_HELP
from vlalign.extract.videos.demo import render_video
from vlalign.storage import FeatureStore, UserError
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

MODULE = f"""{OWN_NETWORK}
def wrong(weights):
    return Colours(1.0).forward

def wider(weights):
    return torch.nn.Flatten()

def fails(weights):
    raise KeyError("a key\\nof two lines")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A profile in JSON, its module, and a video."""
    (tmp_path / "colours_of_mine.py").write_text(MODULE)
    values = asdict(PROFILES["resnet152"]) | {"name": "colours", "model": "mean colours", "weights": "none"}
    values |= {"dimension": 3, "layer": "mean", "network": "colours_of_mine:make", "mean": [0, 0, 0], "std": [1, 1, 1]}
    (tmp_path / "mine.json").write_text(json.dumps(values))
    (tmp_path / "videos").mkdir()
    render_video(scene(2.0), tmp_path / "videos" / "x.mp4")
    yield tmp_path
    sys.modules.pop("colours_of_mine", None)
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]


def call(own, *more):
    options = ["--root", str(own), "--dataset", "d", "--videos", str(own / "videos")]
    return extract_main([*options, "--features", str(own / "mine.json"), *more])


def test_code_is_run_only_if_its_module_is_trusted(own, capsys):
    assert call(own) == 2
    said = capsys.readouterr().err
    assert "--trust " in said and "colours_of_mine" in said
    assert "colours_of_mine" not in sys.modules
    assert call(own, "--trust", "another") == 2
    assert "colours_of_mine" not in sys.modules
    assert call(own, "--trust", "colours_of_mine") == 0
    store = FeatureStore(DatasetFolder(own, "d").features("colours"))
    expected = load_extractor(str(own / "mine.json"))
    rows = store.get("x").features
    np.testing.assert_allclose(rows, extract_video(own / "videos" / "x.mp4", [expected])["colours"].features, atol=1e-3)
    assert 0.05 < rows.mean() < 0.95 and store.weights.name == "colours_of_mine:make"


@pytest.mark.parametrize(
    "text", ["trust: colours_of_mine", "trust: [colours_of_mine]", "stores: colours_of_mine:make", "videos: videos"]
)
def test_an_option_file_neither_trusts_nor_permits_nor_names_stores(own, capsys, text):
    (own / "options.yaml").write_text(f"features: {own / 'mine.json'}\n{text}\n")
    with pytest.raises(SystemExit) as stopped:
        extract_main(["--root", str(own), "--dataset", "d", "--config", str(own / "options.yaml")])
    [line] = capsys.readouterr().err.splitlines()
    name = text.partition(":")[0]
    assert stopped.value.code == 2 and f"options.yaml, line 2: {name}: " in line and f"--{name} " in line
    assert "colours_of_mine" not in sys.modules and not (own / "d").exists()


@pytest.mark.parametrize("name", ["trust", "allow_folder", "allow_host"])
def test_in_python_permissions_are_lists_and_no_texts(own, name):
    with pytest.raises(SettingError) as raised:
        ExtractionSettings(dataset=own / "d", features=str(own / "mine.json"), **{name: "colours_of_mine"})
    assert raised.value.setting == name and "list" in raised.value.problem


def test_other_weights_or_code_make_another_store(own, capsys):
    assert call(own, "--trust", "colours_of_mine") == 0
    torch.save({"factor": torch.tensor(2.0)}, own / "two.pt")
    capsys.readouterr()
    assert call(own, "--trust", "colours_of_mine") == 0
    assert "was made with" not in capsys.readouterr().err
    assert call(own, "--trust", "colours_of_mine", "--weights", str(own / "two.pt"), "--precision", "bf16") == 0
    shown = r"precision fp32, weights \S+ \(SHA-256 \w{12}\.\.\.\), but this call has precision bf16, weights .* two.pt"
    assert re.search(f"note: .*was made with {shown} .*no video lacks these features", capsys.readouterr().err)
    shutil.copy(own / "videos" / "x.mp4", own / "videos" / "y.mp4")
    assert call(own, "--trust", "colours_of_mine", "--weights", str(own / "two.pt")) == 2
    said = capsys.readouterr().err
    assert len(set(re.findall(r"SHA-256 (\w{12})", said))) == 2 and "another 'name' in your profile" in said
    shutil.rmtree(own / "d")
    assert call(own, "--trust", "colours_of_mine", "--weights", f"colours={own / 'two.pt'}") == 0
    twice = FeatureStore(DatasetFolder(own, "d").features("colours"))
    once = extract_video(own / "videos" / "x.mp4", [load_extractor(str(own / "mine.json"))])["colours"].features
    np.testing.assert_allclose(twice.get("x").features, 2 * once, atol=2e-3)
    assert twice.weights.name == "colours_of_mine:make with two.pt"


@skip_without(SYSTEM, [] if sys.version_info >= (3, 11) else ["Python 3.11, which reads TOML"])
def test_the_file_may_be_toml(own):
    values = json.loads((own / "mine.json").read_text())
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None]
    (own / "mine.toml").write_text("\n".join(lines))
    values["crop_px"] = 224
    (own / "mine.toml").write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items()))
    assert load_extractor(str(own / "mine.toml")).profile.crop_px == 224


def test_what_cannot_be_used_is_refused_in_one_line(own):
    values = json.loads((own / "mine.json").read_text())
    cases = {
        "no network": ({k: v for k, v in values.items() if k != "network"}, "'network'.*MODULE:FUNCTION"),
        "no dimension": ({k: v for k, v in values.items() if k != "dimension"}, "'dimension'"),
        "no module": (values | {"network": "nowhere_at_all:make"}, r"nowhere_at_all:make .*\(ModuleNotFoundError"),
        "no function": (values | {"network": "colours_of_mine:nothing"}, r"colours_of_mine:nothing .*\(AttributeError"),
        "fails": (values | {"network": "colours_of_mine:fails"}, r"colours_of_mine:fails .*\(KeyError"),
        "no module of torch": (
            values | {"network": "colours_of_mine:wrong"},
            "colours_of_mine:wrong",
        ),
        "an unknown tail": (values | {"window": 4, "tail": "mirror"}, "'mirror'"),
    }
    for name, (content, words) in cases.items():
        (own / "mine.json").write_text(json.dumps(content))
        with pytest.raises((UserError, ValueError), match=words) as refused:
            load_extractor(str(own / "mine.json"))
        assert "\n" not in str(refused.value), name
    (own / "mine.json").write_text("{")
    with pytest.raises(UserError, match=r"mine\.json.*JSON"):
        load_extractor(str(own / "mine.json"))
    with pytest.raises(UserError, match=r"other\.json"):
        load_extractor(str(own / "other.json"))


def test_features_of_another_shape_are_refused(own):
    values = json.loads((own / "mine.json").read_text())
    (own / "mine.json").write_text(json.dumps(values | {"network": "colours_of_mine:wider"}))
    with pytest.raises(UserError, match=r"colours_of_mine:wider .*\[1, .*\[1, 3\]"):
        load_extractor(str(own / "mine.json")).features(np.zeros((1, 224, 224, 3), np.uint8))


@pytest.mark.parametrize(
    ("field", "value", "shown", "allowed"),
    [
        ("resize", "bilinear", "'bilinear'", "'bilinear, libswscale'"),
        ("resize", "", "''", "'bicubic, libswscale'"),
        ("value_range", "-1..1", "'-1..1'", "'0..255'"),
        ("tail", "mirror", "'mirror'", "'loop'"),
        ("precision", "fp8", "'fp8'", "bf16"),
        ("decoding", "any", "'any'", "nvdec"),
        ("fps", 0.1, "0.1", "7.5"),
        ("fps", 1e9, "1000000000", "1,000"),
        ("crop_px", 300, "300", "short_side_px"),
        ("short_side_px", 10_000_000, "10000000", "4,320"),
        ("std", [1, 0, 1], "(1.0, 0.0, 1.0)", " 0"),
        ("std", [1, -1, 1], "(1.0, -1.0, 1.0)", " 0"),
        ("name", "x" * 300, "x" * 300, "200 "),
        ("resize", 3, "3", ""),
        ("stride", "16", '"16"', " 0"),
    ],
)
def test_an_unknown_value_of_a_field_is_one_line(own, capsys, field, value, shown, allowed):
    """By the command and from Python: the file, the field, the value, and what is allowed."""
    values = json.loads((own / "mine.json").read_text()) | {"window": 4, "tail": "loop", field: value}
    (own / "mine.json").write_text(json.dumps(values))
    expected = f"{own / 'mine.json'}: "
    for more in ([], ["--plan"]):
        assert call(own, "--trust", "colours_of_mine", *more) == 2
        [*_, said] = capsys.readouterr().err.splitlines()
        assert expected in said and shown in said and field in said and allowed in said
    with pytest.raises(UserError) as refused:
        load_extractor(str(own / "mine.json"))
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_every_kernel_is_in_the_words_for_them():
    for kernel in KERNELS:
        name, by, *rest = kernel.split(", ")
        assert all(f"{part}'" in KERNELS_HELP for part in (by, *rest)) and name in KERNELS_HELP
