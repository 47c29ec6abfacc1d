"""The networks against plain second implementations, published layouts, golden values; checkpoints that are refused."""

import copy
import hashlib
import itertools
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from helpers.networks import (
    CLIPS,
    GOLDEN,
    RESNETS_3D,
    STORED_GOLDEN,
    PlainResNet3D,
    PlainS3D,
    golden_script,
    golden_state,
    plain_r2plus1d,
    published_shapes,
)
from helpers.shared import shared
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from vlalign.extract import load_extractor
from vlalign.extract.extractor import Extractor
from vlalign.extract.models import MODELS, resnet3d
from vlalign.extract.models.r2plus1d import R2Plus1D34
from vlalign.extract.models.resnet152 import ResNet152
from vlalign.extract.models.s3d import S3D
from vlalign.extract.weights import load_published, load_random
from vlalign.storage.common.errors import UserError
from vlalign.storage.profiles import FRAME_MAPS, LOGMEL, PROFILES
from vlalign.storage.records import Weights

GOLDEN_TOLERANCE = 1e-3
"""Of the largest magnitude in a row, on every element."""


WRAPPINGS = {
    "bare": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "arch": "any", "state_dict": state},
    "module.": lambda state: {f"module.{name}": value for name, value in state.items()},
    "module. in state_dict": lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
}


NETWORKS = [*STORED_GOLDEN, "clip_vit_b32", "clip_vit_b32_map", "r2plus1d"]
"""Each once; ``s3d_univl`` is ``s3d`` at another frame rate."""


EXTRACTION_PAGE = Path(__file__).resolve().parents[3] / "docs" / "extraction.md"


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


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two threads that wait for each other are slower than one where anything else runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
def plain_and_our_resnet152() -> tuple[torch.nn.Module, Extractor]:
    with torch.device("meta"):  # sized, not filled
        plain, ours = torchvision.models.resnet152(weights=None).eval(), ResNet152().eval()
    state = random_state(plain, gain=0.5)
    plain.load_state_dict(state, assign=True)
    ours.load_state_dict(state, assign=True)
    plain.fc = torch.nn.Identity()
    weights = Weights(name="random for this test", sha256="")
    return plain, Extractor(
        PROFILES["resnet152"], weights, ours.requires_grad_(False).fold(), torch.device("cpu"), batch_size=8
    )


@pytest.fixture(scope="module")
def plain_and_our_resnet3d() -> dict[str, tuple[PlainResNet3D, torch.nn.Module]]:
    made = {}
    for name in RESNETS_3D:
        with torch.device("meta"):
            ours = MODELS[name]().eval().requires_grad_(False)
        state = random_state(ours, gain=0.5)
        ours.load_state_dict(state, assign=True)
        made[name] = PlainResNet3D(state), ours.fold()
    return made


@pytest.fixture(scope="module")
def extractors(s3d, resnet152) -> dict[str, Extractor]:
    others = [name for name in NETWORKS if name not in ("s3d", "resnet152")]
    return {"s3d": s3d, "resnet152": resnet152} | {name: load_extractor(name, weights="random") for name in others}


@pytest.fixture(scope="module")
def plain_clip() -> CLIPVisionModelWithProjection:
    """transformers' own, filled."""
    plain = CLIPVisionModelWithProjection(CLIPVisionConfig()).eval().requires_grad_(False)
    plain.load_state_dict(random_state(plain, gain=1.0))
    return plain


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


@torch.inference_mode()
@pytest.mark.parametrize(
    "shape", [(2, 3, 16, 48, 48), (1, 3, 5, 33, 47), (3, 3, 1, 32, 40)], ids=lambda shape: "x".join(map(str, shape))
)
@pytest.mark.parametrize("name", RESNETS_3D)
def test_3d_resnets_are_the_published_networks(name, shape, plain_and_our_resnet3d):
    plain, ours = plain_and_our_resnet3d[name]
    assert plain.num_blocks() == ([3, 4, 23, 3] if name == "i3d_resnext101" else [3, 8, 36, 3])
    video = torch.rand(shape)
    expected = plain(video)
    assert expected.std() > 1e-3
    torch.testing.assert_close(ours(video), expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@torch.inference_mode()
def test_r2plus1d_is_torchvisions_up_to_its_pooling(checkpoint):
    """From a published file of another number of classes (the one finetuned on Kinetics), batch norms folded away."""
    plain = plain_r2plus1d(num_classes=400)
    state = random_state(plain, gain=1.0)
    plain.load_state_dict(state)
    plain.fc = torch.nn.Identity()
    extractor = load_extractor("r2plus1d", weights=checkpoint(state))
    frames = torch.randint(0, 256, (2, 32, 48, 40, 3), dtype=torch.uint8)
    mean, std = torch.tensor([0.43216, 0.394666, 0.37645]), torch.tensor([0.22803, 0.22145, 0.216989])
    values = ((frames.float() / 255 - mean) / std).permute(0, 4, 1, 2, 3)
    expected, got = plain(values), extractor.features(frames)
    assert (got.shape, got.dtype) == ((2, 512), torch.float32) and expected.std() > 1e-3
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * expected.abs().max().item())
    turned = plain(values.flip(2))
    assert (turned - expected).abs().max() > 1e-2 * expected.abs().max(), (
        "time must matter, or this compares less than it says"
    )
    torch.testing.assert_close(
        extractor.features(frames.flip(1)), turned, rtol=0, atol=1e-4 * expected.abs().max().item()
    )


@torch.inference_mode()
def test_clip_is_transformers_own_from_pixels_to_embeddings(plain_clip, checkpoint):
    """From a file as it is published, with the half for texts in it, and through transformers' own normalisation."""
    texts = {"text_model.final_layer_norm.weight": torch.ones(512), "text_projection.weight": torch.ones(512, 512)}
    rest = {"logit_scale": torch.tensor(4.6), "vision_model.embeddings.position_ids": torch.arange(50)[None]}
    path = checkpoint(plain_clip.state_dict() | texts | rest)
    frames = torch.randint(0, 256, (3, 224, 224, 3), dtype=torch.uint8)
    made = plain_clip(CLIPImageProcessorPil()(list(frames.numpy()), return_tensors="pt")["pixel_values"])
    patches = plain_clip.visual_projection(plain_clip.vision_model.post_layernorm(made.last_hidden_state[:, 1:]))
    for name, expected in (("clip_vit_b32", made.image_embeds), ("clip_vit_b32_map", patches)):
        got = load_extractor(name, weights=path).features(frames)
        assert (got.shape, got.dtype) == ((3, PROFILES[name].dimension), torch.float32)
        torch.testing.assert_close(got.view(expected.shape), expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@torch.inference_mode()
def test_a_frame_map_has_its_places_where_they_are_in_the_frame(extractors):
    """With attention and perceptrons silenced, a place is what its own 32 x 32 pixels show and nothing else."""
    extractor = extractors["clip_vit_b32_map"]
    extractor = replace(extractor, network=copy.deepcopy(extractor.network))
    for layer in extractor.network.vision_model.encoder.layers:
        for silenced in (layer.self_attn.out_proj, layer.mlp.fc2):
            silenced.weight.zero_()
            silenced.bias.zero_()
    frames = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8)
    changed = frames.clone()
    changed[:, 32 * 2 : 32 * 3, 32 * 5 : 32 * 6] = 0
    maps = torch.cat([extractor.features(frames), extractor.features(changed)]).view(2, *FRAME_MAPS["clip_vit_b32_map"])
    assert (maps[0] != maps[1]).any(dim=-1).nonzero().tolist() == [[2, 5]]


@pytest.mark.parametrize("name", CLIPS)
def test_clip_takes_frames_of_its_own_size_only(name, extractors):
    with pytest.raises(ValueError, match=r"64\*96\) doesn't match model \(224\*224\)"):
        extractors[name].features(torch.zeros(1, 64, 96, 3, dtype=torch.uint8))


@torch.inference_mode()
def test_time_matters_to_3d_resnets(plain_and_our_resnet3d):
    video = torch.rand(1, 3, 8, 32, 32)
    ours, plain = (model(video.flip(2)) - model(video) for model in plain_and_our_resnet3d["i3d_resnext101"])
    assert plain.abs().max() > 1e-2
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_folded_convolutions_do_the_same_with_and_without_onednn(plain_and_our_resnet3d):
    """float64 goes the way that GPUs go."""
    _, ours = plain_and_our_resnet3d["i3d_resnext101"]
    video = torch.rand(2, 3, 4, 33, 32)
    in_float32, in_float64 = ours(video), ours.double()(video.double())
    assert (in_float32.dtype, in_float64.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(in_float32.double(), in_float64, rtol=0, atol=1e-5 * in_float64.abs().max().item())
    torch.testing.assert_close(ours.float()(video), in_float32, rtol=0, atol=0)


PIXELS = {"resnet152": (1, 3, 64, 64), **dict.fromkeys(CLIPS, (1, 3, 224, 224))}


@torch.inference_mode()
@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_loses_little(name, extractors):
    network = extractors[name].network
    if name == "s3d":
        # with the usual gain, values grow until gates flip: steps of 1/255 in the pixels alone then give a cosine of 0.99
        network = S3D().eval().requires_grad_(False)
        network.random_gain = 2.0
        load_random(network, 0)
        network.fold()
    in_bfloat16 = copy.deepcopy(network).to(torch.bfloat16)
    values = [*in_bfloat16.parameters(), *in_bfloat16.buffers()]
    assert {value.dtype for value in values if value.is_floating_point()} == {torch.bfloat16}
    pixels = torch.randn(PIXELS[name]) if name in PIXELS else torch.rand(1, 3, 16, 64, 64)
    row, expected = in_bfloat16(pixels.bfloat16()), network(pixels)
    assert row.dtype == torch.float32 and F.cosine_similarity(row, expected).item() > 0.999
    assert not torch.equal(row, row.bfloat16().float()), "rounded once more, at the very end"


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_of_a_folded_network_stays_behind(name, extractors):
    """A tensor that is neither parameter nor buffer would stay on the CPU, in float32."""
    for module in extractors[name].network.modules():
        known = {"packed", *module._parameters, *module._buffers}
        assert not [key for key, value in vars(module).items() if isinstance(value, torch.Tensor) and key not in known]
        assert not isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm3d)


def assert_golden(rows: torch.Tensor, entry: str) -> None:
    expected = np.load(shared("golden/golden.npz"))[entry]
    assert rows.shape == expected.shape
    error = np.abs(rows.numpy() - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert (error < GOLDEN_TOLERANCE).all(), error


def test_every_profile_has_a_network_and_a_row_in_the_docs():
    assert list(MODELS) == [name for name in PROFILES if name != LOGMEL]
    _, _, table = EXTRACTION_PAGE.read_text(encoding="utf-8").partition("\n| features | model, weights |")
    lines = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.partition("\n\n")[0].splitlines()[2:]
    ]
    rows = {cells[0].split("`")[0]: cells[1:] for cells in lines}
    assert list(rows) == list(PROFILES)
    for name, profile in PROFILES.items():
        _, fps, windows, *_, dimension = rows[name]
        rate = f"{profile.fps:,} samples" if name == LOGMEL else str(profile.fps)
        windows = windows.partition(" (")[0]
        assert (fps, dimension) == (rate, str(profile.dimension)), name
        assert windows == ("1 frame" if profile.window == 1 else f"{profile.window}/{profile.stride}"), name
    assert {name: math.prod(shape) for name, shape in FRAME_MAPS.items()} == {
        name: PROFILES[name].dimension for name in FRAME_MAPS
    }


@pytest.mark.parametrize("name", NETWORKS)
def test_entries_are_the_published_ones(name):
    with torch.device("meta"):
        entries = {n: list(v.shape) for n, v in MODELS[name]().state_dict().items()}
    assert entries == {
        n: shape for n, shape in published_shapes(name).items() if not n.startswith(MODELS[name].left_out)
    }


QUICK = {
    "resnet152": ["bare"],
    "i3d_resnext101": ["bare"],
    "i3d_resnet152": ["module. in state_dict"],
    "s3d": list(WRAPPINGS),
}
"""Wrappings of the golden weights that are tried each time; all of them only in the slow tests, since the files are large."""


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
    rows = extractor.features(golden_script().pixels(shape, 0))
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
        (
            lambda state: {f"net.{name}": value for name, value in state.items()},
            "not known 532: net.conv1.conv1.weight",
        ),
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
    path = checkpoint(
        change({name: torch.zeros(()).expand(value.shape) for name, value in unfilled_s3d.state_dict().items()})
    )
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
    with pytest.raises(
        UserError, match=r"not those of this model; entries missing 454: conv1\.conv1\.weight, "
    ) as refused:
        load_extractor("s3d", weights=path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    "make, num_classes", [(ResNet152, 7), (resnet3d.ResNeXt101, 101), (resnet3d.ResNet152, 1039), (R2Plus1D34, 359)]
)
def test_the_number_of_classes_is_the_files(make, num_classes, checkpoint):
    with torch.device("meta"):
        model = make()
        state = {name: torch.zeros(()).expand(value.shape) for name, value in model.state_dict().items()}
    state |= {"fc.weight": torch.ones(num_classes, model.fc.in_features), "fc.bias": torch.zeros(num_classes)}
    load_published(model, checkpoint(state), left_out=())
    assert model.fc.out_features == num_classes


@pytest.mark.parametrize(
    "change, complaint",
    [
        (without("fc.weight"), "missing 1: fc.weight"),
        (lambda state: {n: v for n, v in state.items() if not n.startswith("fc.")}, "missing 2: fc.weight, fc.bias"),
        (
            with_entry("fc.weight", (7, 512)),
            "of another shape 2: fc.weight (7, 512) for (7, 2048), fc.bias (400,) for (7,)",
        ),
        (
            with_entry("layer1.0.conv2.weight", (128, 128, 3, 3, 3)),
            "layer1.0.conv2.weight (128, 128, 3, 3, 3) for (128, 4, 3, 3, 3)",
        ),
        (without("layer3.22.bn2.running_mean"), "missing 1: layer3.22.bn2.running_mean"),
        (with_entry("layer3.23.conv1.weight", (512, 1024, 1, 1, 1)), "not known 1: layer3.23.conv1.weight"),
    ],
    ids=["no classifier's weight", "headless", "narrow classifier", "no groups", "no statistics", "one block more"],
)
def test_other_3d_resnets_are_refused_by_name(change, complaint, checkpoint):
    with torch.device("meta"):
        model = resnet3d.ResNeXt101()
    path = checkpoint(change({name: torch.zeros(()).expand(value.shape) for name, value in model.state_dict().items()}))
    with pytest.raises(UserError) as refused:
        load_published(model, path, left_out=())
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
    with pytest.raises(UserError, match=r"not those of this model; entries .*conv"):
        load_published(model, path, left_out=())


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
        (truncated, "not a PyTorch checkpoint"),
        (
            lambda path, state: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
            "not a PyTorch checkpoint",
        ),
        (lambda path, state: path.write_bytes(b""), "not a PyTorch checkpoint"),
        (pickle_with_code, "not a PyTorch checkpoint"),
        (checkpoint_with_code, "not a PyTorch checkpoint"),
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
    with pytest.raises(UserError, match=r"'c3d': unknown; expected resnet152, i3d_resnext101, .* or i3d$"):
        load_extractor("c3d", weights="random")


def test_random_weights_depend_on_the_seed_alone(s3d):
    torch.manual_seed(123)
    same, other = load_extractor("s3d", weights="random", seed=0), load_extractor("s3d", weights="random", seed=1)
    assert s3d.weights == same.weights and same.weights.is_random and same.weights.name == "random (seed 0)"
    assert other.weights.sha256 != same.weights.sha256 and other.weights.name == "random (seed 1)"
    frames = torch.randint(0, 256, (1, 16, 32, 32, 3), dtype=torch.uint8)
    rows = s3d.features(frames)
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
        (
            "i3d_resnet152",
            torch.zeros(1, 8, 32, 32, 3, dtype=torch.uint8),
            "uint8 [B, 16, H, W, 3], got torch.uint8 [1, 8, 32, 32, 3]",
        ),
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
        "3D ResNet 8 frames",
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
    [
        ("s3d", (3, 16, 64, 64, 3)),
        ("s3d", (2, 16, 32, 96, 3)),
        ("i3d_resnext101", (3, 16, 48, 48, 3)),
        ("i3d_resnet152", (2, 16, 48, 64, 3)),
        ("resnet152", (3, 64, 96, 3)),
        ("clip_vit_b32", (3, 224, 224, 3)),
        ("clip_vit_b32_map", (3, 224, 224, 3)),
        ("r2plus1d", (3, 32, 32, 40, 3)),
    ],
    ids=lambda value: value if isinstance(value, str) else "x".join(map(str, value)),
)
def test_a_window_alone_and_in_a_batch_in_any_order_gives_the_same_row(name, shape, extractors):
    extractor = extractors[name]
    frames = torch.randint(0, 256, shape, dtype=torch.uint8)
    together = extractor.features(frames)
    alone = torch.cat([extractor.features(frames[i : i + 1]) for i in range(len(frames))])
    assert (F.cosine_similarity(together, alone) > 0.99999).all()
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4 * together.abs().max().item())
    backwards = extractor.features(frames.flip(0)).flip(0)
    torch.testing.assert_close(together, backwards, rtol=0, atol=1e-4 * together.abs().max().item())
    assert not torch.allclose(alone[0], alone[1], rtol=1e-2), "different windows must differ, or this compares nothing"
