"""A small CLIP that learned the demo's words: minutes of training, then used like a published one."""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from vlalign.extract.videos.demo import scene_background, scene_frame
from vlalign.preprocess.datasets import demo
from vlalign.storage.profiles import PROFILES

from .clips_of_text import new_clip, save_clip, word_tokenizer

PROFILE = PROFILES["clip_vit_b32"]
NUM_SCENES, NUM_STEPS, BATCH = 800, 400, 64
PROGRESS = (0.15, 0.4, 0.6, 0.85)
"""How far the frames are that it learns from."""


def training_scenes() -> list[demo.Scene]:
    """Return scenes whose combinations of colour, shape and verb are never those of the demo's test split."""
    return [scene for _, scene in demo.plan_scenes(1, {"train": NUM_SCENES})]


def train_clip(folder: Path) -> Path:
    """Train a CLIP on single frames and captions; write it as its publisher would; return the folder."""
    torch.manual_seed(0)
    chance, scenes = random.Random(0), training_scenes()
    captions = [demo.scene_captions(scene) for scene in scenes]
    pictures = [torch.stack([_picture(scene, progress) for progress in PROGRESS]) for scene in scenes]
    tokenizer = word_tokenizer(caption for of_scene in captions for caption in of_scene)
    model = new_clip(tokenizer, width=128, num_layers=3).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, NUM_STEPS, pct_start=0.1)
    for _ in range(NUM_STEPS):
        chosen = chance.sample(range(len(scenes)), BATCH)
        seen = [pictures[index][chance.randrange(len(PROGRESS))] for index in chosen]
        ids = [torch.tensor(tokenizer(chance.choice(captions[index]))["input_ids"]) for index in chosen]
        loss = model(
            input_ids=pad_sequence(ids, batch_first=True, padding_value=tokenizer.eos_token_id),
            attention_mask=pad_sequence([torch.ones(len(of)) for of in ids], batch_first=True),
            pixel_values=torch.stack([_normalised(picture) for picture in seen]),
            return_loss=True,
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return save_clip(model.eval(), tokenizer, folder)


def _picture(scene: demo.Scene, progress: float) -> Tensor:
    """Return a frame as the profile resizes and crops it, uint8 [3, 224, 224]."""
    size = PROFILE.crop_px
    frame = Image.fromarray(scene_frame(scene, progress, scene_background(scene, scene["width"], scene["height"])))
    scale = size / min(frame.size)
    frame = frame.resize([round(side * scale) for side in frame.size], Image.Resampling.BICUBIC)
    left, top = (frame.width - size) // 2, (frame.height - size) // 2
    return torch.from_numpy(np.array(frame.crop((left, top, left + size, top + size)))).permute(2, 0, 1)


def _normalised(picture: Tensor) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (PROFILE.mean, PROFILE.std))
    return (picture.float() / 255 - mean) / std
