"""Checkpoints of OpenAI's CLIP and of CLIP4Clip: the folder computes what their code does; others are one line."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers import openai_clip
from helpers.openai_clip import CAPTIONS, TOKENIZER, encode_image, encode_text, random_state, save_like
from torch import nn
from transformers import CLIPModel
from vlalign.extract.cli.convert import main
from vlalign.extract.encoders.text_tower import load_text_tower
from vlalign.extract.extractor import load_extractor
from vlalign.storage.profiles import PROFILES

HEADS = {
    "cross.transformer.resblocks.0.ln_1.weight": torch.ones(4),
    "frame_position_embeddings.weight": torch.zeros(77, 4),
    "transformerClip.resblocks.0.ln_1.weight": torch.ones(4),
    "similarity_dense.bias": torch.zeros(1),
}
"""Entries of CLIP4Clip's heads."""


@pytest.fixture(scope="module")
def like(tmp_path_factory):
    return save_like(tmp_path_factory.mktemp("like"))


def convert(state, folder, like) -> int:
    torch.save(state, folder / "checkpoint.bin")
    return main([str(folder / "checkpoint.bin"), str(folder / "clip"), "--like", str(like)])


def half(state):
    """Return a state as OpenAI's code keeps it: matrices and their biases in half precision, with its sizes."""
    is_single = ("ln_", "embedding", "logit_scale")
    halves = {n: v if any(part in n for part in is_single) else v.half() for n, v in state.items()}
    return halves | {"input_resolution": torch.tensor(224), "context_length": torch.tensor(77)}


LAYOUTS = {
    "openai": lambda state: state,
    "openai, in half precision": half,
    "clip4clip": lambda state: {f"clip.{name}": value for name, value in state.items()} | HEADS,
    "clip4clip, of several devices": lambda state: {f"module.clip.{name}": value for name, value in state.items()},
    "below a name": lambda state: {"epoch": 3, "state_dict": state},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_folder_computes_what_openais_code_does(tmp_path, like, layout, capsys):
    given = LAYOUTS[layout](random_state())
    assert convert(given, tmp_path, like) == 0
    said = capsys.readouterr().err
    notes = ["4 entries", "cross.transformer.resblocks.0.ln_1.weight"] if layout == "clip4clip" else []
    assert said.count("\n") == bool(notes) and all(note in said for note in notes)
    state = {n: v.float() for n, v in half(random_state()).items()} if "half" in layout else random_state()
    model = CLIPModel.from_pretrained(tmp_path / "clip").eval()
    assert all(value.dtype == torch.float32 for value in model.state_dict().values())
    pixels, texts = torch.randn(3, 3, 224, 224), TOKENIZER(CAPTIONS, return_tensors="pt", padding=True)
    with torch.no_grad():
        out = model(**texts, pixel_values=pixels)
    images, sentences = encode_image(state, pixels), encode_text(state, texts["input_ids"])
    for ours, theirs in ((out.image_embeds, images), (out.text_embeds, sentences)):
        torch.testing.assert_close(ours, nn.functional.normalize(theirs, dim=1), atol=1e-5, rtol=1e-5)
    assert model.logit_scale.item() == pytest.approx(4.6, abs=1e-6)


def test_the_folder_extracts_and_reads_texts(tmp_path, like):
    assert convert(random_state(), tmp_path, like) == 0
    profile = PROFILES["clip_vit_b32"]
    extractor = load_extractor("clip_vit_b32", weights=str(tmp_path / "clip"))
    frames = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), dtype=np.uint8)
    mean, std = (torch.tensor(values)[:, None, None] for values in (profile.mean, profile.std))
    pixels = (torch.from_numpy(frames).permute(0, 3, 1, 2) / 255 - mean) / std
    expected = encode_image(random_state(), pixels)
    np.testing.assert_allclose(extractor.features(frames), expected, atol=2e-4)
    tower = load_text_tower(profile, extractor.weights, tmp_path / "clip")
    ids = TOKENIZER(CAPTIONS, return_tensors="pt", padding=True)["input_ids"]
    texts = nn.functional.normalize(encode_text(random_state(), ids), dim=1)
    np.testing.assert_allclose(tower.encode(CAPTIONS), texts, atol=1e-5)


def without(name):
    return lambda state: {n: v for n, v in state.items() if n != name}


REFUSED = {
    "no tensors": (lambda state: {"a": 1}, "expected a dictionary of tensors"),
    "another model": (lambda state: {"a": torch.ones(2)}, "no CLIP in OpenAI's layout"),
    "a resnet": (lambda state: {"visual.layer1.0.conv1.weight": torch.ones(2)}, "a CLIP with a ResNet"),
    "frames at once": (lambda state: state | {"visual.conv2.weight": torch.ones(2)}, "--linear_patch 2d"),
    "an entry too many": (lambda state: state | {"visual.more": torch.ones(2)}, "visual.more is not an entry"),
    "an odd block": (lambda state: state | {"transformer.resblocks.0.attn.k": torch.ones(2)}, "attn.k is not an entry"),
    "a layer too many": (
        lambda state: state | {"transformer.resblocks.7.ln_1.bias": torch.ones(128)},
        "text_model.encoder.layers.7.layer_norm1.bias: expected none, found [128]",
    ),
    "an entry less": (without("visual.ln_pre.bias"), "vision_model.pre_layrnorm.bias: expected [64], found none"),
    "another width": (
        lambda state: state | {"visual.proj": torch.ones(64, 256)},
        "visual_projection.weight: expected [512, 64], found [256, 64]",
    ),
    "not a number": (lambda state: state | {"logit_scale": torch.tensor(float("nan"))}, "not finite"),
    "not a number in float32": (
        lambda state: state | {"visual.proj": torch.full((64, 512), 1e300, dtype=torch.float64)},
        "visual_projection.weight has values that are not finite in float32",
    ),
    "whole numbers": (
        lambda state: state | {"visual.proj": torch.ones(64, 512, dtype=torch.int64)},
        "not an array of floating",
    ),
    "a sparse matrix": (lambda state: state | {"visual.proj": torch.eye(64).to_sparse()}, "not an array of floating"),
    "no memory": (
        lambda state: state | {"visual.proj": torch.ones(64, 512, device="meta")},
        "not an array of floating",
    ),
    "a number that is shown often": (
        lambda state: state | {"visual.proj": torch.ones(()).expand(1 << 20, 1 << 20)},
        "visual_projection.weight: expected [512, 64], found [1048576, 1048576]",
    ),
    "code": (lambda state: state | {"visual.proj": Fraction(1, 2)}, "more than tensors; no code in it is run"),
    "a scalar for a matrix": (
        lambda state: state | {"transformer.resblocks.0.attn.in_proj_weight": torch.ones(())},
        "not a CLIP of",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_checkpoints_are_one_line_and_nothing_is_written(tmp_path, like, case, capsys):
    change, expected = REFUSED[case]
    assert convert(change(random_state()), tmp_path, like) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1 and "checkpoint.bin" in said
    assert not (tmp_path / "clip").exists()


def test_a_torchscript_archive_is_refused_and_not_run(tmp_path, like, capsys):
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "ViT-B-32.pt"))
    assert main([str(tmp_path / "ViT-B-32.pt"), str(tmp_path / "clip"), "--like", str(like)]) == 2
    said = capsys.readouterr().err
    assert "TorchScript" in said and "torch.jit.load(FILE, map_location='cpu').state_dict()" in said
    assert said.count("\n") == 1


def save_without(folder, *parts):
    """Write a folder without the files that have one of these parts in their names."""
    for path in save_like(folder).iterdir():
        if any(part in path.name for part in parts):
            path.unlink()


LIKES = {
    "no folder": (lambda folder: None, "no such folder"),
    "another activation": (lambda folder: save_like(folder, hidden_act="gelu"), "hidden_act is 'gelu'"),
    "other heads": (lambda folder: save_like(folder, num_attention_heads=4), "4 heads for 128 values"),
    "other layers": (lambda folder: save_like(folder, num_hidden_layers=3), "not a CLIP of the sizes"),
    "no tokenizer": (lambda folder: save_without(folder, "token", "vocab"), "has no tokenizer"),
    "no processor": (lambda folder: save_without(folder, "processor"), "has no preprocessor_config.json"),
}


@pytest.mark.parametrize("case", LIKES)
def test_a_folder_of_other_sizes_or_without_files_is_one_line(tmp_path, case, capsys):
    make, expected = LIKES[case]
    make(tmp_path / "like")
    assert convert(random_state(), tmp_path, tmp_path / "like") == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1
    assert not (tmp_path / "clip").exists()


def test_a_link_is_not_written_into(tmp_path, like, capsys):
    (tmp_path / "clip").symlink_to(tmp_path / "elsewhere")
    assert convert(random_state(), tmp_path, like) == 2
    assert "exists" in capsys.readouterr().err and not (tmp_path / "elsewhere").exists()


def test_an_existing_folder_is_not_written_into(tmp_path, like, capsys):
    (tmp_path / "clip").mkdir()
    assert convert(random_state(), tmp_path, like) == 2
    assert "exists" in capsys.readouterr().err and not list((tmp_path / "clip").iterdir())


def test_names_and_sizes_of_the_helper_are_openais():
    """ViT-B/32's published file has 302 entries, without its three sizes; a layer of a tower has 12 of them."""
    assert len(random_state()) == 302 - 2 * 12 * 12 + 2 * openai_clip.NUM_LAYERS * 12
