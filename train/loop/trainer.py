"""A training run and its loop."""

import copy
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...storage.captions.idf import read_idf
from ...storage.common.device import AUTO, device_title, memory_used
from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import write_json
from ...storage.common.problems import Problems
from ...storage.common.programs import keep_compiled_code_private
from ...storage.common.progress import progress
from ...storage.common.signals import keeping, uninterrupted
from ...storage.common.terminal import say
from ...storage.common.writing import make_folder, remove_file
from ...storage.dataset.folder import DatasetFolder
from ..data.clip_features import ClipFeatures
from ..data.clips import Clips
from ..data.examples import Examples, ExampleSource, Inputs
from ..data.stores import Stores
from ..data.text_inputs import TextInputs, TextSource, TokenWeights, new_text_inputs
from ..distributed import Workers
from ..models.base import PairModel
from ..models.build import make_model
from ..recipes.train_config import TrainConfig
from ..runs.checkpoint import RunState, load_init, load_model, load_state, save_model, save_state
from ..runs.files import LABELS_FILE, MODEL_FILE, STATE_FILE, TEXT_FOLDER
from ..runs.load import plan_model, read_text_inputs
from ..runs.run_json import describe_inputs, save_run
from ..scoring.scorer import Scorer
from .event_log import EventLog
from .prefetch import PrefetchedInputs
from .step import add_to_average, backward, learning_rate_factor
from .validation import VALIDATIONS, choose_stage_weights

STATISTICS_CLIPS = 2000
"""Upper limit of the training clips over which features are standardised."""
COLLAPSED = 2
"""With this many codewords in use or fewer, a codebook tells nothing apart."""
READ_LOSSES_EVERY = 10
"""Steps of a GPU after which the host reads their losses. Each reading waits until the GPU has done all its work."""
AVERAGED_FROM = 9
"""The running average warms up: the decay of step n is at most n / (n + 9)."""


def set_feature_statistics(model: PairModel, features: ClipFeatures, clips: Clips, *, max_rows: int, seed: int) -> None:
    """Set the mean and standard deviation of each feature, over the rows of at most 2,000 training clips.

    Args:
        model: A model that standardises features.
        features: Of the clips.
        clips: All training clips.
        max_rows: Upper limit of a clip's rows.
        seed: Draws the clips.
    """
    sample = random.Random(seed).sample(clips, min(STATISTICS_CLIPS, len(clips)))
    rows = np.concatenate(features.rows(sample, max_rows)).astype(np.float32)
    std = rows.std(axis=0)
    model.feature_mean.copy_(torch.from_numpy(rows.mean(axis=0)))
    # A feature that never varies says nothing; 1 keeps it at 0 instead of blowing up its rounding errors.
    model.feature_std.copy_(torch.from_numpy(np.where(std > 1e-6 * np.abs(rows).max(), std, 1.0)))


@dataclass(frozen=True)
class TrainingJob:
    """A training: what it reads, where it writes, and which devices it uses."""

    dataset: DatasetFolder
    """Has the captions."""
    config: TrainConfig
    folder: Path
    """The run's folder."""
    init: Path | None = None
    """Folder of the run whose model training starts from."""
    device: str = AUTO
    """As for ``training.train``."""


class Trainer:
    """A run: its examples, its model, its state, and its loop."""

    def __init__(
        self, job: TrainingJob, stores: Stores, workers: Workers, device: torch.device, problems: Problems
    ) -> None:
        """Make the model, or restore it if the run was stopped.

        Args:
            job: What to train.
            stores: The stores of the run's features.
            workers: The processes that train together.
            device: Where the model computes.
            problems: Gets what is skipped.

        Raises:
            UserError: There is nothing to train on, or the folder holds a run of other settings or data.
        """
        self.job, self.config, self.folder = job, job.config, job.folder
        self.workers, self.device, self.problems = workers, device, problems
        self._resumes = (self.folder / STATE_FILE).exists()
        # The order of these steps counts: random weights follow from the seed and from what was drawn before them.
        # 1. What is learned from, and this process's share of each batch.
        features = ClipFeatures(stores.features, self.config.data.grid)
        inputs = describe_inputs(job.dataset, stores, job.init)
        self.examples = self._read_examples(features, stores)
        self.share = workers.share(self.examples.batches.size)
        # 2. The tokenizer, and a pretrained or random text encoder.
        torch.manual_seed(self.config.optimization.seed)
        weights = TokenWeights(read_idf(job.dataset.idf), self.config.data.pos_tags)
        config = self.config
        source = TextSource(config.model.encoder_traits, config.data.max_text_tokens, weights, stores.recordings)
        text_inputs = self._make_text_inputs(source)
        # 3. The model around it.
        plan = plan_model(self.config, features.dim, text_inputs, len(self.examples.labels))
        self.model = make_model(self.config.model, plan)
        # 4. Feature statistics and weights that a new run starts from, on the CPU.
        if not self._resumes:
            self._initialise_model(features)
        # 5. The device; then a copy for the running average, before anything is compiled.
        self.model.to(device)
        self.average = (
            copy.deepcopy(self.model).eval().requires_grad_(False) if self.config.optimization.ema_decay else None
        )
        # 6. Precision and compiled layers.
        self.model.set_precision(self.config.model.precision)
        if self.config.model.compile:
            keep_compiled_code_private()
            self.model.compile_layers()
        # 7. The optimiser.
        # Decoupled weight decay: as a part of the gradient, Adam would scale it up to full steps for rows of the
        # vocabulary and positions that no batch has, and a pretrained model would forget them.
        # Fused, the optimiser takes a ninth of its time on a CPU: it was a quarter of a step of the audio encoder.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.config.optimization.learning_rate,
            weight_decay=self.config.optimization.weight_decay,
            fused=True,
        )
        # 8. What a stopped run resumes from, and how the model is validated.
        self.num_steps = self.config.optimization.steps_for(len(self.examples.clips))
        self.state = RunState(
            self.model,
            self.optimizer,
            self.config,
            inputs,
            self.num_steps,
            self.average,
            shards=self.examples.batches.shards,
        )
        self.scorer = Scorer(self.validated_model, text_inputs, weights, features, self.config)
        self.validation = VALIDATIONS[self.config.objective.task or "retrieval"]
        self._unread: list[tuple[dict[str, float], dict[str, torch.Tensor]]] = []
        """Figures of the steps whose losses were not read yet: those that are known, and the terms of the loss."""
        self.saved_step = 0
        # 9. The saved state, or a new folder.
        if self._resumes:
            load_state(self.folder, self.state)
            self.examples.batches.use_order(self.state.order)
            self.saved_step = self.step if workers.first else 0
        elif workers.first:
            self._start_folder(text_inputs)

    @property
    def validated_model(self) -> PairModel:
        """The model that is validated and saved: the running average, if there is one."""
        return self.model if self.average is None else self.average

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self.state.step

    def _read_examples(self, features: ClipFeatures, stores: Stores) -> Examples:
        config, objective = self.config, self.config.objective
        weighted = objective.pair_weights == "density"
        examples = objective.make_examples(
            ExampleSource(
                self.job.dataset,
                features,
                stores.recordings,
                data=config.data,
                optimization=config.optimization,
                make_batches=lambda pairs: objective.make_batches(pairs, config.data, config.optimization),
                density_neighbors=objective.density_neighbors if weighted else None,
                validation_share=config.validation.validation_share,
                workers=self.workers,
                problems=self.problems,
            )
        )
        if config.data.shuffle_shards and not examples.batches.shards:
            problem = f"{objective.name} learns from {examples.summary}, which are not shuffled by shards; expected 0"
            raise SettingError("shuffle_shards", config.data.shuffle_shards, problem)
        return examples

    def _make_text_inputs(self, source: TextSource) -> TextInputs:
        if self._resumes:
            return read_text_inputs(self.folder / STATE_FILE, source)
        if self.job.init is not None:
            return read_text_inputs(self.job.init / MODEL_FILE, source)
        texts, word_vectors = self.examples.train_texts(), self.job.dataset.word_vectors
        return new_text_inputs(source, self.config.model.text_encoder, texts, word_vectors, self.workers)

    def _initialise_model(self, features: ClipFeatures) -> None:
        config = self.config
        if self.model.standardises:
            clips, max_rows = self.examples.clips, config.data.max_video_tokens
            set_feature_statistics(self.model, features, clips, max_rows=max_rows, seed=config.optimization.seed)
        if self.job.init is not None:
            load_init(self.job.init, self.model)

    def _start_folder(self, text_inputs: TextInputs) -> None:
        make_folder(self.folder)
        text_inputs.save(self.folder / TEXT_FOLDER)
        if self.examples.labels:
            write_json(self.folder / LABELS_FILE, self.examples.labels)

    def make_inputs(self, step: int) -> Inputs:
        """Return this process's share of a step's batch, on the CPU. ``step`` counts from 0."""
        inputs = self.examples.inputs(self.scorer, step, self.share)
        return inputs.pinned() if self.device.type == "cuda" else inputs

    def prefetched_inputs(self, step: int) -> PrefetchedInputs:
        """Return the inputs of this and all later steps, on the device."""
        return PrefetchedInputs(
            range(step, self.num_steps),
            read=lambda later: self.examples.prefetch(later, self.share),
            make=self.make_inputs,
            device=self.device,
        )

    @property
    def _is_last(self) -> bool:
        return self.step == self.num_steps

    @property
    def _is_validated(self) -> bool:
        return self.step % self.config.validation.validate_every == 0

    def train_step(self, inputs: Inputs) -> list[dict[str, float]]:
        """Do one step.

        The host reads the losses of a GPU's steps only now and then, and always before a model or a state is saved.

        Returns:
            The figures of the steps whose losses were read, this one's last: the terms of the loss, their sum as
            "loss", and the learning rate. Empty if none were read.

        Raises:
            UserError: The loss of one of these steps is not finite.
        """
        self.model.train()
        learning_rate = self.config.optimization.learning_rate * learning_rate_factor(
            self.step, self.num_steps, self.config.optimization
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        try:
            terms = backward(self.model, inputs, self.config, self.step, self.workers)
        except Exception:
            # An earlier loss that is not finite explains it. This process's own: others may not come here.
            self._read_losses(Workers())
            raise
        self.optimizer.step()
        self.state.step += 1
        if self.average is not None:
            add_to_average(
                self.average,
                self.model,
                min(self.config.optimization.ema_decay, self.step / (self.step + AVERAGED_FROM)),
            )
        known: dict[str, float] = {"step": self.step, "learning_rate": learning_rate}
        if (codebook := self.model.codebook) is not None and codebook.size:
            known["codewords_in_use"] = codebook.in_use
        self._unread.append((known, {name: term.detach() for name, term in terms.items()}))
        is_read = self.device.type == "cpu" or self.step % READ_LOSSES_EVERY == 0 or self._is_validated or self._is_last
        return self._read_losses(self.workers) if is_read else []

    def _read_losses(self, workers: Workers) -> list[dict[str, float]]:
        """Return the figures of all steps whose losses were not read yet, averaged over ``workers``."""
        if not self._unread:
            return []
        unread, self._unread = self._unread, []
        named = {(known["step"], name): term for known, terms in unread for name, term in terms.items()}
        means, events = workers.mean(named), []
        for known, names in unread:
            step = known["step"]
            terms = {name: means[step, name] for name in names}
            loss = sum(terms.values())
            if not np.isfinite(loss):
                best = self.state.best
                kept = f"the model of step {best['step']} is kept" if best else "no model was kept yet"
                raise UserError(
                    f"{self.folder}: the loss is {loss} at step {step} ({kept}); try a lower --learning-rate and "
                    "another --run-name"
                )
            events.append({"step": step, "loss": loss, **terms, **known})
        return events

    def run(self) -> None:
        """Train to the last step, and keep the model that does best on the validation split."""
        with keeping(lambda: f"the state of step {self.saved_step:,} is kept" if self.saved_step else ""):
            started = time.monotonic()
            log = EventLog(self.folder, self.step) if self.workers.first else None
            inputs_of_steps = self.prefetched_inputs(self.step)
            for inputs in self._shown(inputs_of_steps) if log else inputs_of_steps:
                self._do_step(inputs, log)
            if log:
                log.close()
                self._finish(time.monotonic() - started, inputs_of_steps.waited_share)

    def _do_step(self, inputs: Inputs, log: EventLog | None) -> None:
        events = self.train_step(inputs)
        if self._is_validated or self._is_last:
            if log:
                events[-1] |= self.validation.measure(self.scorer, self.examples)
                self._keep_best(events[-1])
                self._note_collapse(events[-1])
            self.workers.wait()
        if log:
            for event in events:
                log.write(event)
            if self._is_validated and not self._is_last:
                log.flush()
                with uninterrupted():  # a stop in between would not say what is kept
                    save_state(self.folder, self.state)
                    self.saved_step = self.step

    def _shown(self, inputs: PrefetchedInputs) -> Iterable[Inputs]:
        def note() -> str:
            waited = f"{inputs.waited_share:.0%} waiting for features"
            return ", ".join(filter(None, (memory_used(self.device), waited)))

        return progress(inputs, total=self.num_steps, what="training", unit="steps", done=self.step, note=note)

    def _keep_best(self, event: dict[str, Any]) -> None:
        figure, best = self.validation.figure, self.state.best  # less is better
        value = event.get(figure)
        if best is None or value is None or value <= best[figure]:
            self.state.best = {"step": event["step"], figure: value}
            save_model(self.folder, self.validated_model)

    def _note_collapse(self, event: dict[str, Any]) -> None:
        if (codebook := self.model.codebook) is not None and codebook.size and event["codewords_in_use"] <= COLLAPSED:
            in_use = f"{event['codewords_in_use']} of {codebook.size:,} codewords"
            say(f"note: step {self.step:,}: the codebook collapsed: {in_use} are in use")

    def _finish(self, seconds: float, waited_share: float) -> None:
        result = {
            "best": self.state.best,
            "seconds": round(seconds, 1),
            "waited_share": round(waited_share, 3),
            "left_out": self.problems.count,
            "device": device_title(self.device),
            "num_processes": self.workers.size,
            "num_threads": torch.get_num_threads(),  # the last digits of sums depend on it
        }
        save_model(self.folder, self.validated_model, last=True)
        if self.config.validation.stage_weights == "validation":
            load_model(self.folder, self.validated_model)
            if (chosen := choose_stage_weights(self.scorer, self.examples)) is not None:
                result |= {"stage_weights": chosen.weights, "stage_weights_tried": chosen.tried}
        save_run(self.folder, self.config, self.state.inputs, result)
        remove_file(self.folder / STATE_FILE, missing_ok=True)
