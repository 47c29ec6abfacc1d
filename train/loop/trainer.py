"""A training run and its loop."""

import copy
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...storage.common.device import AUTO, device_title, memory_used
from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import write_json
from ...storage.common.problems import Problems
from ...storage.common.programs import keep_compiled_code_private
from ...storage.common.progress import progress
from ...storage.common.signals import report_saved_work, uninterrupted
from ...storage.common.terminal import say
from ...storage.common.writing import make_folder, remove_file
from ...storage.dataset.folder import DatasetFolder
from ..data.clip_features import ClipFeatures
from ..data.clips import Clip, Clips
from ..data.examples import Examples, ExampleSource, Inputs, PairExamples
from ..data.extra_inputs import ExtraInputs
from ..data.pair_weights import Density
from ..data.stores import Stores
from ..data.text_inputs import (
    TextInputs,
    TextSource,
    TokenWeights,
    WordSentenceInputs,
    new_text_inputs,
    save_text_inputs,
)
from ..distributed import Workers
from ..models.base import PairModel
from ..models.build import make_model
from ..models.tokens import ClipRows
from ..models.words import WordPair
from ..objectives.base import Objective
from ..recipes.train_config import TrainConfig
from ..runs.checkpoint import RunState, load_init, load_model, load_state, save_model, save_state
from ..runs.files import LABELS_FILE, MODEL_FILE, STATE_FILE, TEXT_FOLDER, VIDEO_FOLDER
from ..runs.load import plan_model, read_text_inputs, read_token_weights, read_video_tower
from ..runs.run_json import describe_inputs, save_run
from ..scoring.scorer import Scorer
from ..settings import SMALL_TEXT_ENCODER
from .bert_adam import BertAdam
from .event_log import EventLog, logged
from .parameter_groups import FACTOR, SCHEDULE, parameter_groups
from .prefetch import PrefetchedInputs
from .solving import Solver
from .step import backward, learning_rate_factor, update_ema
from .validation import VALIDATIONS, report_kept

if TYPE_CHECKING:
    from ..models.video_tower import VideoTower

MAX_STATISTICS_CLIPS = 2000
"""Maximum number of training clips for the mean and standard deviation of features."""
MAX_FRAMES_STATISTICS_CLIPS = 200
"""The same if the model computes the features from frames."""
MAX_COLLAPSED_CODEWORDS = 2
"""A codebook with at most this many codewords in use has collapsed: it hardly distinguishes anything."""
READ_LOSSES_EVERY = 10
"""On a GPU, losses are read only every so many steps, since each read waits until the GPU has done all its work."""
EMA_WARMUP = 9
"""The decay of the running average is at most n / (n + EMA_WARMUP) after n steps."""


def set_feature_statistics(model: PairModel, features: ClipFeatures, clips: Clips, *, max_rows: int, seed: int) -> None:
    """Set the mean and standard deviation of each feature, over the rows of at most 2,000 training clips.

    If the model computes the features from frames, at most 200 clips are used.

    Args:
        model: A model that standardises features.
        features: Features of the clips.
        clips: All training clips.
        max_rows: Upper limit of a clip's rows.
        seed: Draws the clips.
    """
    limit = MAX_FRAMES_STATISTICS_CLIPS if model.reads_frames else MAX_STATISTICS_CLIPS
    sample = random.Random(seed).sample(clips, min(limit, len(clips)))
    if model.reads_frames:
        rows = _rows_of_frames(model.eval(), features, sample, max_rows)
    else:
        rows = np.concatenate(features.rows(sample, max_rows)).astype(np.float32)
    std = rows.std(axis=0)
    model.feature_mean.copy_(torch.from_numpy(rows.mean(axis=0)))
    # A constant dimension gets std 1, so it standardises to 0 instead of blown-up rounding errors.
    model.feature_std.copy_(torch.from_numpy(np.where(std > 1e-6 * np.abs(rows).max(), std, 1.0)))


@torch.no_grad()
def _rows_of_frames(model: PairModel, features: ClipFeatures, clips: Sequence[Clip], max_rows: int) -> np.ndarray:
    """Return the feature rows [N, F] that a model computes from the frames of clips, one clip at a time."""
    parts = []
    for clip in progress(clips, total=len(clips), what="statistics of features", unit="clips"):
        frames, mask = (x.to(model.device) for x in features.batch([clip], max_rows))
        parts.append(model.rows_of_frames(ClipRows(frames, mask, None)).rows_BMF[0].cpu().numpy())
    return np.concatenate(parts)


@dataclass(frozen=True)
class TrainingJob:
    """A training job: its inputs, outputs and devices."""

    dataset: DatasetFolder
    """Has the captions."""
    config: TrainConfig
    folder: Path
    """The run's folder."""
    init: Path | None = None
    """Folder of the run that initialises the model."""
    device: str = AUTO
    """As for ``training.train``."""
    reports_steps: bool = False
    """Whether to send the figures of each step to the process that started this one."""


StepListener = Callable[[dict[str, float]], None]
"""Receives the figures of each step: its loss terms, and the results of a validation after it."""


def _density_of(objective: Objective) -> Density | None:
    """Return how the objective uses the probability of pairs; None if all pairs have the same weight."""
    if objective.pair_weights == "none":
        return None
    threshold = objective.density_threshold if objective.pair_weights == "discard" else None
    is_centered = objective.density_vectors == "centered"
    return Density(objective.density_neighbors, is_centered=is_centered, threshold=threshold)


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
            problems: Gets a message for each skipped caption or video.

        Raises:
            UserError: There is nothing to train on, or the folder holds a run of other settings or data.
        """
        self.job, self.config, self.folder = job, job.config, job.folder
        self.workers, self.device, self.problems = workers, device, problems
        self._resumes = (self.folder / STATE_FILE).exists()
        features = ClipFeatures(stores.features, self.config.store_grid)
        self.extra = ExtraInputs(self.config.extra, stores.extra)
        inputs = describe_inputs(job.dataset, stores, job.init, config=job.config)
        self.examples = self._read_examples(features, stores)
        self.share = workers.share(self.examples.batches.size)
        """This process's part of each batch."""
        # Keep the order of the next lines: random weights depend on the seed and on all earlier draws.
        torch.manual_seed(self.config.optimization.seed)
        weights = read_token_weights(job.dataset.idf, self.config)
        text_inputs = self._make_text_inputs(weights, stores)
        self._check_sentences(text_inputs)
        self.model = self._make_model(features, text_inputs, self._make_video_tower(stores))
        self.model.to(device)
        self.ema_model = self._copy_for_ema()  # on the device, and before anything is compiled
        self._set_precision_and_compile()
        self.optimizer = self._make_optimizer()
        self.num_steps = self.config.optimization.steps_for(len(self.examples.clips))
        self.state = RunState(
            self.model,
            self.optimizer,
            self.config,
            inputs,
            self.num_steps,
            self.ema_model,
            shards=self.examples.batches.shards,
        )
        self.scorer = Scorer(self.validated_model, text_inputs, weights, features, self.config, self.extra)
        self.validation = VALIDATIONS[self.config.objective.task or "retrieval"]
        self._unread: list[tuple[dict[str, float], dict[str, torch.Tensor]]] = []
        """Steps whose losses were not read yet: the figures of each, and its loss terms, still on the device."""
        self.saved_step = 0
        self._load_state_or_start_folder(text_inputs)

    @property
    def validated_model(self) -> PairModel:
        """The model that is validated and saved: the running average, if there is one."""
        return self.model if self.ema_model is None else self.ema_model

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self.state.step

    def _read_examples(self, features: ClipFeatures, stores: Stores) -> Examples:
        config, objective = self.config, self.config.objective
        examples = objective.make_examples(
            ExampleSource(
                self.job.dataset,
                features,
                stores.recordings,
                data=config.data,
                optimization=config.optimization,
                make_batches=lambda pairs: objective.make_batches(pairs, config.data, config.optimization),
                extra=self.extra,
                needs_ids=objective.needs_ids,
                density=_density_of(objective),
                validation_share=config.validation.validation_share,
                workers=self.workers,
                problems=self.problems,
            )
        )
        if config.data.shuffle_shards and not examples.batches.shards:
            problem = f"{objective.name} learns from {examples.summary}, which are not shuffled by shards; expected 0"
            raise SettingError("shuffle_shards", config.data.shuffle_shards, problem)
        return examples

    def _make_text_inputs(self, weights: TokenWeights, stores: Stores) -> TextInputs:
        """Return the tokenizer, and a pretrained, saved or random text encoder."""
        data, model = self.config.data, self.config.model
        source = TextSource(
            model.encoder_traits, data.max_text_tokens, weights, stores.recordings, self.config.objective.is_solved
        )
        if self._resumes:
            return read_text_inputs(self.folder / STATE_FILE, source)
        if self.job.init is not None:
            return read_text_inputs(self.job.init / MODEL_FILE, source)
        texts, word_vectors = self.examples.train_texts(), self.job.dataset.word_vectors
        return new_text_inputs(source, model.text_encoder, texts, word_vectors, self.workers)

    def _check_sentences(self, text_inputs: TextInputs) -> None:
        """Raise ``SettingError`` if a solved model should have a text encoder, but the run of ``init`` has none."""
        name = self.config.model.text_encoder
        has_one = isinstance(text_inputs, WordSentenceInputs)
        if self.config.objective.is_solved and name != SMALL_TEXT_ENCODER and not has_one:
            raise SettingError("text_encoder", name, f"the run {self.job.init} has none; omit it")

    def _make_video_tower(self, stores: Stores) -> "VideoTower | None":
        """Return a pretrained, saved or random video tower, or None if the store has features."""
        config, init = self.config, self.job.init
        name = config.model.tower
        if name is None:
            return None
        if self._resumes:
            return read_video_tower(self.folder / STATE_FILE, config)
        from ..models.video_tower import VideoTower, check_frames  # imports the networks of extraction

        frames = stores.features[0].profile
        if init is None or not (init / VIDEO_FOLDER).is_dir():
            tower = VideoTower.new(name, frames, config.data.grid, seed=config.optimization.seed)
        else:
            tower = read_video_tower(init / MODEL_FILE, config)
            assert tower is not None, "the settings name one"
            check_frames(frames, tower.saved.profile, name)
        if self.workers.is_first:
            size = sum(parameter.numel() for parameter in tower.parameters())
            begins = init.name if init is not None else tower.saved.weights.name
            say(f"video tower {name.encoder}: {size:,} parameters, initialised with the weights of {begins}")
        return tower

    def _make_model(self, features: ClipFeatures, text_inputs: TextInputs, tower: "VideoTower | None") -> PairModel:
        """Return the model; for a new run, with feature statistics and initial weights."""
        config = self.config
        plan = plan_model(config, features.dim, text_inputs, len(self.examples.labels), tower)
        model = make_model(config.model, plan)
        if self._resumes:
            return model
        if model.standardises:
            self._set_feature_statistics(model, features)
        if self.job.init is not None:
            load_init(self.job.init, model)
            if config.objective.is_solved and self.workers.is_first:
                say(f"note: the bag stage of {self.job.init} is used; it is not solved again")
        elif config.objective.is_solved:
            self._solve(model, features, text_inputs)
        return model

    def _set_feature_statistics(self, model: PairModel, features: ClipFeatures) -> None:
        config = self.config

        def statistics() -> tuple[torch.Tensor, torch.Tensor]:
            clips, max_rows = self.examples.clips, config.data.max_video_tokens
            set_feature_statistics(model, features, clips, max_rows=max_rows, seed=config.optimization.seed)
            return model.feature_mean, model.feature_std

        if not model.reads_frames:
            statistics()
            return
        model.to(self.device)
        found = self.workers.from_first(statistics)
        model.feature_mean.copy_(found[0])
        model.feature_std.copy_(found[1])

    def _solve(self, model: PairModel, features: ClipFeatures, text_inputs: TextInputs) -> None:
        """Solve the untrained parts in the first process, and send them to the others."""
        assert isinstance(model, WordPair), "checked with the settings"
        assert isinstance(self.examples, PairExamples), "the objective makes them"
        pairs = self.examples.pairs

        def solved() -> dict[str, torch.Tensor]:
            settings = self.config.data.max_video_tokens, self.config.optimization.seed
            Solver(model, features, text_inputs, max_rows=settings[0], seed=settings[1]).solve(pairs)
            return model.state_dict()

        model.load_state_dict(self.workers.from_first(solved))

    def _copy_for_ema(self) -> PairModel | None:
        """Return the model that holds the running average of the weights; None if the run has none."""
        if not self.config.optimization.ema_decay:
            return None
        # ``to`` puts the copied weights of a GRU into one piece of memory, as its GPU kernels require.
        return copy.deepcopy(self.model).to(self.model.device).eval().requires_grad_(False)

    def _set_precision_and_compile(self) -> None:
        self.model.set_precision(self.config.model.precision)
        if self.config.model.compile:
            keep_compiled_code_private()
            self.model.compile_layers()
            if self.model.video_tower is not None:
                self.model.video_tower.compile_network()

    def _make_optimizer(self) -> torch.optim.Adam:
        # AdamW is the default. Adam adds weight decay to the gradient and scales it up to full steps for vocabulary
        # rows and positions that are in no batch, so a pretrained model forgets these.
        # Fusing cuts the optimizer's time on a CPU to a ninth; it was a quarter of a step with the audio encoder.
        groups, lines = parameter_groups(self.model, self.config.optimization)
        if lines and self.workers.is_first:
            say(f"parameter groups: {'; '.join(lines)}")
        settings = self.config.optimization
        rates = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
        if settings.optimizer == "bertadam":
            return BertAdam(groups, **rates)
        kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[settings.optimizer]
        return kind(groups, **rates, fused=True)

    def _load_state_or_start_folder(self, text_inputs: TextInputs) -> None:
        if self._resumes:
            load_state(self.folder, self.state)
            self.examples.batches.use_order(self.state.order)
            self.saved_step = self.step if self.workers.is_first else 0
        elif self.workers.is_first:
            make_folder(self.folder)
            save_text_inputs(text_inputs, self.folder / TEXT_FOLDER)
            if (tower := self.model.video_tower) is not None:
                make_folder(self.folder / VIDEO_FOLDER)
                tower.saved.save(self.folder / VIDEO_FOLDER)
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
            The figures of the steps whose losses were read, this step last: the terms of the loss, their sum as
            "loss", and the learning rate. Empty if none were read.

        Raises:
            UserError: The loss of one of these steps is not finite.
        """
        self.model.train()
        settings = self.config.optimization
        learning_rate = settings.learning_rate * learning_rate_factor(self.step, self.num_steps, settings)
        for group in self.optimizer.param_groups:
            peak = settings.learning_rate * group.get(FACTOR, 1.0)
            group["lr"] = peak * learning_rate_factor(self.step, self.num_steps, settings, group.get(SCHEDULE))
        try:
            terms = backward(self.model, inputs, self.config, self.step, self.workers)
        except Exception:
            # Report an earlier non-finite loss first. No collective: other processes may not have failed.
            self._read_losses(Workers())
            raise
        self.optimizer.step()
        self.state.step += 1
        if self.ema_model is not None:
            update_ema(
                self.ema_model,
                self.model,
                min(self.config.optimization.ema_decay, self.step / (self.step + EMA_WARMUP)),
            )
        figures: dict[str, float] = {"step": self.step, "learning_rate": learning_rate}
        if (codebook := self.model.codebook) is not None and codebook.size:
            figures["codewords_in_use"] = codebook.in_use
        self._unread.append((figures, {name: term.detach() for name, term in terms.items()}))
        is_read = self.device.type == "cpu" or self.step % READ_LOSSES_EVERY == 0 or self._is_validated or self._is_last
        return self._read_losses(self.workers) if is_read else []

    def _read_losses(self, workers: Workers) -> list[dict[str, float]]:
        """Return the figures of all steps with unread losses, averaged over ``workers``."""
        if not self._unread:
            return []
        unread, self._unread = self._unread, []
        named = {(figures["step"], name): term for figures, terms in unread for name, term in terms.items()}
        means, events = workers.mean(named), []
        for figures, names in unread:
            step = figures["step"]
            terms = {name: means[step, name] for name in names}
            loss = sum(terms.values())
            if not np.isfinite(loss):
                best = self.state.best
                saved = f"the model of step {best['step']} is saved" if best else "no model was saved yet"
                raise UserError(
                    f"{self.folder}: the loss is {loss} at step {step} ({saved}); try a lower --learning-rate and "
                    "another --run-name"
                )
            events.append({"step": step, "loss": loss, **terms, **figures})
        return events

    def run(self, on_step: StepListener | None = None) -> None:
        """Train to the last step, and save the model that does best on the validation split.

        Args:
            on_step: Called in the first process, with the figures of each step. If it raises an error, training stops
                and can be resumed as usual.
        """
        with report_saved_work(lambda: f"the state of step {self.saved_step:,} is saved" if self.saved_step else ""):
            started = time.monotonic()
            log = EventLog(self.folder, self.step) if self.workers.is_first else None
            inputs_of_steps = self.prefetched_inputs(self.step)
            try:
                for inputs in self._shown(inputs_of_steps) if log else inputs_of_steps:
                    for event in self._do_step(inputs, log):
                        if on_step is not None and log:
                            on_step(event)
            finally:
                if log:
                    log.close()
            if log:
                self._finish(time.monotonic() - started, inputs_of_steps.waited_share)

    def _do_step(self, inputs: Inputs, log: EventLog | None) -> list[dict[str, float]]:
        """Do one step, and validate and save if it is time to; return the figures that were read."""
        events = self.train_step(inputs)
        if self._is_validated or self._is_last:
            if log:
                events[-1] |= self.validation.compute(self.scorer, self.examples)
                self._save_if_best(events[-1])
                self._report_collapse(events[-1])
            self.workers.wait()
        if log:
            for event in events:
                log.write(event)
            if self._is_validated and not self._is_last:
                log.flush()
                with uninterrupted():  # a stop in between would not report what is saved
                    save_state(self.folder, self.state)
                    self.saved_step = self.step
        return events

    def _shown(self, inputs: PrefetchedInputs) -> Iterable[Inputs]:
        def note() -> str:
            waited = f"{inputs.waited_share:.0%} waiting for features"
            return ", ".join(filter(None, (memory_used(self.device), waited)))

        return progress(inputs, total=self.num_steps, what="training", unit="steps", done=self.step, note=note)

    def _save_if_best(self, event: dict[str, Any]) -> None:
        metric, best = self.validation.metric, self.state.best  # less is better
        value = event.get(metric)
        if best is None or value is None or value <= best[metric]:
            self.state.best = {"step": event["step"], metric: value}
            save_model(self.folder, self.validated_model)

    def _report_collapse(self, event: dict[str, Any]) -> None:
        codebook, num_in_use = self.model.codebook, event.get("codewords_in_use")
        if codebook is not None and num_in_use is not None and num_in_use <= MAX_COLLAPSED_CODEWORDS:
            in_use = f"{num_in_use} of {codebook.size:,} codewords"
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
        load_model(self.folder, self.validated_model)
        curve = logged(self.folder, "validation_R@1")
        kept = self.state.best["step"] if self.state.best else 0
        if (chosen := report_kept(self.scorer, self.examples, kept, curve)) is not None:
            result |= {"stage_weights": chosen.weights, "stage_weights_tried": chosen.tried}
        save_run(self.folder, self.config, self.state.inputs, result)
        remove_file(self.folder / STATE_FILE, missing_ok=True)
