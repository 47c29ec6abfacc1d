"""A data set whose store has frames: pictures of the demo's scenes, and a small CLIP that reads their captions."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor
from vlalign.extract.encoders.hub import HubEncoder
from vlalign.extract.videos.demo import scene_background, scene_frame
from vlalign.preprocess.datasets import demo
from vlalign.storage import Caption, IdfEntry, Profile, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.captions.idf import write_idf
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.hub.names import read_hub_name
from vlalign.storage.profiles import frames_of

from .clips_of_text import word_tokenizer

SIDE, WIDTH = 32, 32
"""Pixels of a frame's side, and width of the space that the CLIP's texts and images share."""


@dataclass(frozen=True)
class Frames:
    """A data set of frames."""

    dataset: DatasetFolder
    clip: Path
    """The folder of the CLIP."""
    store: str
    """Name of the store."""

    @property
    def settings(self) -> dict[str, object]:
        """Settings of a training of both towers of the CLIP."""
        return {
            "dataset": self.dataset.name,
            "features": self.store,
            "encoder": "mean",
            "text_encoder": str(self.clip),
            "video_tower": f"hf:{self.clip}",
            "objective": "ncl",
            "temperature": 0.05,
        }


def make_frames(root: Path, *, num_train: int = 64, num_others: int = 8, num_frames: int = 3) -> Frames:
    """Make the data set: as many clips for training, and as many for validation and for test, of a caption each.

    A third of the clips has a frame less than ``num_frames``.
    """
    dataset, clip = DatasetFolder(root, "frames"), root / "clip"
    scenes = demo.plan_scenes(1, {"train": num_train, "validation": num_others, "test": num_others})
    captions = [
        caption_of(f"v{number:03d}", demo.scene_captions(scene)[0], split)
        for number, (split, scene) in enumerate(scenes)
    ]
    save_small_clip(clip, [caption.caption for caption in captions])
    profile = frames_of(HubEncoder.find(read_hub_name(f"hf:{clip}")).profile, "clip--frames")
    videos = [
        _video(f"v{number:03d}", scene, num_frames - (number % 3 == 2)) for number, (_, scene) in enumerate(scenes)
    ]
    write_frames(dataset, profile, videos)
    write_captions(dataset, captions)
    return Frames(dataset, clip, profile.name)


def write_captions(dataset: DatasetFolder, captions: list[Caption]) -> None:
    """Write captions with their IDF table."""
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": "demo"})
    words = sorted({word for caption in captions for word in caption.words})
    count = {"document_count": 2, "idf": 1.0, "token_count": 2, "token_idf": 1.0}
    write_idf(dataset.idf, [IdfEntry(word=word, part_of_speech="NOUN", **count) for word in words])


def write_frames(dataset: DatasetFolder, profile: Profile, videos: list[VideoFeatures]) -> None:
    """Write a store of frames."""
    none = Weights(name="none", sha256="")
    write_shard(dataset.features(profile.name), profile, none, videos, made_with={}, dtype="uint8")


def save_small_clip(folder: Path, texts: list[str]) -> Path:
    """Write a small CLIP with random weights and its processor, as a hub has it; return the folder."""
    tokenizer = word_tokenizer(texts)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    text = sizes | ends | {"vocab_size": len(tokenizer), "max_position_embeddings": 77}
    text |= {"pad_token_id": tokenizer.eos_token_id}
    vision = sizes | {"image_size": SIDE, "patch_size": 8}
    torch.manual_seed(0)
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)).save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    return folder


def caption_of(video_id: str, text: str, split: str) -> Caption:
    """Return a caption of a whole video, all of whose words are nouns."""
    words = text.split()
    starts = [sum(len(word) + 1 for word in words[:place]) for place in range(len(words))]
    return Caption(
        video_id=video_id,
        caption=text,
        split=split,
        words=words,
        word_starts=starts,
        pos_tags=["NOUN"] * len(words),
    )


def _video(video_id: str, scene: demo.Scene, num_frames: int) -> VideoFeatures:
    background = scene_background(scene, 64, 64)
    pictures = [scene_frame(scene, (place + 0.5) / num_frames, background) for place in range(num_frames)]
    small = [Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for picture in pictures]
    return VideoFeatures(
        video_id=video_id,
        features=np.stack([np.asarray(picture).reshape(-1) for picture in small]),
        start_seconds=np.arange(num_frames, dtype=float),
        end_seconds=np.arange(num_frames, dtype=float) + 1,
        valid_frames=np.ones(num_frames, int),
        duration_seconds=float(num_frames),
    )
