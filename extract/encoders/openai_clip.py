"""Convert checkpoints in OpenAI's CLIP layout, from OpenAI or CLIP4Clip, to folders of transformers.

OpenAI's layout has the names and shapes of ``clip/model.py`` in openai/CLIP. transformers' script
models/clip/convert_clip_original_pytorch_to_hf.py maps them in the same way.
"""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ...storage.common.device import on_meta_device
from ...storage.common.errors import READ_ERRORS, UserError, refuse_unreadable
from ...storage.common.files import check_regular, read_small
from ...storage.common.terminal import one_line
from ...storage.common.writing import atomic_write, make_folder, open_to_write
from ...storage.hub.files import CONFIG_FILE, ModelFiles
from ...storage.hub.loading import new_network, read_config
from ...storage.untrusted.tensor_shapes import shape_difference
from ..models.weights import TENSORS_FILE, read_state

PREFIX = "clip."
"""Prefix of the names of CLIP's own entries in CLIP4Clip's checkpoints."""
SIZES_OF_OPENAI = {"input_resolution", "context_length", "vocab_size"}
"""Entries of OpenAI's files that are not weights."""
FRAME_PAIRS = "visual.conv2.weight"
"""Entry of the 3D convolution of CLIP4Clip's ``--linear_patch 3d``, which reads several frames at once."""
HEAD_WIDTH = 64
"""Width of each attention head in OpenAI's code."""
COPIED_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json")
COPIED_FILES += ("preprocessor_config.json", "processor_config.json")
MAX_COPIED_BYTES = 64 << 20
"""Maximum size of a copied file."""
NAMES = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "text_projection": "text_projection.weight",
    "logit_scale": "logit_scale",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.proj": "visual_projection.weight",
}
LAYER_NORMS = {
    "ln_final": "text_model.final_layer_norm",
    "visual.ln_pre": "vision_model.pre_layrnorm",  # transformers' spelling
    "visual.ln_post": "vision_model.post_layernorm",
}
OF_BLOCK = {
    "attn.out_proj": "self_attn.out_proj",
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
TRANSPOSED = {"text_projection", "visual.proj"}
"""Matrices that OpenAI's code multiplies from the right."""
BLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d{1,4})\.(.+)")


@dataclass(frozen=True)
class ConvertedClip:
    """The result of a conversion."""

    folder: Path
    num_weights: int
    unused: tuple[str, ...]
    """Entries of the checkpoint that are no part of CLIP, such as CLIP4Clip's ``similarity_dense.weight``."""


def convert_clip(checkpoint: Path, folder: Path, like: Path) -> ConvertedClip:
    """Convert a checkpoint in OpenAI's layout to a folder that transformers and all commands here can read.

    For example, ``convert_clip(Path("pytorch_model.bin.4"), Path("clip4clip"), like=Path("clip-vit-base-patch32"))``,
    then ``vlalign-extract --features hf:./clip4clip`` or ``vlalign-train --text-encoder clip4clip``.

    Args:
        checkpoint: A dictionary of tensors that torch.save wrote, with OpenAI's names, bare or after ``clip.``.
        folder: A new folder.
        like: Folder of a CLIP of the same sizes; its configuration, tokenizer and image processor are copied.

    Raises:
        UserError: The checkpoint is not a CLIP with a vision transformer, ``like`` has other sizes or lacks files, or
            ``folder`` exists.
    """
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder}: exists; expected the name of a new folder")
    _refuse_torchscript(checkpoint)
    copied = _files_to_copy(like)
    expected = _expected_shapes(like)
    state, unused = clip_entries(read_state(checkpoint), checkpoint)
    with refuse_unreadable(checkpoint, f"not a CLIP of the sizes of {like}", "pass --like with one of its sizes"):
        weights = rename_clip(state, checkpoint, expected)
    make_folder(folder)
    for name, content in copied.items():
        with open_to_write(folder / name, "wb") as file:
            file.write(content)
    with atomic_write(folder / TENSORS_FILE) as partial:
        save_file(weights, partial, metadata={"format": "pt"})
    return ConvertedClip(folder, len(weights), unused)


def clip_entries(state: Mapping[str, Tensor], checkpoint: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return CLIP's own entries of a checkpoint, without the prefix, and the names of all others.

    Raises:
        UserError: There is no CLIP with a vision transformer in it.
    """
    is_prefixed = f"{PREFIX}visual.conv1.weight" in state
    prefix = PREFIX if is_prefixed else ""
    found = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    others = tuple(sorted(name for name in state if not name.startswith(prefix)))
    found = {name: value for name, value in found.items() if name not in SIZES_OF_OPENAI}
    if FRAME_PAIRS in found:
        raise UserError(
            f"{checkpoint}: trained with CLIP4Clip's --linear_patch 3d (it has {FRAME_PAIRS}), which transformers' "
            "CLIP does not support; expected a checkpoint of --linear_patch 2d"
        )
    if "visual.proj" not in found:
        is_resnet = any(name.startswith("visual.layer1.") for name in found)
        what = "a CLIP with a ResNet" if is_resnet else "no CLIP in OpenAI's layout"
        some = one_line(", ".join(sorted(state)[:3]))[:200]
        raise UserError(
            f"{checkpoint}: {what}; expected one with a vision transformer, with entries such as visual.proj or "
            f"clip.visual.proj; it has {some or 'none'}"
        )
    return found, others


def rename_clip(
    state: Mapping[str, Tensor], checkpoint: Path, expected: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Return OpenAI's entries with transformers' names, in float32.

    Args:
        state: The entries. An entry may repeat a stored number many times (stride 0): shapes are compared before
            copying.
        checkpoint: File of the entries, for messages.
        expected: {transformers' name: shape} of the expected network.

    Raises:
        UserError: An entry has no counterpart, or is not finite.
        ValueError: The entries do not have these shapes.
    """
    views: dict[str, Tensor] = {}
    for name, value in state.items():
        if not value.is_floating_point() or value.layout != torch.strided or value.device.type != "cpu":
            raise UserError(
                f"{checkpoint}: {one_line(name)[:100]} is not an array of floating-point numbers; "
                "expected a checkpoint of CLIP"
            )
        renamed = _renamed(name, value)
        if not renamed:
            raise UserError(f"{checkpoint}: {one_line(name)[:100]} is not an entry of OpenAI's CLIP; remove it")
        views |= renamed
    if wrong := shape_difference(expected, {name: tuple(value.shape) for name, value in views.items()}):
        raise ValueError(wrong)
    weights = {
        name: value.to(torch.float32, memory_format=torch.contiguous_format, copy=True) for name, value in views.items()
    }
    for name, value in weights.items():
        if not bool(torch.isfinite(value).all()):
            raise UserError(f"{checkpoint}: {name} has values that are not finite in float32; expected finite values")
    return weights


def _renamed(name: str, value: Tensor) -> dict[str, Tensor]:
    """Return transformers' entries for one of OpenAI's entries; empty if OpenAI's CLIP has no such entry."""
    if name in NAMES:
        return {NAMES[name]: value.T if name in TRANSPOSED else value}
    module, _, kind = name.rpartition(".")
    if module in LAYER_NORMS and kind in ("weight", "bias"):
        return {f"{LAYER_NORMS[module]}.{kind}": value}
    if (match := BLOCK.fullmatch(name)) is None:
        return {}
    tower, number, rest = match.groups()
    layer = f"{'vision_model' if tower else 'text_model'}.encoder.layers.{number}"
    if rest in ("attn.in_proj_weight", "attn.in_proj_bias"):
        kind, parts = rest.removeprefix("attn.in_proj_"), value.chunk(3)
        return {f"{layer}.self_attn.{of}_proj.{kind}": part for of, part in zip("qkv", parts, strict=False)}
    module, _, kind = rest.rpartition(".")
    return {f"{layer}.{OF_BLOCK[module]}.{kind}": value} if module in OF_BLOCK and kind in ("weight", "bias") else {}


def _expected_shapes(like: Path) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of the weights of the CLIP in a folder. OpenAI's code must be able to run this CLIP."""
    path = like / CONFIG_FILE
    with refuse_unreadable(path, "not the configuration of a CLIP that OpenAI's code can run"):
        config = read_config(ModelFiles(like, like.name, ""))
        if config.model_type != "clip":
            raise ValueError(f"its model_type is {config.model_type!r}, expected 'clip'")
        for tower in (config.text_config, config.vision_config):
            _check_tower(tower)
        with on_meta_device():
            network = new_network(config)
        return {name: tuple(value.shape) for name, value in network.state_dict().items() if "position_ids" not in name}


def _check_tower(tower: Any) -> None:
    """Raise ``ValueError`` for a tower whose computation differs from OpenAI's code."""
    if tower.hidden_act != "quick_gelu":
        raise ValueError(f"its hidden_act is {tower.hidden_act!r}, expected 'quick_gelu'")
    if tower.num_attention_heads * HEAD_WIDTH != tower.hidden_size:
        heads = f"{tower.num_attention_heads} heads for {tower.hidden_size} values"
        raise ValueError(f"it has {heads}, expected one head for each {HEAD_WIDTH} values")


def _files_to_copy(like: Path) -> dict[str, bytes]:
    """Return the files of ``like`` except its weights: {name: content}."""
    if not (like / CONFIG_FILE).is_file():
        what = f"has no {CONFIG_FILE}" if like.is_dir() else "no such folder"
        raise UserError(f"{like}: {what}; expected the folder of a CLIP, such as openai/clip-vit-base-patch32")
    names = {name for name in (CONFIG_FILE, *COPIED_FILES) if (like / name).is_file()}
    if not names & {"tokenizer.json", "vocab.json"}:
        raise UserError(f"{like}: has no tokenizer.json, nor vocab.json and merges.txt; put CLIP's own there")
    if not names & {"preprocessor_config.json", "processor_config.json"}:
        raise UserError(f"{like}: has no preprocessor_config.json; put the CLIP's own there")
    contents = {}
    for name in sorted(names):
        with refuse_unreadable(like / name, "not a file of a CLIP"):
            contents[name] = read_small(like / name, MAX_COPIED_BYTES)
    return contents


def _refuse_torchscript(checkpoint: Path) -> None:
    if not checkpoint.is_file():
        raise UserError(f"weights {checkpoint}: no such file; expected a checkpoint of CLIP")
    check_regular(checkpoint)
    if not zipfile.is_zipfile(checkpoint):
        return
    errors = (*READ_ERRORS, zipfile.BadZipFile)
    with refuse_unreadable(checkpoint, "not a PyTorch checkpoint", errors=errors), zipfile.ZipFile(checkpoint) as file:
        is_script = any(name.endswith("/constants.pkl") for name in file.namelist())
    if is_script:
        raise UserError(
            f"{checkpoint}: a TorchScript archive, which holds code and is never run here; if you trust it, save its "
            "tensors: torch.save(torch.jit.load(FILE, map_location='cpu').state_dict(), 'clip.pt')"
        )
