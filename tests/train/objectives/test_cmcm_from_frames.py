"""CMCM's recipes for MSR-VTT, on frames: what transformers' own CLIP gives, and what is trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.clips_of_text import save_clip_with_processor, save_wide_clip
from helpers.frames import caption_of, write_captions, write_frames
from helpers.training import make_trainer
from transformers import CLIPModel
from vlalign.storage import VideoFeatures
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import CLIP, FRAME_PROFILES
from vlalign.train.distributed import Workers
from vlalign.train.loop.step import backward
from vlalign.train.loop.trainer import Trainer
from vlalign.train.recipes.recipes import make_config

SMALL = {"batch_size": 4, "num_steps": 2, "validate_every": 2, "codebook_size": 8, "protocol": ""}
CLIPS = [("v0", 3), ("v1", 2), ("v2", 3), ("v3", 1)]
"""Names of the clips, and their numbers of frames."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> DatasetFolder:
    """Clips of frames of the size that CLIP takes, and beside them a CLIP for images and one for texts."""
    root = tmp_path_factory.mktemp("cmcm")
    made, profile = DatasetFolder(root, "made"), FRAME_PROFILES["clip_vit_b32_frames"]
    rng = np.random.default_rng(0)
    videos = []
    for video_id, number in CLIPS:
        seconds = np.arange(number, dtype=float)
        rows = rng.integers(0, 256, (number, profile.dimension), dtype=np.uint8)
        videos.append(
            VideoFeatures(
                video_id=video_id,
                features=rows,
                start_seconds=seconds,
                end_seconds=seconds + 1,
                valid_frames=np.ones(number, int),
                duration_seconds=float(number),
            )
        )
    write_frames(made, profile, videos)
    texts = {video_id: f"a red ball {video_id}" for video_id, _ in CLIPS}
    write_captions(made, [caption_of(video_id, text, "train") for video_id, text in texts.items()])
    save_clip_with_processor(root / "images")
    save_wide_clip(texts.values(), root / "texts", 512)
    return made


def trainer_of(dataset: DatasetFolder, folder: Path, recipe: str, **settings: Any) -> Trainer:
    """Return the trainer of a recipe, small."""
    given = {**SMALL, "dataset": dataset.name, "text_encoder": str(dataset.root / "texts")}
    given |= {"video_tower": f"clip_vit_b32_map={dataset.root / 'images'}"}
    given |= {"init": "x"} if recipe.endswith("-finetune") else {}
    given |= {"codebook_size": 0} if recipe.endswith("-baseline") else {}
    return make_trainer(dataset, make_config(recipe, given | settings), folder, Workers(), torch.device("cpu"))


@pytest.mark.parametrize("size", [0, 2])
def test_the_baseline_is_clip4clips_mean_of_frames(dataset, tmp_path, size):
    """Section 4.1, "we adopted the vanilla mean-pooling model"; Table 3, "Avg. Pooling + Linear": no layer is added."""
    of = trainer_of(dataset, tmp_path, "cmcm-msrvtt-baseline", micro_batch_size=size)
    of_images, of_texts = (CLIPModel.from_pretrained(dataset.root / name) for name in ("images", "texts"))
    inputs = of.make_inputs(0)
    mean, std = torch.tensor(CLIP.mean), torch.tensor(CLIP.std)
    videos, texts = [], []
    for rows, mask in zip(inputs.rows, inputs.mask, strict=True):
        pixels = (rows[mask].reshape(-1, 224, 224, 3).float() / 255 - mean) / std
        videos.append(of_images.get_image_features(pixel_values=pixels.movedim(-1, 1)).pooler_output.mean(dim=0))
    for ids, mask in zip(inputs.texts["input_ids"], inputs.texts["attention_mask"].bool(), strict=True):
        found = of_texts.get_text_features(input_ids=ids[mask][None], attention_mask=torch.ones(1, int(mask.sum())))
        texts.append(found.pooler_output[0])
    logits = torch.stack(texts) @ torch.stack(videos).T - 1e-3 * torch.eye(len(texts))
    right = torch.arange(len(texts))
    loss = (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    loss.backward()

    terms = backward(of.model.train(), inputs, of.config, 0, of.workers)
    assert terms["contrast"].item() == pytest.approx(loss.item(), rel=1e-4)
    ours = {name: parameter.grad for name, parameter in of.model.named_parameters() if parameter.grad is not None}
    trained = {name for name, parameter in of.model.named_parameters() if parameter.requires_grad}
    assert ours.keys() == trained and not any("embeddings" in name or "pre_layrnorm" in name for name in trained)
    assert {name.split(".")[0] for name in trained} == {"video_tower", "text_encoder"}, "the towers alone"
    expected = {
        "video_tower.network.visual_projection.weight": of_images.visual_projection.weight,
        "text_encoder.projection.weight": of_texts.text_projection.weight,
    }
    for name, parameter in expected.items():
        torch.testing.assert_close(ours[name], parameter.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("size", [0, 2])
def test_with_the_codebook_only_its_modules_are_trained(dataset, tmp_path, size):
    """Section 4.1: "freeze the transformers [...] and update only the modules related to the [...] embedding space"."""
    of = trainer_of(dataset, tmp_path, "cmcm-msrvtt-finetune", micro_batch_size=size)
    before = {name: value.clone() for name, value in of.model.state_dict().items()}
    for step in range(2):
        of.train_step(of.make_inputs(step))
    changed = {name for name, value in of.model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in changed} == {"codebook"}
    assert {name.split(".")[1] for name in changed} >= {"project", "norm", "code", "codewords"}
