"""Weights are read in every published form, and refused if they are another network's."""

import hashlib
import itertools
import pickle
from pathlib import Path

import pytest
import torch
from helpers.golden import pixels
from helpers.networks import GOLDEN, STORED_GOLDEN, assert_golden, golden_state
from vlalign.extract import load_extractor
from vlalign.extract.models import MODELS
from vlalign.extract.models.r2plus1d import R2Plus1D34
from vlalign.extract.models.resnet import ResNet3D152, ResNet152, ResNeXt3D101
from vlalign.extract.models.s3d import S3D
from vlalign.extract.models.weights import load_published
from vlalign.storage.common.errors import UserError

WRAPPINGS = {
    "bare": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "arch": "any", "state_dict": state},
    "module.": lambda state: {f"module.{name}": value for name, value in state.items()},
    "module. in state_dict": lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
}


QUICK = {
    "resnet152": [],
    "i3d_resnext101": ["bare"],
    "i3d_resnet152": [],
    "s3d": ["module. in state_dict"],
}
"""Wrappings of the golden weights that are tried each time; all of them only in the slow tests, since the files are
large. How each is read is tested below, without computing."""


@pytest.mark.parametrize(
    "name, wrapping",
    [
        pytest.param(name, wrapping, marks=[] if wrapping in QUICK[name] else pytest.mark.slow)
        for name, wrapping in itertools.product(STORED_GOLDEN, WRAPPINGS)
    ],
)
def test_golden_values_from_every_wrapping(name, wrapping, checkpoint):
    entry, _, shape = GOLDEN[name]
    extractor = load_extractor(name, weights=checkpoint(WRAPPINGS[wrapping](golden_state(name))))
    rows = extractor.features(pixels(shape))
    assert_golden(rows, entry)
    if name == "s3d":
        assert_golden(extractor.network.video_embedding(rows), "s3d_howto100m/16x224/video_embedding")


@pytest.mark.parametrize(
    "change",
    [
        *WRAPPINGS.values(),
        lambda state: (
            state | {"text_module.fc1.weight": torch.zeros(4, 3), "text_module.word_embd.weight": torch.zeros(5, 3)}
        ),
        lambda state: {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")},
    ],
    ids=[*WRAPPINGS, "with the text module", "without counters"],
)
def test_every_published_form_is_read_whole(s3d_state, checkpoint, change):
    model = S3D()
    path = checkpoint(change(s3d_state))
    weights = load_published(model, path)
    assert (weights.name, weights.sha256) == ("weights.pth", hashlib.sha256(path.read_bytes()).hexdigest())
    for name, value in model.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, s3d_state[name]), name


def without(entry):
    return lambda state: {name: value for name, value in state.items() if name != entry}


def with_entry(entry, shape):
    return lambda state: state | {entry: torch.zeros(shape)}


@pytest.mark.parametrize(
    "change, complaint",
    [
        (without("conv1.conv1.weight"), " 1: conv1.conv1.weight"),
        (without("conv_2b.bn1.running_var"), " 1: conv_2b.bn1.running_var"),
        (without("mixed_5c.gating_b3.fc.bias"), " 1: mixed_5c.gating_b3.fc.bias"),
        (without("fc.weight"), " 1: fc.weight"),
        (with_entry("mixed_6a.conv1.weight", (1,)), " 1: mixed_6a.conv1.weight"),
        (with_entry("text_modules.fc1.weight", (1,)), " 1: text_modules.fc1.weight"),
        (
            with_entry("conv1.conv1.weight", (64, 3, 3, 7, 7)),
            " 1: conv1.conv1.weight (64, 3, 3, 7, 7)",
        ),
        (with_entry("fc.bias", (1,)), " 1: fc.bias (1,)"),
        (lambda state: {}, " 456: conv1.conv1.weight, conv1.bn1.weight, conv1.bn1.bias, ..."),
        (
            lambda state: {f"net.{name}": value for name, value in state.items()},
            " 532: net.conv1.conv1.weight",
        ),
        (lambda state: list(state.values()), "'state_dict'"),
        (lambda state: {"model": state}, "'state_dict'"),
        (lambda state: state["fc.weight"], "'state_dict'"),
        (lambda state: {0: state["fc.weight"]}, "'state_dict'"),
    ],
    ids=[
        "no convolution",
        "no statistics",
        "no gate",
        "no fc",
        "extra",
        "extra, almost the text module",
        "other kernel",
        "other width",
        "nothing in it",
        "other prefix",
        "list",
        "under another name",
        "one tensor",
        "keys that are no text",
    ],
)
def test_unexpected_checkpoint_entries_are_refused_by_name(unfilled_s3d, checkpoint, change, complaint):
    path = checkpoint(
        change({name: torch.zeros(()).expand(value.shape) for name, value in unfilled_s3d.state_dict().items()})
    )
    before = unfilled_s3d.fc.bias.clone()
    with pytest.raises(UserError) as refused:
        load_published(unfilled_s3d, path)
    assert str(path) in str(refused.value) and complaint in str(refused.value)
    assert "\n" not in str(refused.value)
    assert torch.equal(unfilled_s3d.fc.bias, before), "refused, but half filled"


def test_the_loader_refuses_weights_of_another_network(checkpoint):
    with torch.device("meta"):
        entries = ResNet152().state_dict()
    path = checkpoint({name: torch.zeros(()).expand(value.shape) for name, value in entries.items()})
    with pytest.raises(UserError, match=r" 454: conv1\.conv1\.weight, ") as refused:
        load_extractor("s3d", weights=path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "make, num_classes", [(ResNet152, 7), (ResNeXt3D101, 101), (ResNet3D152, 1039), (R2Plus1D34, 359)]
)
def test_the_number_of_classes_comes_from_the_checkpoint(make, num_classes, checkpoint):
    with torch.device("meta"):
        model = make()
        state = {name: torch.zeros(()).expand(value.shape) for name, value in model.state_dict().items()}
    state |= {"fc.weight": torch.ones(num_classes, model.fc.in_features), "fc.bias": torch.zeros(num_classes)}
    load_published(model, checkpoint(state))
    assert model.fc.out_features == num_classes


@pytest.mark.parametrize(
    "change, complaint",
    [
        (without("fc.weight"), " 1: fc.weight"),
        (lambda state: {n: v for n, v in state.items() if not n.startswith("fc.")}, " 2: fc.weight, fc.bias"),
        (
            with_entry("fc.weight", (7, 512)),
            " 2: fc.weight (7, 512) ",
        ),
        (
            with_entry("layer1.0.conv2.weight", (128, 128, 3, 3, 3)),
            "layer1.0.conv2.weight (128, 128, 3, 3, 3)",
        ),
        (without("layer3.22.bn2.running_mean"), " 1: layer3.22.bn2.running_mean"),
        (with_entry("layer3.23.conv1.weight", (512, 1024, 1, 1, 1)), " 1: layer3.23.conv1.weight"),
    ],
    ids=["no classifier's weight", "headless", "narrow classifier", "no groups", "no statistics", "one block more"],
)
def test_other_3d_resnets_are_refused_by_name(change, complaint, checkpoint):
    with torch.device("meta"):
        model = ResNeXt3D101()
    path = checkpoint(change({name: torch.zeros(()).expand(value.shape) for name, value in model.state_dict().items()}))
    with pytest.raises(UserError) as refused:
        load_published(model, path)
    assert str(path) in str(refused.value) and complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name, other", [("i3d_resnext101", "i3d_resnet152"), ("i3d_resnet152", "resnet152"), ("resnet152", "i3d_resnet152")]
)
def test_resnets_do_not_take_each_others_weights(name, other, checkpoint):
    """Many of their entries have the same names."""
    with torch.device("meta"):
        model, entries = MODELS[name](), MODELS[other]().state_dict()
    path = checkpoint({name: torch.zeros(()).expand(value.shape) for name, value in entries.items()})
    with pytest.raises(UserError, match=r" \d+: \S*conv"):
        load_published(model, path)


class _Touches:
    """Unpickled, it runs code: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def truncated(path, state):
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])


def pickle_with_code(path, state):
    path.write_bytes(pickle.dumps({"conv1.conv1.weight": _Touches(path.with_name("executed"))}, protocol=2))


def checkpoint_with_code(path, state):
    torch.save({"state_dict": state, "optimizer": _Touches(path.with_name("executed"))}, path)


@pytest.mark.parametrize(
    "write",
    [
        truncated,
        lambda path, state: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        lambda path, state: path.write_bytes(b""),
        pickle_with_code,
        checkpoint_with_code,
        lambda path, state: None,
        lambda path, state: path.mkdir(),
    ],
    ids=["truncated", "text", "empty", "pickle with code", "checkpoint with code", "missing", "folder"],
)
def test_other_files_are_refused_and_nothing_in_them_is_executed(unfilled_s3d, tmp_path, write):
    path = tmp_path / "weights.pth"
    write(path, {"fc.bias": torch.zeros(512), "fc.weight": torch.zeros(512, 1024)})
    with pytest.raises(UserError) as refused:
        load_published(unfilled_s3d, path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "executed").exists()


def test_the_pickles_above_would_run_code(tmp_path):
    checkpoint_with_code(tmp_path / "weights.pth", {})
    torch.load(tmp_path / "weights.pth", weights_only=False)
    assert (tmp_path / "executed").exists()
