"""CLIP's ViT-B/32 (Radford et al. 2021), run by transformers' own vision tower, with the names of openai/clip-vit-base-patch32.

transformers is imported when a network is made, not before: it takes seconds, which nobody should wait for who extracts other features.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ClipViTB32(nn.Module):
    """The vision half of the published file.

    ``forward``: normalised float [B, 3, 224, 224] -> the class token's ``image_embeds`` [B, 512], float32, not L2-normalised.
    Raises ``ValueError`` for another size.
    """

    left_out = ("text_model.", "text_projection.", "logit_scale", "vision_model.embeddings.position_ids")
    classifier = None
    batch_sizes: ClassVar = {"cpu": 16, "cuda": 256}
    random_gain = 1.0  # residual branches add up

    def __init__(self) -> None:
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        super().__init__()
        clip = CLIPVisionModelWithProjection(CLIPVisionConfig())  # its defaults are ViT-B/32's
        self.vision_model, self.visual_projection = clip.vision_model, clip.visual_projection

    def fold(self) -> "ClipViTB32":
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(self.vision_model(x).last_hidden_state[:, 0])

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., 768] -> [..., 512] of the space that CLIP shares with texts, in float32 at least: not rounded at the very end."""
        norm, dtype = self.vision_model.post_layernorm, torch.promote_types(tokens.dtype, torch.float32)
        normalised = F.layer_norm(
            tokens.to(dtype), norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps
        )
        return F.linear(normalised, self.visual_projection.weight.to(dtype))


class ClipViTB32Map(ClipViTB32):
    """The 7 x 7 patch tokens in place of the class token: which part of the frame shows what, for CMCM's fine-grained codes.

    ``forward``: as above -> [B, 25088], float32: 7 rows of 7 places of 512 channels. Layer norm and projection are those of the class
    token, as CLIP4Clip has it, whose frames CMCM quantises (``encode_image(return_hidden=True)``, modules/module_clip.py).

    A row of the store is a whole frame's map, flat (``storage.profiles.FRAME_MAPS`` has its shape). A row for each place would need as
    many rows with the same times; a row that is a window, as everywhere, is what lets clips be cut, rows be drawn and features be
    compared with nothing knowing of maps but the one who asks for height and width.
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(self.vision_model(x).last_hidden_state[:, 1:]).flatten(1)
