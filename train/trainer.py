"""The training loop."""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from ..storage.captions import read_idf
from ..storage.console import Problems, UserError, progress, say
from ..storage.device import find_device
from ..storage.layout import DatasetFolder
from ..storage.records import Caption
from .checkpoint import make_model, save_model
from .config import TrainConfig
from .data import Clip, ClipFeatures, Pairs, read_pairs
from .metrics import retrieval_metrics
from .model import VideoTextModel
from .objectives import OBJECTIVES
from .runs import EVENTS_FILE, TEXT_FOLDER, describe_inputs, features_note, open_stores, save_run
from .scoring import score_matrix
from .text import TokenWeights, new_text_encoder, tokenize

STATISTICS_CLIPS = 2000


def batches(pairs: Pairs, batch_size: int, rng: random.Random) -> Iterator[tuple[list[Clip], list[Caption]]]:
    """Endless batches of different clips, each with one of its captions; every clip comes once before any comes again.

    A last batch that would not be full is left out, unless there are fewer clips than a batch holds.
    """
    captions_of = pairs.captions_of_clips()
    size = min(batch_size, len(pairs.clips))
    while True:
        order = rng.sample(range(len(pairs.clips)), len(pairs.clips))
        for first in range(0, len(order) - size + 1, size):
            numbers = order[first : first + size]
            yield [pairs.clips[n] for n in numbers], [pairs.captions[rng.choice(captions_of[n])] for n in numbers]


def set_feature_statistics(model: VideoTextModel, features: ClipFeatures, pairs: Pairs, config: TrainConfig, rng: random.Random) -> None:
    """Mean and standard deviation of each feature over the rows of (at most 2,000) training clips."""
    clips = rng.sample(pairs.clips, min(STATISTICS_CLIPS, len(pairs.clips)))
    rows = np.concatenate(features.rows(clips, config.max_video_tokens)).astype(np.float32)
    std = rows.std(axis=0)
    model.feature_mean.copy_(torch.from_numpy(rows.mean(axis=0)))
    # A feature that never varies says nothing; 1 keeps it at 0 instead of blowing up its rounding errors.
    model.feature_std.copy_(torch.from_numpy(np.where(std > 1e-6 * np.abs(rows).max(), std, 1.0)))


def learning_rate_factor(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then linear decay to 0 (TACo section 4.3)."""
    warmup = min(config.warmup_steps, config.num_steps // 2)
    if step < warmup:
        return (step + 1) / warmup
    return (config.num_steps - step) / max(config.num_steps - warmup, 1)


def train_run(dataset: DatasetFolder, config: TrainConfig, folder: Path, *, device_name: str, problems: Problems) -> None:
    """Trains the model of ``config`` into ``folder``, and keeps the one with the best mean rank on the validation clips.

    Raises ``UserError`` where there is nothing to train on, and where the loss stops being a number.
    """
    if config.objective not in OBJECTIVES:
        raise UserError(f"--objective {config.objective}: expected one of {', '.join(OBJECTIVES)}")
    device = find_device(device_name)
    features = ClipFeatures(open_stores(dataset, config.features))
    inputs = describe_inputs(dataset, features.stores)
    pairs = read_pairs(dataset, features, problems)
    if len(pairs["train"].clips) < 2:
        raise UserError(f"{dataset.captions}: {len(pairs['train'].clips)} training clips; contrast needs at least 2 with split 'train'")

    torch.manual_seed(config.seed)
    rng = random.Random(config.seed)
    tokenizer, text_encoder = new_text_encoder(config.text_encoder, (c.caption for c in pairs["train"].captions))
    weights = TokenWeights(read_idf(dataset.idf), config.pos_tags)
    model = make_model(config, features.dim, text_encoder)
    set_feature_statistics(model, features, pairs["train"], config, rng)
    model.to(device)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / TEXT_FOLDER)
    text_encoder.config.save_pretrained(folder / TEXT_FOLDER)

    say(
        f"{folder}: {len(pairs['train'].captions):,} captions of {len(pairs['train'].clips):,} clips; settings {json.dumps(asdict(config))}"
    )
    if note := features_note(inputs):
        say(f"note: {note}")

    def validate() -> float | None:
        valid = pairs["validation"]
        if not valid.clips:
            return None
        scores = score_matrix(model, tokenizer, weights, features, valid.captions, valid.clips, config)
        return retrieval_metrics(scores, valid.clip_of_caption)["text_to_video"]["mean_rank"]

    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, config))
    objective, started, best = OBJECTIVES[config.objective], time.monotonic(), None
    stream = batches(pairs["train"], config.batch_size, rng)
    with (folder / EVENTS_FILE).open("w", encoding="utf-8") as events:
        for step in progress(range(1, config.num_steps + 1), total=config.num_steps, what="training", unit="steps"):
            clips, captions = next(stream)
            model.train()
            rows, mask = features.batch(clips, config.max_video_tokens)
            tokens = tokenize(tokenizer, captions, weights, config.max_text_tokens)
            texts = model.encode_texts(**{name: value.to(device) for name, value in tokens.items()})
            terms = objective(texts, model.encode_videos(rows.to(device), mask.to(device)), config)
            loss = sum(terms.values())
            if not torch.isfinite(loss):
                raise UserError(f"{folder}: the loss is {loss.item()} at step {step}; try a lower --learning-rate")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            event = {"step": step, "loss": loss.item(), **{name: term.item() for name, term in terms.items()}}
            if step % config.validate_every == 0 or step == config.num_steps:
                mean_rank = validate()
                event["validation_mean_rank"] = mean_rank
                if best is None or mean_rank is None or mean_rank <= best["validation_mean_rank"]:
                    best = {"step": step, "validation_mean_rank": mean_rank}
                    save_model(folder, model)
                events.flush()
            events.write(json.dumps(event) + "\n")
    save_run(folder, config, inputs, {"best": best, "seconds": round(time.monotonic() - started, 1), "left_out": problems.count})
