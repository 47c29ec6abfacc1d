"""A small CLIP in OpenAI's layout with random weights, and its forward pass, written from openai/CLIP's description."""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPImageProcessor, CLIPProcessor

from .clips_of_text import word_tokenizer

WIDTHS = {"": 128, "visual.": 64}
"""Width of each tower's tokens, which have a head for each 64 numbers."""
NUM_LAYERS, PROJECTION, SIDE, PATCH, POSITIONS = 2, 512, 224, 32, 77
CAPTIONS = ["a red ball falls", "a blue box", "the ball rolls into the box and falls"]
TOKENIZER = word_tokenizer(CAPTIONS)


def random_state(seed: int = 0) -> dict[str, Tensor]:
    """Return the entries of a checkpoint of OpenAI's, in float32."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / (shape[-1] ** 0.5 if len(shape) > 1 else 2)

    text, image = WIDTHS[""], WIDTHS["visual."]
    state = {
        "token_embedding.weight": drawn(len(TOKENIZER), text),
        "positional_embedding": drawn(POSITIONS, text),
        "text_projection": drawn(text, PROJECTION),
        "logit_scale": torch.tensor(4.6),
        "visual.class_embedding": drawn(image),
        "visual.positional_embedding": drawn((SIDE // PATCH) ** 2 + 1, image),
        "visual.conv1.weight": drawn(image, 3, PATCH, PATCH) / PATCH,
        "visual.proj": drawn(image, PROJECTION),
    }
    norms = {"ln_final": text, "visual.ln_pre": image, "visual.ln_post": image}
    for tower, width in WIDTHS.items():
        for number in range(NUM_LAYERS):
            block = f"{tower}transformer.resblocks.{number}"
            norms |= {f"{block}.ln_1": width, f"{block}.ln_2": width}
            shapes = {"attn.in_proj": (3 * width, width), "attn.out_proj.": (width, width)}
            shapes |= {"mlp.c_fc.": (4 * width, width), "mlp.c_proj.": (width, 4 * width)}
            for name, shape in shapes.items():
                end = "" if name.endswith(".") else "_"
                state |= {f"{block}.{name}{end}weight": drawn(*shape), f"{block}.{name}{end}bias": drawn(shape[0])}
    for name, width in norms.items():
        state |= {f"{name}.weight": 1 + drawn(width) / 4, f"{name}.bias": drawn(width)}
    return state


def save_like(folder: Path, **changes: object) -> Path:
    """Write what ``--like`` needs of a CLIP of these sizes: no weights. ``changes`` are of both towers."""
    towers = {}
    for name, width in (("text_config", WIDTHS[""]), ("vision_config", WIDTHS["visual."])):
        sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": NUM_LAYERS}
        towers[name] = sizes | {"num_attention_heads": width // 64, "projection_dim": PROJECTION} | changes
    ends = {"bos_token_id": TOKENIZER.bos_token_id, "eos_token_id": TOKENIZER.eos_token_id}
    towers["text_config"] |= ends | {"vocab_size": len(TOKENIZER), "max_position_embeddings": POSITIONS}
    towers["vision_config"] |= {"image_size": SIDE, "patch_size": PATCH}
    CLIPConfig(**towers, projection_dim=PROJECTION, architectures=["CLIPModel"]).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    CLIPProcessor(image_processor=CLIPImageProcessor(), tokenizer=TOKENIZER).save_pretrained(folder)
    return folder


def _norm(state: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])


def _linear(state: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])


def _transformer(state: Mapping[str, Tensor], tower: str, x_BND: Tensor, mask: Tensor | None) -> Tensor:
    width = WIDTHS[tower]
    for number in range(NUM_LAYERS):
        block = f"{tower}transformer.resblocks.{number}"
        attention = nn.MultiheadAttention(width, width // 64, batch_first=True)
        names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
        attention.load_state_dict({name: state[f"{block}.attn.{name}"] for name in names})
        h = _norm(state, f"{block}.ln_1", x_BND)
        x_BND = x_BND + attention(h, h, h, need_weights=False, attn_mask=mask)[0]
        h = _linear(state, f"{block}.mlp.c_fc", _norm(state, f"{block}.ln_2", x_BND))
        x_BND = x_BND + _linear(state, f"{block}.mlp.c_proj", h * torch.sigmoid(1.702 * h))
    return x_BND


@torch.no_grad()
def encode_image(state: Mapping[str, Tensor], pixels: Tensor) -> Tensor:
    """Return vectors [B, 512] of normalised images [B, 3, 224, 224]."""
    patches = F.conv2d(pixels, state["visual.conv1.weight"], stride=PATCH).flatten(2).transpose(1, 2)
    first = state["visual.class_embedding"].expand(len(pixels), 1, -1)
    x = torch.cat([first, patches], dim=1) + state["visual.positional_embedding"]
    x = _transformer(state, "visual.", _norm(state, "visual.ln_pre", x), None)
    return _norm(state, "visual.ln_post", x[:, 0]) @ state["visual.proj"]


@torch.no_grad()
def encode_text(state: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    """Return vectors [B, 512] of texts' ids [B, N], read at the highest id of each."""
    x = state["token_embedding.weight"][ids] + state["positional_embedding"][: ids.shape[1]]
    mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
    x = _norm(state, "ln_final", _transformer(state, "", x, mask))
    return x[torch.arange(len(x)), ids.argmax(dim=1)] @ state["text_projection"]
