"""The networks against plain second implementations, published layouts, golden values; checkpoints that are refused."""

import hashlib
import importlib.util
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from conftest import shared
from vlalign.extract import load_extractor
from vlalign.extract.extractor import Extractor
from vlalign.extract.models.resnet152 import ResNet152
from vlalign.extract.models.s3d import S3D
from vlalign.extract.profiles import PROFILES
from vlalign.extract.weights import load_published
from vlalign.storage.console import UserError
from vlalign.storage.records import Weights

GOLDEN_TOLERANCE = 1e-3
"""Of the largest magnitude in a row, on every element."""

WRAPPINGS = {
    "state_dict": lambda state: {"epoch": 3, "arch": "any", "state_dict": state},
    "module.": lambda state: {f"module.{name}": value for name, value in state.items()},
    "module. in state_dict": lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
}


def random_state(model: torch.nn.Module, gain: float, seed: int = 0) -> dict[str, torch.Tensor]:
    """Entries as a trained network might have them: batch norms are far from the identity."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(7)
            continue
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("running_var"):
            noise = 0.5 + noise.abs()
        elif value.ndim == 1:
            noise = 0.3 * noise + (1.0 if name.endswith("weight") else 0.0)
        else:
            noise *= math.sqrt(gain / value[0].numel())
        state[name] = noise
    return state


class PlainS3D:
    """S3D-G, straight from the entries of its checkpoint, with the 3D operations of its authors' description."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    def conv(self, x, conv, norm, padding):
        x = F.conv3d(x, self.state[f"{conv}.weight"], padding=padding)
        mean, var, weight, bias = (self.state[f"{norm}.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias"))
        return F.relu(F.batch_norm(x, mean, var, weight, bias, training=False, eps=1e-5))

    def point(self, x, name):
        return self.conv(x, f"{name}.conv1", f"{name}.bn1", 0)

    def separable(self, x, name):
        x = self.conv(x, f"{name}.conv1", f"{name}.bn1", (0, 1, 1))
        return self.conv(x, f"{name}.conv2", f"{name}.bn2", (1, 0, 0))

    def gate(self, x, name):
        gate = torch.sigmoid(F.linear(x.mean(dim=(2, 3, 4)), self.state[f"{name}.fc.weight"], self.state[f"{name}.fc.bias"]))
        return x * gate[:, :, None, None, None]

    def pool(self, x, kernel, stride):
        """TensorFlow's SAME: padded with the value 0, the smaller half before."""
        pads = []
        for k, s in zip(reversed(kernel), reversed(stride), strict=True):
            pads += [max(k - s, 0) // 2, math.ceil(max(k - s, 0) / 2)]
        return F.max_pool3d(F.pad(x, pads, value=0.0), kernel, stride, ceil_mode=True)

    def inception(self, x, name):
        branches = [
            self.point(x, f"{name}.conv_b0"),
            self.separable(self.point(x, f"{name}.conv_b1_a"), f"{name}.conv_b1_b"),
            self.separable(self.point(x, f"{name}.conv_b2_a"), f"{name}.conv_b2_b"),
            self.point(F.max_pool3d(x, 3, stride=1, padding=1), f"{name}.conv_b3_b"),
        ]
        return torch.cat([self.gate(branch, f"{name}.gating_b{i}") for i, branch in enumerate(branches)], dim=1)

    def __call__(self, video):
        b, c, t, h, w = video.shape
        x = video.view(b, c, t // 2, 2, h // 2, 2, w // 2, 2).permute(0, 3, 5, 7, 1, 2, 4, 6)
        x = x.reshape(b, 8 * c, t // 2, h // 2, w // 2)
        x = self.conv(x, "conv1.conv1", "conv1.bn1", (1, 2, 2))[:, :, 1:, 1:, 1:]
        x = self.pool(x, (1, 3, 3), (1, 2, 2))
        x = self.gate(self.separable(self.point(x, "conv_2b"), "conv_2c"), "gating")
        x = self.pool(x, (1, 3, 3), (1, 2, 2))
        x = self.inception(self.inception(x, "mixed_3b"), "mixed_3c")
        x = self.pool(x, (3, 3, 3), (2, 2, 2))
        for letter in "bcdef":
            x = self.inception(x, f"mixed_4{letter}")
        x = self.pool(x, (2, 2, 2), (2, 2, 2))
        x = self.inception(self.inception(x, "mixed_5b"), "mixed_5c")
        return x.mean(dim=(2, 3, 4))


@pytest.fixture(scope="module")
def s3d_state() -> dict[str, torch.Tensor]:
    return random_state(S3D(), gain=4.0)


@pytest.fixture(scope="module")
def s3d_in_float64(s3d_state) -> tuple[S3D, PlainS3D]:
    state = {name: value.double() if value.is_floating_point() else value for name, value in s3d_state.items()}
    model = S3D().eval().requires_grad_(False).double()
    model.load_state_dict(state)
    return model.fold(), PlainS3D(state)


@pytest.fixture
def checkpoint(tmp_path):
    """Writes a checkpoint; it is removed after the test, since these are large."""
    path = tmp_path / "weights.pth"

    def write(content) -> Path:
        torch.save(content, path)
        return path

    yield write
    path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def unfilled_s3d():
    return S3D()


@pytest.fixture(scope="module")
def random_s3d():
    return load_extractor("s3d", weights="random")


@pytest.fixture(scope="module")
def plain_and_our_resnet152() -> tuple[torch.nn.Module, Extractor]:
    with torch.device("meta"):  # sized, not filled
        plain, ours = torchvision.models.resnet152(weights=None).eval(), ResNet152().eval()
    state = random_state(plain, gain=0.5)
    plain.load_state_dict(state, assign=True)
    ours.load_state_dict(state, assign=True)
    plain.fc = torch.nn.Identity()
    weights = Weights(name="random for this test", sha256="")
    return plain, Extractor(PROFILES["resnet152"], weights, ours.requires_grad_(False).fold(), torch.device("cpu"), batch_size=8)


@pytest.fixture(scope="module")
def extractors(random_s3d, plain_and_our_resnet152) -> dict[str, Extractor]:
    return {"s3d": random_s3d, "resnet152": plain_and_our_resnet152[1]}


@torch.inference_mode()
@pytest.mark.parametrize(
    "shape",
    [(2, 3, 8, 64, 64), (1, 3, 16, 64, 96), (2, 3, 2, 32, 32), (1, 3, 6, 70, 50)],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_s3d_is_the_published_network(s3d_in_float64, shape):
    model, plain = s3d_in_float64
    video = torch.rand(shape, dtype=torch.float64)
    expected = plain(video)
    assert expected.std() > 1e-3
    torch.testing.assert_close(model(video), expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


@torch.inference_mode()
def test_time_matters_to_s3d(s3d_in_float64):
    """A network that ignored the order of frames would pass tests on still pictures."""
    video = torch.rand(1, 3, 8, 32, 32, dtype=torch.float64)
    ours, plain = (model(video.flip(2)) - model(video) for model in s3d_in_float64)
    assert plain.abs().max() > 1e-3
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-9)


@torch.inference_mode()
def test_s3d_in_float32_through_the_loader(s3d_state, checkpoint):
    extractor = load_extractor("s3d", weights=checkpoint(s3d_state))
    frames = torch.randint(0, 256, (2, 16, 64, 96, 3), dtype=torch.uint8)
    expected = PlainS3D(s3d_state)(frames.movedim(-1, 1).float() / 255)
    got = extractor.features(frames)
    assert (got.shape, got.dtype) == ((2, 1024), torch.float32)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@torch.inference_mode()
def test_resnet152_is_torchvisions_up_to_its_pooling(plain_and_our_resnet152):
    """Batch norms folded away, and without its classifier, at a size that is not square."""
    plain, extractor = plain_and_our_resnet152
    frames = torch.randint(0, 256, (2, 64, 96, 3), dtype=torch.uint8)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = plain(((frames.float() / 255 - mean) / std).permute(0, 3, 1, 2))
    got = extractor.features(frames)
    assert (got.shape, got.dtype) == ((2, 2048), torch.float32) and expected.std() > 1e-3
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * expected.abs().max().item())


def golden_checkpoint(name: str, gain: float) -> tuple[dict[str, torch.Tensor], object]:
    """The published layout filled as the golden values' own script does, and that script."""
    spec = importlib.util.spec_from_file_location("golden_fill", shared("golden/fill.py"))
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    if name == "resnet152":
        with torch.device("meta"):
            shapes = {n: v.shape for n, v in torchvision.models.resnet152(weights=None).state_dict().items()}
    else:
        shapes = json.loads(shared("golden/s3d_howto100m.keys.json").read_text())
    return script.fill({n: torch.empty(tuple(shape)) for n, shape in shapes.items()}, gain), script


def assert_golden(rows: torch.Tensor, entry: str) -> None:
    expected = np.load(shared("golden/golden.npz"))[entry]
    assert rows.shape == expected.shape
    error = np.abs(rows.numpy() - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert (error < GOLDEN_TOLERANCE).all(), error


@pytest.mark.parametrize("name, gain", [("s3d", 4.0), ("resnet152", 1.0)])
def test_golden_values_from_every_wrapping(name, gain, checkpoint):
    state, script = golden_checkpoint(name, gain)
    pixels = script.pixels((2, 16, 224, 224, 3) if name == "s3d" else (2, 224, 224, 3), 0)
    extractor = load_extractor(name, weights=checkpoint(state))
    rows = extractor.features(pixels)
    if name == "s3d":
        assert_golden(rows, "s3d_howto100m/16x224/mixed_5c")
        assert_golden(extractor.network.video_embedding(rows), "s3d_howto100m/16x224/video_embedding")
    else:
        assert_golden(rows, "resnet152/224/pool")
    small = pixels[:1, ..., :64, :64, :]
    expected = extractor.features(small)
    for wrapping in ("state_dict", "module."):
        wrapped = load_extractor(name, weights=checkpoint(WRAPPINGS[wrapping](state)))
        assert torch.equal(wrapped.features(small), expected), wrapping


@pytest.mark.parametrize(
    "change",
    [
        *WRAPPINGS.values(),
        lambda state: state | {"text_module.fc1.weight": torch.zeros(4, 3), "text_module.word_embd.weight": torch.zeros(5, 3)},
        lambda state: {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")},
    ],
    ids=[*WRAPPINGS, "with the text module", "without counters"],
)
def test_every_published_form_is_read_whole(s3d_state, checkpoint, change):
    model = S3D()
    path = checkpoint(change(s3d_state))
    weights = load_published(model, path, left_out=S3D.left_out)
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
        (without("conv1.conv1.weight"), "missing 1: conv1.conv1.weight"),
        (without("conv_2b.bn1.running_var"), "missing 1: conv_2b.bn1.running_var"),
        (without("mixed_5c.gating_b3.fc.bias"), "missing 1: mixed_5c.gating_b3.fc.bias"),
        (without("fc.weight"), "missing 1: fc.weight"),
        (with_entry("mixed_6a.conv1.weight", (1,)), "not known 1: mixed_6a.conv1.weight"),
        (with_entry("text_modules.fc1.weight", (1,)), "not known 1: text_modules.fc1.weight"),
        (
            with_entry("conv1.conv1.weight", (64, 3, 3, 7, 7)),
            "of another shape 1: conv1.conv1.weight (64, 3, 3, 7, 7) for (64, 24, 2, 4, 4)",
        ),
        (with_entry("fc.bias", (1,)), "of another shape 1: fc.bias (1,) for (512,)"),
        (lambda state: {}, "missing 456: conv1.conv1.weight, conv1.bn1.weight, conv1.bn1.bias, ..."),
        (lambda state: {f"net.{name}": value for name, value in state.items()}, "not known 532: net.conv1.conv1.weight"),
        (lambda state: list(state.values()), "expected a dictionary of tensors"),
        (lambda state: {"model": state}, "expected a dictionary of tensors"),
        (lambda state: state["fc.weight"], "expected a dictionary of tensors"),
        (lambda state: {0: state["fc.weight"]}, "expected a dictionary of tensors"),
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
def test_other_entries_are_refused_by_name(unfilled_s3d, checkpoint, change, complaint):
    path = checkpoint(change({name: torch.zeros(()).expand(value.shape) for name, value in unfilled_s3d.state_dict().items()}))
    before = unfilled_s3d.fc.bias.clone()
    with pytest.raises(UserError) as refused:
        load_published(unfilled_s3d, path, left_out=S3D.left_out)
    assert str(path) in str(refused.value) and complaint in str(refused.value)
    assert "\n" not in str(refused.value)
    assert torch.equal(unfilled_s3d.fc.bias, before), "refused, but half filled"


def test_the_loader_refuses_weights_of_another_network(checkpoint):
    with torch.device("meta"):
        entries = ResNet152().state_dict()
    path = checkpoint({name: torch.zeros(()).expand(value.shape) for name, value in entries.items()})
    with pytest.raises(UserError, match=r"not those of this model; entries missing 454: conv1\.conv1\.weight, ") as refused:
        load_extractor("s3d", weights=path)
    assert str(path) in str(refused.value)


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
    "write, complaint",
    [
        (truncated, "no PyTorch checkpoint"),
        (lambda path, state: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "no PyTorch checkpoint"),
        (lambda path, state: path.write_bytes(b""), "no PyTorch checkpoint"),
        (pickle_with_code, "no PyTorch checkpoint"),
        (checkpoint_with_code, "no PyTorch checkpoint"),
        (lambda path, state: None, "no such file"),
        (lambda path, state: path.mkdir(), "no such file"),
    ],
    ids=["truncated", "text", "empty", "pickle with code", "checkpoint with code", "missing", "folder"],
)
def test_no_checkpoint_is_refused_and_nothing_in_it_is_executed(unfilled_s3d, tmp_path, write, complaint):
    path = tmp_path / "weights.pth"
    write(path, {"fc.bias": torch.zeros(512), "fc.weight": torch.zeros(512, 1024)})
    with pytest.raises(UserError) as refused:
        load_published(unfilled_s3d, path, left_out=S3D.left_out)
    assert str(path) in str(refused.value) and complaint in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "executed").exists()


def test_the_pickles_above_would_run_code(tmp_path):
    checkpoint_with_code(tmp_path / "weights.pth", {})
    torch.load(tmp_path / "weights.pth", weights_only=False)
    assert (tmp_path / "executed").exists()


def test_unknown_features_are_refused_with_those_there_are():
    with pytest.raises(UserError, match=r"'c3d': not known; expected resnet152 or s3d"):
        load_extractor("c3d", weights="random")


def test_published_weights_out_of_reach_say_where_to_put_them(tmp_path):
    with pytest.raises(UserError) as refused:
        load_extractor("s3d")
    for part in ("s3d_howto100m.pth", str(tmp_path / "cache" / "weights"), "http://127.0.0.1:9/", "--weights FILE", "--weights random"):
        assert part in str(refused.value)


def test_published_weights_are_taken_from_the_cache(s3d_state, tmp_path):
    path = tmp_path / "cache" / "weights" / "s3d_howto100m.pth"
    path.parent.mkdir(parents=True)
    torch.save(s3d_state, path)
    extractor = load_extractor("s3d")
    path.unlink()
    assert extractor.weights.name == "s3d_howto100m.pth" and not extractor.weights.is_random
    torch.testing.assert_close(extractor.network.fc.weight, s3d_state["fc.weight"], rtol=0, atol=0)


def test_random_weights_depend_on_the_seed_alone(random_s3d):
    torch.manual_seed(123)
    same, other = load_extractor("s3d", weights="random", seed=0), load_extractor("s3d", weights="random", seed=1)
    assert random_s3d.weights == same.weights and same.weights.is_random and same.weights.name == "random (seed 0)"
    assert other.weights.sha256 != same.weights.sha256 and other.weights.name == "random (seed 1)"
    frames = torch.randint(0, 256, (1, 16, 32, 32, 3), dtype=torch.uint8)
    rows = random_s3d.features(frames)
    assert torch.isfinite(rows).all() and rows.std() > 0
    assert torch.equal(same.features(frames), rows)
    assert not torch.allclose(other.features(frames), rows, rtol=1e-2)


@pytest.mark.parametrize(
    "name, frames, wanted",
    [
        ("s3d", torch.zeros(1, 16, 32, 32, 3), "uint8 [B, 16, H, W, 3], got torch.float32 [1, 16, 32, 32, 3]"),
        ("s3d", torch.zeros(1, 16, 32, 32, 3, dtype=torch.int64), "got torch.int64"),
        ("s3d", torch.zeros(16, 32, 32, 3, dtype=torch.uint8), "got torch.uint8 [16, 32, 32, 3]"),
        ("s3d", torch.zeros(1, 15, 32, 32, 3, dtype=torch.uint8), "got torch.uint8 [1, 15, 32, 32, 3]"),
        ("s3d", torch.zeros(1, 32, 32, 32, 3, dtype=torch.uint8), "got torch.uint8 [1, 32, 32, 32, 3]"),
        ("s3d", torch.zeros(1, 3, 16, 32, 32, dtype=torch.uint8), "got torch.uint8 [1, 3, 16, 32, 32]"),
        ("s3d", torch.zeros(1, 16, 32, 32, 4, dtype=torch.uint8), "got torch.uint8 [1, 16, 32, 32, 4]"),
        ("s3d", np.zeros((1, 16, 32, 32, 3), dtype=np.float64), "got torch.float64"),
        ("resnet152", torch.zeros(1, 32, 32, 3), "uint8 [B, H, W, 3], got torch.float32 [1, 32, 32, 3]"),
        ("resnet152", torch.zeros(32, 32, 3, dtype=torch.uint8), "got torch.uint8 [32, 32, 3]"),
        ("resnet152", torch.zeros(1, 16, 32, 32, 3, dtype=torch.uint8), "got torch.uint8 [1, 16, 32, 32, 3]"),
        ("resnet152", torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "got torch.uint8 [1, 3, 32, 32]"),
    ],
    ids=[
        "s3d float",
        "s3d int64",
        "s3d one window without batch",
        "s3d 15 frames",
        "s3d 32 frames",
        "s3d channels first",
        "s3d four channels",
        "s3d numpy float64",
        "resnet152 float",
        "resnet152 one frame without batch",
        "resnet152 windows",
        "resnet152 channels first",
    ],
)
def test_frames_of_another_type_or_shape_are_refused(name, frames, wanted, extractors):
    with pytest.raises(ValueError) as refused:
        extractors[name].features(frames)
    assert str(refused.value).startswith(f"{name}: frames must be uint8 [B, ") and wanted in str(refused.value)


@pytest.mark.parametrize(
    "name, shape",
    [("s3d", (3, 16, 64, 64, 3)), ("s3d", (2, 16, 32, 96, 3)), ("resnet152", (3, 64, 96, 3))],
    ids=lambda value: value if isinstance(value, str) else "x".join(map(str, value)),
)
def test_a_window_alone_and_in_a_batch_gives_the_same_row(name, shape, extractors):
    extractor = extractors[name]
    frames = torch.randint(0, 256, shape, dtype=torch.uint8)
    together = extractor.features(frames)
    alone = torch.cat([extractor.features(frames[i : i + 1]) for i in range(len(frames))])
    assert (F.cosine_similarity(together, alone) > 0.99999).all()
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4 * together.abs().max().item())
    assert not torch.allclose(alone[0], alone[1], rtol=1e-2), "different windows must differ, or this compares nothing"


@pytest.mark.parametrize("size, expected", [((48, 64), (224, 224, 3)), ((64, 48), (224, 224, 3)), ((50, 50), (224, 224, 3))])
def test_s3d_frames_are_the_middle_square(size, expected, random_s3d):
    """A picture that is white left and above of the middle, black elsewhere, is cut in the middle."""
    frame = np.zeros((*size, 3), dtype=np.uint8)
    frame[: size[0] // 2, : size[1] // 2] = 255
    prepared = random_s3d.prepare(frame)
    assert (tuple(prepared.shape), prepared.dtype) == (expected, torch.uint8)
    quarters = prepared.float().mean(dim=2).unflatten(0, (2, 112)).unflatten(2, (2, 112)).mean(dim=(1, 3))
    torch.testing.assert_close(quarters, torch.tensor([[255.0, 0.0], [0.0, 0.0]]), rtol=0, atol=3)


@pytest.mark.parametrize("size, expected", [((48, 64), (224, 298, 3)), ((64, 48), (298, 224, 3)), ((50, 50), (224, 224, 3))])
def test_resnet152_frames_are_whole(size, expected, extractors):
    prepared = extractors["resnet152"].prepare(np.full((*size, 3), 77, dtype=np.uint8))
    assert (tuple(prepared.shape), prepared.dtype) == (expected, torch.uint8)
    assert prepared.unique().tolist() == [77]
