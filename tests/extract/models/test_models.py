"""The networks against plain second implementations, published layouts, golden values; checkpoints that are refused."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from helpers.networks import (
    CLIPS,
    NETWORKS,
    RESNET_MAPS,
    SLOWFASTS,
    PlainResNet3D,
    PlainS3D,
    plain_r2plus1d,
    published_shapes,
    random_state,
)
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from vlalign.extract import load_extractor
from vlalign.extract.extractor import Extractor
from vlalign.extract.models import MODELS
from vlalign.extract.models.resnet import ResNet152
from vlalign.extract.models.s3d import S3D
from vlalign.extract.models.weights import load_random
from vlalign.storage.common.errors import UserError
from vlalign.storage.profiles import FRAME_MAPS, LOGMEL, PROFILES, SHOTS, WITHOUT_NETWORK
from vlalign.storage.records import Weights

pytestmark = pytest.mark.portable

EXTRACTION_PAGE = Path(__file__).resolve().parents[3] / "docs" / "extraction.md"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Two threads that wait for each other are slower than one where anything else runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def s3d_in_float64(s3d_state) -> tuple[S3D, PlainS3D]:
    state = {name: value.double() if value.is_floating_point() else value for name, value in s3d_state.items()}
    model = S3D().eval().requires_grad_(False).double()
    model.load_state_dict(state)
    return model.fold(), PlainS3D(state)


@pytest.fixture
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


@torch.inference_mode()
@pytest.mark.parametrize("name", RESNET_MAPS)
def test_cells_of_a_resnets_map_are_those_of_torchvision(name):
    with torch.device("meta"):
        plain, ours = RESNET_MAPS[name](weights=None).eval(), MODELS[name]().eval()
    state = random_state(plain, gain=0.5)
    plain.load_state_dict(state, assign=True)
    ours.load_state_dict(state, assign=True)
    image = torch.randn(1, 3, 224, 224)
    x = plain.maxpool(plain.relu(plain.bn1(plain.conv1(image))))
    cells = plain.layer4(plain.layer3(plain.layer2(plain.layer1(x))))[0]
    rows = ours.requires_grad_(False).fold()(image)
    height, width, channels = FRAME_MAPS[name]
    assert rows.shape == (1, PROFILES[name].dimension) and rows.dtype == torch.float32
    found = rows.view(height, width, channels)
    for h, w in ((0, 0), (2, 5), (6, 1)):
        torch.testing.assert_close(found[h, w], cells[:, h, w], rtol=1e-3, atol=1e-3 * cells.abs().max().item())


@pytest.fixture(scope="module")
def plain_and_our_resnet3d(request) -> tuple[PlainResNet3D, torch.nn.Module]:
    """The network that a test's parameter names."""
    with torch.device("meta"):
        ours = MODELS[request.param]().eval().requires_grad_(False)
    state = random_state(ours, gain=0.5)
    ours.load_state_dict(state, assign=True)
    return PlainResNet3D(state), ours.fold()


@pytest.fixture
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
def test_s3d_depends_on_the_order_of_frames(s3d_in_float64):
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
@pytest.mark.parametrize(
    "plain_and_our_resnet3d",
    ["i3d_resnext101", pytest.param("i3d_resnet152", marks=pytest.mark.slow)],
    indirect=True,
)
def test_3d_resnets_are_the_published_networks(shape, plain_and_our_resnet3d, request):
    plain, ours = plain_and_our_resnet3d
    name = request.node.callspec.params["plain_and_our_resnet3d"]
    assert plain.num_blocks() == ([3, 4, 23, 3] if name == "i3d_resnext101" else [3, 8, 36, 3])
    video = torch.rand(shape)
    expected = plain(video)
    assert expected.std() > 1e-3
    torch.testing.assert_close(ours(video), expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@pytest.mark.slow
@torch.inference_mode()
def test_r2plus1d_is_torchvisions_up_to_its_pooling(checkpoint):
    """From a published file of another number of classes (the one finetuned on Kinetics), batch norms folded away."""
    plain = plain_r2plus1d(num_classes=400)
    state = random_state(plain, gain=1.0)
    plain.load_state_dict(state)
    plain.fc = torch.nn.Identity()
    extractor = load_extractor("r2plus1d", weights=checkpoint(state))
    frames = torch.randint(0, 256, (2, 32, 32, 24, 3), dtype=torch.uint8)
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


HERO_FRAMES = [*range(0, 60, 2), 59, 59]
"""Of a window of 60: 0, 2.03, 4.06 ... 63 of 32 steps, rounded down, and no more than 59."""
SLOW_FRAMES = [0, 4, 8, 13, 17, 22, 26, 31]
"""Of the 32 that the fast pathway sees."""


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize(
    "name, num_frames, side, millions",
    [("slowfast", 60, 224, 34.57), ("slowfast_r101", 32, 256, 62.83)],
)
def test_slowfast_is_pytorchvideos_own_up_to_its_classifier(name, num_frames, side, millions, checkpoint):
    """From a file as it is published, under ``model_state``; the parameters are those of pytorchvideo's model zoo."""
    plain = SLOWFASTS[name]().eval().requires_grad_(False)
    assert sum(value.numel() for value in plain.parameters()) / 1e6 == pytest.approx(millions, abs=0.005)
    state = random_state(plain, gain=1.0)
    plain.load_state_dict(state)
    plain.blocks[6].proj = torch.nn.Identity()
    extractor = load_extractor(name, weights=checkpoint({"model_state": state, "epoch": 196}))
    frames = torch.randint(0, 256, (1, num_frames, side, side, 3), dtype=torch.uint8)
    values = ((frames.float() / 255 - 0.45) / 0.225).permute(0, 4, 1, 2, 3)
    fast = values[:, :, HERO_FRAMES] if num_frames == 60 else values
    expected, got = plain([fast[:, :, SLOW_FRAMES], fast]), extractor.features(frames)
    assert (got.shape, got.dtype) == ((1, 2304), torch.float32) and expected.std() > 1e-3
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * expected.abs().max().item())
    turned = extractor.features(frames.flip(1))
    assert (turned - expected).abs().max() > 1e-3 * expected.abs().max(), (
        "time must matter, or this compares too little"
    )


@pytest.mark.slow
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


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("extractor", ["clip_vit_b32_map"], indirect=True)
def test_cells_of_a_frame_map_lie_where_they_are_in_the_frame(extractor):
    """With attention and perceptrons silenced, a place is what its own 32 x 32 pixels show and nothing else."""
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


@pytest.mark.slow
@pytest.mark.parametrize("extractor", CLIPS, indirect=True)
def test_clip_takes_frames_of_its_own_size_only(extractor):
    with pytest.raises(ValueError, match=r"64\*96\) doesn't match model \(224\*224\)"):
        extractor.features(torch.zeros(1, 64, 96, 3, dtype=torch.uint8))


@torch.inference_mode()
@pytest.mark.parametrize("plain_and_our_resnet3d", ["i3d_resnext101"], indirect=True)
def test_3d_resnets_depend_on_the_order_of_frames(plain_and_our_resnet3d):
    video = torch.rand(1, 3, 8, 32, 32)
    ours, plain = (model(video.flip(2)) - model(video) for model in plain_and_our_resnet3d)
    assert plain.abs().max() > 1e-2
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("plain_and_our_resnet3d", ["i3d_resnext101"], indirect=True)
def test_folded_convolutions_do_the_same_with_and_without_onednn(plain_and_our_resnet3d):
    """float64 goes the way that GPUs go."""
    _, ours = plain_and_our_resnet3d
    video = torch.rand(2, 3, 4, 33, 32)
    in_float32, in_float64 = ours(video), ours.double()(video.double())
    assert (in_float32.dtype, in_float64.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(in_float32.double(), in_float64, rtol=0, atol=1e-5 * in_float64.abs().max().item())
    torch.testing.assert_close(ours.float()(video), in_float32, rtol=0, atol=0)


PIXELS = {
    "resnet152": (1, 3, 64, 64),
    **dict.fromkeys(RESNET_MAPS, (1, 3, 224, 224)),
    **dict.fromkeys(CLIPS, (1, 3, 224, 224)),
    "slowfast": (1, 3, 60, 224, 224),
    "slowfast_r101": (1, 3, 32, 224, 224),
}


def fast_but(*slow: str) -> list[Any]:
    """Return all networks, those marked slow whose layers another network has, too."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in NETWORKS]


@torch.inference_mode()
@pytest.mark.parametrize(
    "extractor",
    [each for each in fast_but("resnet152", "i3d_resnet152", "r2plus1d", "slowfast") if each != "slowfast_r101"],
    indirect=True,
)
def test_bfloat16_loses_little(extractor):
    name, network = extractor.profile.name, extractor.network
    if name == "s3d":
        # with the usual gain, values grow until gates flip: steps of 1/255 in the pixels alone then give a cosine of
        # 0.99
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
    if name not in RESNET_MAPS:  # they are not pooled: rows are what the last convolution rounded
        assert not torch.equal(row, row.bfloat16().float()), "rounded once more, at the very end"


@pytest.mark.parametrize("extractor", fast_but("i3d_resnet152", "r2plus1d", "slowfast", "slowfast_r101"), indirect=True)
def test_folding_leaves_no_copy_of_the_original_weights(extractor):
    """A tensor that is neither parameter nor buffer would stay on the CPU, in float32."""
    for module in extractor.network.modules():
        known = {"packed", *module._parameters, *module._buffers}
        assert not [key for key, value in vars(module).items() if isinstance(value, torch.Tensor) and key not in known]
        assert not isinstance(module, torch.nn.BatchNorm2d | torch.nn.BatchNorm3d)


def test_every_profile_has_a_network_and_a_row_in_the_docs():
    assert list(MODELS) == [name for name in PROFILES if name not in WITHOUT_NETWORK]
    _, _, table = EXTRACTION_PAGE.read_text(encoding="utf-8").partition("\n| features | model, weights |")
    lines = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.partition("\n\n")[0].splitlines()[2:]
    ]
    rows = {cells[0].split("`")[0]: cells[1:] for cells in lines}
    assert list(rows) == list(PROFILES)
    for name, profile in PROFILES.items():
        _, fps, windows, *_, dimension = rows[name]
        rate = f"{profile.fps:,} samples" if name == LOGMEL else str(profile.fps or "every frame")
        windows = windows.partition(" (")[0]
        if name == SHOTS:
            assert (fps, windows, dimension) == (rate, "1 shot", str(profile.dimension))
            continue
        assert (fps, dimension) == (rate, str(profile.dimension)), name
        assert windows == ("1 frame" if profile.window == 1 else f"{profile.window}/{profile.stride}"), name
    assert {name: math.prod(shape) for name, shape in FRAME_MAPS.items()} == {
        name: PROFILES[name].dimension if name in PROFILES else 7 * 7 * 2048 for name in FRAME_MAPS
    }
    assert set(FRAME_MAPS) - set(PROFILES) == {"tsm_resnet50_map"}, "its weights come with no library"


@pytest.mark.parametrize("name", NETWORKS)
def test_state_dict_entries_have_the_published_names(name):
    with torch.device("meta"):
        entries = {n: list(v.shape) for n, v in MODELS[name]().state_dict().items()}
    assert entries == {
        n: shape for n, shape in published_shapes(name).items() if not n.startswith(MODELS[name].ignored_entries)
    }


def test_unknown_features_are_refused_with_those_there_are():
    with pytest.raises(UserError, match=r"'c3d': .*resnet152, .*i3d_resnext101, .*i3d, .*siglip2"):
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
def test_frames_of_another_type_or_shape_are_refused(name, frames, wanted):
    weights = Weights(name="none", sha256="")
    extractor = Extractor(PROFILES[name], weights, torch.nn.Identity(), torch.device("cpu"), batch_size=1)
    with pytest.raises(ValueError) as refused:
        extractor.features(frames)
    assert (
        str(refused.value).startswith(f"{name}: ")
        and "uint8 [B, " in str(refused.value)
        and wanted in str(refused.value)
    )


BATCHES = {
    **dict.fromkeys(RESNET_MAPS, (3, 224, 224, 3)),
    "s3d": (3, 16, 64, 96, 3),
    "i3d_resnext101": (3, 16, 48, 48, 3),
    "i3d_resnet152": (2, 16, 48, 64, 3),
    "resnet152": (3, 64, 96, 3),
    **dict.fromkeys(CLIPS, (3, 224, 224, 3)),
    "r2plus1d": (3, 32, 32, 40, 3),
    "slowfast": (2, 60, 224, 224, 3),
    "slowfast_r101": (2, 32, 224, 224, 3),
}
"""{network: shape of the frames of a few windows}"""


@pytest.mark.parametrize("extractor", fast_but("i3d_resnet152", "r2plus1d", "slowfast", "slowfast_r101"), indirect=True)
def test_a_window_alone_and_in_a_batch_in_any_order_gives_the_same_row(extractor):
    frames = torch.randint(0, 256, BATCHES[extractor.profile.name], dtype=torch.uint8)
    together = extractor.features(frames)
    alone = torch.cat([extractor.features(frames[i : i + 1]) for i in range(len(frames))])
    assert (F.cosine_similarity(together, alone) > 0.99999).all()
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4 * together.abs().max().item())
    backwards = extractor.features(frames.flip(0)).flip(0)
    torch.testing.assert_close(together, backwards, rtol=0, atol=1e-4 * together.abs().max().item())
    assert not torch.allclose(alone[0], alone[1], rtol=1e-2), "different windows must differ, or this compares nothing"
