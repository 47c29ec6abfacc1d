"""CLIP's ViT-B/32 (Radford et al. 2021), run by transformers' own vision tower, with the parameter names of
openai/clip-vit-base-patch32.

transformers takes seconds to import. It is imported only when a network is made: other features do not wait for it.
"""

from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...storage.common.errors import refuse_unreadable
from ...storage.common.files import read_json
from .network import Network, PublishedFile

CONFIG_FILE = "config.json"
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
MAX_SIZE = 1 << 16
"""Maximum size in a folder's configuration."""
REQUIRED_SIZES = {"image_size": 224, "projection_dim": 512}
"""The settings that the profiles need; all others of a vision tower may differ."""


class ClipViTB32(Network):
    """The vision encoder of the published file.

    ``forward``: normalised float [B, 3, 224, 224] -> the class token's ``image_embeds`` [B, 512], float32, not
    L2-normalised. Raises ``ValueError`` for another size.
    """

    published: ClassVar = {
        # On the hub the file is called pytorch_model.bin. The hub states the SHA-256.
        "clip-vit-base-patch32.bin": PublishedFile(
            ("https://huggingface.co/openai/clip-vit-base-patch32/resolve/main/pytorch_model.bin",),
            sha256="a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f",
            page="https://huggingface.co/openai/clip-vit-base-patch32 (its pytorch_model.bin, under this name)",
        ),
    }
    ignored_entries = ("text_model.", "text_projection.", "logit_scale", "vision_model.embeddings.position_ids")
    batch_sizes: ClassVar = {"cpu": 16, "cuda": 256}

    def __init__(self, **sizes: Any) -> None:
        """Make a vision tower with these sizes (see ``CLIPVisionConfig``); by default, a ViT-B/32."""
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        super().__init__()
        clip = CLIPVisionModelWithProjection(CLIPVisionConfig(**sizes))
        self.vision_model, self.visual_projection = clip.vision_model, clip.visual_projection

    @classmethod
    def of_folder(cls, folder: Path) -> Network:
        """Return the vision tower of a CLIP that ``save_pretrained`` wrote, with the sizes of its configuration.

        Raises:
            UserError: The folder describes no CLIP whose features fit the profile.
        """
        path = folder / CONFIG_FILE
        with refuse_unreadable(path, "not the configuration of a CLIP for these features"):
            return cls(**_sizes(read_json(path)))

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.embed(self.vision_model(x).last_hidden_state[:, 0])

    def embed(self, tokens: Tensor) -> Tensor:
        """Project tokens [..., 768] to the [..., 512] space that CLIP shares with texts, in at least float32."""
        norm, dtype = self.vision_model.post_layernorm, torch.promote_types(tokens.dtype, torch.float32)
        normalised = F.layer_norm(
            tokens.to(dtype), norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps
        )
        return F.linear(normalised, self.visual_projection.weight.to(dtype))


class ClipViTB32Map(ClipViTB32):
    """The 7 x 7 patch tokens instead of the class token.

    They describe each part of the frame, for CMCM's fine-grained codes.

    ``forward``: as above -> [B, 25088], float32: 7 rows of 7 patches of 512 channels. The class token's layer norm and
    projection are used, as in CLIP4Clip, whose frame features CMCM quantises.

    A row of the store is a whole frame's map, flat (``storage.profiles.FRAME_MAPS`` has its shape). A row for each
    patch would need 49 rows with the same times. With one row for a window, as in all stores, code that cuts clips,
    samples rows or compares features need not know about maps.

    Source: CLIP4Clip, ``encode_image(return_hidden=True)`` in modules/module_clip.py.
    """

    frame_vector_width = REQUIRED_SIZES["projection_dim"]

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.embed(self.vision_model(x).last_hidden_state[:, 1:]).flatten(1)

    def with_frame_vectors(self, x: Tensor) -> Tensor:
        """Return the class token's vector, as ``ClipViTB32`` does, followed by the map: [B, 512 + 25088]."""
        return self.embed(self.vision_model(x).last_hidden_state).flatten(1)


def _sizes(about: dict[str, Any]) -> dict[str, Any]:
    """Return the vision tower's sizes from a ``config.json``. Raises ``ValueError`` for impossible sizes."""
    if about.get("model_type") != "clip":
        raise ValueError(f"model_type {str(about.get('model_type'))[:80]!r}, expected 'clip'")
    given = {"image_size": 224, **(about.get("vision_config") or {})}
    given["projection_dim"] = about.get("projection_dim", 512)
    if wrong := [name for name, value in REQUIRED_SIZES.items() if given[name] != value]:
        raise ValueError(f"{wrong[0]} {str(given[wrong[0]])[:80]}, expected {REQUIRED_SIZES[wrong[0]]}")
    sizes = {name: given[name] for name in (*SIZES, *REQUIRED_SIZES, "patch_size") if name in given}
    if wrong := [name for name, value in sizes.items() if type(value) is not int or not 0 < value <= MAX_SIZE]:
        raise ValueError(f"{wrong[0]} {str(sizes[wrong[0]])[:80]}, expected a count")
    if given.get("hidden_act", "quick_gelu") not in ("quick_gelu", "gelu"):
        raise ValueError(f"hidden_act {str(given['hidden_act'])[:80]!r}, expected 'quick_gelu' or 'gelu'")
    return sizes | {name: given[name] for name in ("hidden_act", "layer_norm_eps") if name in given}
