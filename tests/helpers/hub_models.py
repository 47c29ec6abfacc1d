"""Small models of transformers with random weights, as the library itself writes them."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import transformers
from transformers.models.llava_onevision.video_processing_llava_onevision import LlavaOnevisionVideoProcessor
from vlalign.extract.decoding.sampling import sample_frames

SIDE, FRAMES = 32, 4
SQUARE, WIDER = {"height": SIDE, "width": SIDE}, {"shortest_edge": SIDE + 4}
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": SIDE,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FRAMED = SMALL | {"num_frames": FRAMES}
MIXED = {"mit_hidden_size": 32, "mit_intermediate_size": 64, "mit_num_hidden_layers": 1, "mit_num_attention_heads": 2}
TOWERS = {"text_config": TEXT, "vision_config": SMALL}
CROPPED = {"size": WIDER, "crop_size": SQUARE}


def _image(model: str, settings: dict[str, Any], processor: str, **size: Any) -> Callable[[], tuple[Any, Any]]:
    return lambda: (getattr(transformers, model)(**settings), getattr(transformers, processor)(**size))


IMAGE_MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "clip": _image("CLIPConfig", TOWERS | {"projection_dim": 16}, "CLIPImageProcessor", **CROPPED),
    "siglip": _image("SiglipConfig", TOWERS, "SiglipImageProcessor", size=SQUARE),
    "siglip2": _image("SiglipConfig", TOWERS, "SiglipImageProcessor", size=SQUARE, resample=2),
    "dinov2": _image("Dinov2Config", SMALL, "BitImageProcessor", **CROPPED),
    "dinov3": _image("DINOv3ViTConfig", SMALL, "DINOv3ViTImageProcessor", size=SQUARE),
    "vit": _image("ViTConfig", SMALL, "ViTImageProcessor", size=SQUARE),
    "convnextv2": _image(
        "ConvNextV2Config",
        {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "image_size": SIDE},
        "ConvNextImageProcessor",
        size={"shortest_edge": SIDE},
    ),
    "swinv2": _image(
        "Swinv2Config",
        {"image_size": SIDE, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        "ViTImageProcessor",
        size=SQUARE,
    ),
    "radio": _image("RadioConfig", SMALL, "CLIPImageProcessor", **CROPPED),
    "aimv2": _image("Aimv2VisionConfig", SMALL, "CLIPImageProcessor", **CROPPED),
}
"""{name: its configuration and its processor}. Published SigLIP 2 of one size is a SigLIP; its kernel is bilinear."""
VIDEO_MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "videomae": _image("VideoMAEConfig", FRAMED | {"tubelet_size": 2}, "VideoMAEImageProcessor", **CROPPED),
    "timesformer": _image("TimesformerConfig", FRAMED, "VideoMAEImageProcessor", **CROPPED),
    "vivit": _image("VivitConfig", FRAMED | {"tubelet_size": [2, 8, 8]}, "VivitImageProcessor", **CROPPED),
    "xclip": _image(
        "XCLIPConfig",
        {"text_config": TEXT, "vision_config": FRAMED | MIXED, "projection_dim": 32},
        "VideoMAEImageProcessor",
        **CROPPED,
    ),
    "vjepa2": _image(
        "VJEPA2Config",
        {
            "crop_size": SIDE,
            "patch_size": 8,
            "frames_per_clip": FRAMES,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "pred_hidden_size": 32,
            "pred_num_hidden_layers": 1,
            "pred_num_attention_heads": 2,
        },
        "VJEPA2VideoProcessor",
        crop_size=SIDE,
    ),
    "videoprism": lambda: (
        transformers.VideoPrismVisionConfig(
            image_size=36,
            num_frames=FRAMES,
            tubelet_size=[1, 18, 18],
            hidden_size=32,
            intermediate_size=64,
            num_attention_heads=2,
            num_spatial_layers=1,
            num_temporal_layers=1,
        ),
        LlavaOnevisionVideoProcessor(size={"height": 36, "width": 36}),
    ),
}
OPTIONS = {
    "videomae": ":7.5fps",
    "timesformer": ":2fps",
    "vivit": ":15fps",
    "xclip": ":4fps",
    "vjepa2": ":mean:4fps",
    "videoprism": ":mean:8fps",
}
"""{model: what its name must say}"""


def save_model(name: str, folder: Path, seed: int = 0) -> Path:
    """Write a small model of this name with its processor; return the folder."""
    config, processor = (IMAGE_MODELS | VIDEO_MODELS)[name]()
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():  # some begin at 0 or 1, and features would be the same for all pictures
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    path = folder / name
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return path


def own_pixels(folder: Path, window: list[np.ndarray], *, is_cut: bool = False) -> torch.Tensor:
    """Return what the library's own processor makes of frames, which may be of the model's size: [1, (T,) 3, H, W]."""
    processor, asked = _own_processor(folder), {"return_tensors": "pt"}
    asked |= {"do_resize": False, "do_center_crop": False} if is_cut else {}
    if folder.name in IMAGE_MODELS:
        return processor(images=window[0], input_data_format="channels_last", **asked)["pixel_values"]
    made = processor([list(window)], **asked)
    return next(value for key, value in made.items() if key.startswith("pixel_values"))


def _own_processor(folder: Path) -> Any:
    if folder.name in ("vjepa2", "videoprism"):
        return transformers.AutoVideoProcessor.from_pretrained(folder)
    return transformers.AutoImageProcessor.from_pretrained(folder)


@torch.inference_mode()
def own_features(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    """Return the library's own features of pixels, [B, D]."""
    return features_of_model(transformers.AutoModel.from_pretrained(folder).eval(), folder.name, pixels)


def features_of_model(model: Any, name: str, pixels: torch.Tensor) -> torch.Tensor:
    """Return a model's features of pixels, [B, D], by the calls that the library's pages show."""
    if name in ("clip", "siglip", "siglip2"):
        return model.get_image_features(pixel_values=pixels).pooler_output
    if name == "xclip":
        return model.get_video_features(pixel_values=pixels).pooler_output
    if name == "vjepa2":
        return model.get_vision_features(pixel_values_videos=pixels).mean(dim=1)
    if name == "videoprism":
        return model(pixel_values_videos=pixels).last_hidden_state.mean(dim=1)
    output = model(pixel_values=pixels)
    if name == "radio":
        return output.summary
    if name == "videomae":
        return output.last_hidden_state.mean(dim=1)
    return output.last_hidden_state[:, 0] if name == "timesformer" else output.pooler_output


def windows_of(path: Path, fps: float, window: int) -> list[list[np.ndarray]]:
    """Return the frames of each row of a video of 25 frames a second, at their own size, in RGB. A last row that is not
    full begins again with its own frames."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    ticks = np.arange(len(frames))
    taken = [frames[index] for index in sample_frames(ticks, len(frames), Fraction(1, 25), fps)]
    rows = [taken[first : first + window] for first in range(0, len(taken), window)]
    return [(row * window)[:window] for row in rows]
