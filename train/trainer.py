"""The training loop."""

import contextlib
import json
import math
import random
import resource
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..storage.captions import read_idf
from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.common.progress import progress
from ..storage.common.signals import keeping
from ..storage.common.terminal import say
from ..storage.files import remove_unfinished, write_json, write_text
from ..storage.layout import DatasetFolder
from .checkpoint import load_init, load_state, make_model, save_model, save_state
from .config import TrainConfig
from .data.pairs import ClipFeatures, Pairs
from .data.text import TokenWeights
from .data.text_inputs import new_text_inputs, saved_text_inputs
from .examples import Inputs, make_examples
from .models.gated import GatedPair
from .models.spoken import SpokenPair
from .models.transformer import TextTokens, VideoTextModel, VideoTokens
from .objectives import OBJECTIVES, Batch, Model
from .run_lock import training_in
from .runs import (
    EVENTS_FILE,
    LABELS_FILE,
    LAST_MODEL_FILE,
    MODEL_FILE,
    RUN_FILE,
    STATE_FILE,
    TENSORBOARD_FOLDER,
    TEXT_FOLDER,
    describe_inputs,
    features_note,
    open_recordings,
    open_stores,
    save_run,
)
from .scoring import Scorer
from .workers import Workers, join_workers

WRITTEN = (STATE_FILE, MODEL_FILE, LAST_MODEL_FILE, EVENTS_FILE, LABELS_FILE, RUN_FILE)
"""Files of a run that a training writes whole or not at all."""
STATISTICS_CLIPS = 2000
COLLAPSED = 2
"""Codewords in use in a step: so few tell nothing apart."""
AHEAD = 2
"""Batches that are made while the model computes."""


def set_feature_statistics(
    model: VideoTextModel | SpokenPair, features: ClipFeatures, pairs: Pairs, config: TrainConfig
) -> None:
    """Mean and standard deviation of each feature over the rows of (at most 2,000) training clips."""
    clips = random.Random(config.seed).sample(pairs.clips, min(STATISTICS_CLIPS, len(pairs.clips)))
    rows = np.concatenate(features.rows(clips, config.max_video_tokens)).astype(np.float32)
    std = rows.std(axis=0)
    model.feature_mean.copy_(torch.from_numpy(rows.mean(axis=0)))
    # A feature that never varies says nothing; 1 keeps it at 0 instead of blowing up its rounding errors.
    model.feature_std.copy_(torch.from_numpy(np.where(std > 1e-6 * np.abs(rows).max(), std, 1.0)))


def learning_rate_factor(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then what ``config.schedule`` says: linear decay (TACo section 4.3), a cosine (NCL appendix B) or none (SSML)."""
    warmup = min(config.warmup_steps, config.num_steps // 2)
    if step < warmup:
        return (step + 1) / warmup
    left = (config.num_steps - step) / max(config.num_steps - warmup, 1)
    return {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "constant": 1.0}[config.schedule]


def encode(model: Model, inputs: Inputs, micro_batch_size: int) -> tuple[TextTokens | None, VideoTokens]:
    """A batch's tokens. In micro-batches, what the encoders computed is not kept for the gradient but computed again, a micro-batch at
    a time: the loss over all of them, and its gradient, are those of the large batch."""

    def encode_texts(given: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return _tensors(model.encode_texts(**given))

    def encode_videos(rows: Tensor, mask: Tensor) -> Tensor:
        return model.encode_videos(rows, mask).tokens_BMD

    rows, mask = inputs.rows, inputs.mask
    if not micro_batch_size:
        return model.encode_texts(**inputs.texts) if inputs.texts else None, model.encode_videos(rows, mask)
    num_texts = len(next(iter(inputs.texts.values()))) if inputs.texts else 0
    texts, videos = [], []
    # The tensors are positional arguments: PyTorch keeps the random state of the devices of those and of no others, and where it is not
    # kept, other values are dropped when the part is computed again.
    for part in parts_of(num_texts, micro_batch_size):
        given = {name: value[part] for name, value in inputs.texts.items()}
        texts.append(checkpoint(encode_texts, given, use_reentrant=False))
    for part in parts_of(len(rows), micro_batch_size):
        videos.append(checkpoint(encode_videos, rows[part], mask[part], use_reentrant=False))
    everything = TextTokens(*(torch.cat(of_parts) for of_parts in zip(*texts, strict=True))) if texts else None
    return everything, VideoTokens(torch.cat(videos), mask)


def parts_of(number: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, number, size)]


def _tensors(texts: TextTokens) -> tuple[Tensor, ...]:
    there = texts.tokens_BND, texts.mask_BN, texts.weights_BN
    return there if texts.types_BND is None else (*there, texts.types_BND)


def backward(model: Model, inputs: Inputs, config: TrainConfig, step: int, workers: Workers) -> dict[str, Tensor]:
    """The terms of a batch's loss, of which ``inputs`` is this process's share; leaves the gradient of the whole batch's in the model.

    What is drawn at random depends on the seed, the step and the process alone.
    """
    torch.manual_seed(random.Random(f"{config.seed} step {step} process {workers.rank}").getrandbits(63))
    texts, videos = encode(model, inputs, config.micro_batch_size)
    generator = torch.Generator().manual_seed(random.Random(f"{config.seed} step {step}").getrandbits(63))
    batch = Batch(
        texts,
        videos,
        workers,
        generator,
        config.micro_batch_size or None,
        inputs.weights,
        inputs.video_of,
        inputs.labels,
    )
    terms = OBJECTIVES[config.objective].terms(model, batch, config)
    model.zero_grad(set_to_none=True)
    (sum(terms.values()) / workers.size).backward()
    workers.sum_gradients(model)
    return terms


class Trainer:
    """A run: what it is made of, where it stands, and its loop."""

    def __init__(
        self,
        dataset: DatasetFolder,
        config: TrainConfig,
        folder: Path,
        workers: Workers,
        device: torch.device,
        init: Path | None,
        problems: Problems,
    ) -> None:
        self.config, self.folder, self.workers, self.device, self.problems = config, folder, workers, device, problems
        features = ClipFeatures(open_stores(dataset, config.features), config.grid)
        self.inputs = describe_inputs(dataset, features.stores, init, open_recordings(dataset, config))
        self.examples = make_examples(dataset, config, features, workers, problems)
        train = self.examples.pairs["train"]
        weights = TokenWeights(read_idf(dataset.idf), config.pos_tags)
        self.share = workers.share(self.examples.batches.size)

        torch.manual_seed(config.seed)
        goes_on = (folder / STATE_FILE).exists()
        if init is not None or goes_on:
            text_inputs = saved_text_inputs(
                config, folder / STATE_FILE if goes_on else init / MODEL_FILE, dataset, weights
            )
        else:
            text_inputs = new_text_inputs(config, dataset, weights, self.examples.train_texts())
        self.model = make_model(config, features.dim, text_inputs, len(self.examples.labels))
        if not goes_on and not isinstance(self.model, GatedPair):
            set_feature_statistics(self.model, features, train, config)
        if init is not None and not goes_on:
            load_init(init, self.model)
        self.model.to(device).set_precision(config.precision)
        if config.compile:
            self.model.compile_layers()
        # Decoupled weight decay: as a part of the gradient, Adam would scale it up to full steps for the rows of the vocabulary and of
        # the positions that no batch has, and a pretrained model would forget them.
        # Fused, it takes a ninth of its time on a CPU: it was a quarter of a step of the 1-D audio encoder.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.scorer = Scorer(self.model, text_inputs, weights, features, config)
        self.step, self.best, self.kept_step = 0, None, 0
        if goes_on:
            self.step, self.best = load_state(folder, self.model, self.optimizer, config, self.inputs)
            self.kept_step = self.step if workers.first else 0
        elif workers.first:
            folder.mkdir(parents=True, exist_ok=True)
            text_inputs.save(folder / TEXT_FOLDER)
            if self.examples.labels:
                write_json(folder / LABELS_FILE, self.examples.labels)

    def make_inputs(self, step: int) -> Inputs:
        return self.examples.inputs(self.scorer, step, self.share)

    def inputs_from(self, step: int) -> Iterator[Inputs]:
        """The inputs of this and all later steps, made ahead by another thread."""
        with ThreadPoolExecutor(1) as pool:  # threads, for the stores are mapped and the tokenizer lets others run
            steps = iter(range(step, self.config.num_steps))
            made = [pool.submit(self.make_inputs, number) for number in islice(steps, AHEAD)]
            while made:
                inputs = made.pop(0).result()
                made += [pool.submit(self.make_inputs, number) for number in islice(steps, 1)]
                yield inputs.to(self.device)

    def train_step(self, inputs: Inputs) -> dict[str, float]:
        """One step; returns the terms, their sum as "loss", and the learning rate. Raises ``UserError`` where the loss is no number."""
        self.model.train()
        learning_rate = self.config.learning_rate * learning_rate_factor(self.step, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        terms = self.workers.mean(backward(self.model, inputs, self.config, self.step, self.workers))
        loss = sum(terms.values())
        if not np.isfinite(loss):
            kept = f"the state of step {self.best['step']} is kept" if self.best else "nothing was kept yet"
            raise UserError(
                f"{self.folder}: the loss is {loss} at step {self.step + 1} ({kept}); try a lower --learning-rate and another --run-name"
            )
        self.optimizer.step()
        self.step += 1
        event = {"step": self.step, "loss": loss, **terms, "learning_rate": learning_rate}
        codebook = self.model.codebook
        return event | {"codewords_in_use": codebook.in_use} if codebook is not None and codebook.size else event

    def run(self) -> None:
        """Trains to the last step, and keeps the model that does best on the validation split."""
        with keeping(lambda: f"the state of step {self.kept_step:,} is kept" if self.kept_step else ""):
            self._run()

    def _run(self) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second to import

        started, num_steps = time.monotonic(), self.config.num_steps
        events = open_events(self.folder / EVENTS_FILE, self.step) if self.workers.first else None
        board = (
            SummaryWriter(self.folder / TENSORBOARD_FOLDER, purge_step=self.step + 1) if self.workers.first else None
        )
        stream = self.inputs_from(self.step)
        steps = range(self.step, num_steps)
        for _ in self._shown(steps) if events else steps:
            event = self.train_step(next(stream))
            last = self.step == num_steps
            if self.step % self.config.validate_every == 0 or last:
                if events:
                    event |= self.examples.validate(self.scorer)
                    self._keep(event)
                    if event.get("codewords_in_use", COLLAPSED + 1) <= COLLAPSED:
                        in_use = f"{event['codewords_in_use']} of {self.config.codebook_size:,} codewords"
                        say(f"note: step {self.step:,}: the codebook collapsed: {in_use} are in use")
                self.workers.wait()
            if events:
                events.write(json.dumps(event) + "\n")
                for name, value in event.items():
                    if name != "step":
                        board.add_scalar(name, value, self.step)
                if self.step % self.config.validate_every == 0 and not last:
                    events.flush()
                    board.flush()
                    save_state(self.folder, self.model, self.optimizer, self.config, self.inputs, self.step, self.best)
                    self.kept_step = self.step
        if events:
            events.close()
            board.close()
            result = {
                "best": self.best,
                "seconds": round(time.monotonic() - started, 1),
                "left_out": self.problems.count,
                "device": self.device.type,
                "num_threads": torch.get_num_threads(),  # sums depend on it in their last digits
            }
            save_model(self.folder, self.model, last=True)
            save_run(self.folder, self.config, self.inputs, result)
            (self.folder / STATE_FILE).unlink(missing_ok=True)

    def _shown(self, steps: range) -> Iterable[int]:
        return progress(
            steps,
            total=self.config.num_steps,
            what="training",
            unit="steps",
            done=self.step,
            note=lambda: memory(self.device),
        )

    def _keep(self, event: dict[str, Any]) -> None:
        name = self.examples.judged_by  # less is better
        value = event.get(name)
        if self.best is None or value is None or value <= self.best[name]:
            self.best = {"step": event["step"], name: value}
            save_model(self.folder, self.model)


def open_events(path: Path, step: int) -> TextIO:
    """A file to write a line a step to, with those up to ``step`` in it: later ones are of steps that will be made again."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:step] if step else []
    write_text(path, "".join(lines))
    return path.open("a", encoding="utf-8")


def memory(device: torch.device) -> str:
    """The most that was used, in words."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB on the GPU"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB"


def clean(folder: Path) -> None:
    """Removes what a killed training left half written. Raises ``UserError`` where a training has ended there meanwhile."""
    if (folder / RUN_FILE).exists():
        raise UserError(f"{folder}: a training has just finished there; pass another --run-name NAME")
    if number := sum(remove_unfinished(folder / name) for name in WRITTEN):
        say(f"{folder}: {number} half-written files removed that a killed training left")


def train_run(
    dataset: DatasetFolder,
    config: TrainConfig,
    folder: Path,
    *,
    device_name: str,
    init: Path | None = None,
    problems: Problems,
) -> None:
    """Trains the model of ``config`` into ``folder``; goes on from where it stood if it was stopped.

    Raises ``UserError`` where there is nothing to train on, where ``folder`` holds a run of other settings or another process trains
    there, and where the loss stops being a number.
    """
    with (
        join_workers(device_name) as (workers, device),
        training_in(folder) if workers.first else contextlib.nullcontext(),
    ):
        if workers.first:
            clean(folder)
        trainer = Trainer(dataset, config, folder, workers, device, init, problems)
        if workers.first:
            train = trainer.examples.pairs["train"]
            say(f"{folder}: {len(train.captions):,} captions of {len(train.clips):,} clips")
            if trainer.examples.labels:
                say(f"{folder}: {len(trainer.examples.labels):,} answers or labels to choose from")
            if trainer.step:
                say(f"{folder}: goes on after step {trainer.step:,}")
            if note := features_note(trainer.inputs):
                say(f"note: {note}")
        trainer.run()
