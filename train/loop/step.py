"""One training step: a batch's loss and its gradient, in micro-batches if the whole batch does not fit in memory.

``objectives.batch`` explains the shape letters.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...storage.common.errors import UserError
from ..data.examples import Inputs
from ..distributed import Workers
from ..models.base import PairModel
from ..models.masked_words import MaskDraws, MaskedTexts, mask_words
from ..models.tokens import ClipRows, TextTokens, VideoTokens, present, tokens_of
from ..objectives import Objective
from ..objectives.batch import Batch
from ..recipes.train_config import TrainConfig
from ..settings import OptimizationSettings
from .frame_augmentation import augmented
from .gradients import summed_gradients


def learning_rate_factor(
    step: int, num_steps: int, settings: OptimizationSettings, schedule: str | None = None
) -> float:
    """Return a step's share of the peak learning rate.

    After a linear warm-up, the share falls linearly (TACo section 4.3), as a cosine, not at all (SSML), or as
    CLIP4Clip's ``warmup_cosine`` (modules/optimization.py): its cosine is over all steps, and the warm-up replaces the
    first ones, so the share drops from 1 to 0.98 after a warm-up over a tenth of the steps.

    Args:
        step: Counts from 0.
        num_steps: Steps of the whole training.
        settings: The run's.
        schedule: One of ``SCHEDULES``; None: ``settings.schedule``.
    """
    schedule = schedule or settings.schedule
    warmup = min(settings.warmup_steps, num_steps // 2)
    if schedule == "bert-cosine":
        return step / warmup if step < warmup else (1 + math.cos(math.pi * step / num_steps)) / 2
    if step < warmup:
        return (step + 1) / warmup
    left = (num_steps - step) / max(num_steps - warmup, 1)
    return {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "constant": 1.0}[schedule]


def encode(model: PairModel, inputs: Inputs, micro_batch_size: int) -> tuple[TextTokens | None, VideoTokens]:
    """Encode a batch.

    With micro-batches, the encoders' activations are not stored for the gradient but recomputed, one micro-batch at a
    time. The loss and its gradient are still those of the whole batch.

    Args:
        model: Has the encoders.
        inputs: The batch; without texts the first result is None.
        micro_batch_size: Number of texts, and of clips, to encode at once; 0: all.
    """

    def encode_videos(
        rows: Tensor, mask: Tensor, lengths: Tensor | None, whole: Tensor | None, extra: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return present(model.tokens_of_videos(ClipRows(rows, mask, lengths, whole), extra))

    texts = encode_texts(model, inputs, micro_batch_size) if inputs.texts else None
    clips = ClipRows(inputs.rows, inputs.mask, inputs.lengths)
    if not micro_batch_size:
        return texts, model.tokens_of_videos(clips, inputs.video_extra)
    if (tower := model.video_tower) is not None and tower.is_frozen:  # it needs no gradient, and runs once
        clips = model.rows_of_frames(clips)
    videos, lengths = [], clips.lengths_B
    for part in micro_batches(len(clips.rows_BMF), micro_batch_size):
        of_part = [None if value is None else value[part] for value in clips]
        extra = _part(inputs.video_extra, part)
        videos.append(checkpoint(encode_videos, *of_part, extra, use_reentrant=False))
    # An encoder without tokens makes one vector of all feature vectors, so their number is not its number of tokens.
    if tower is not None and not tower.is_frozen:
        lengths = tower.row_counts(lengths)
    known = lengths if model.traits.gives_tokens else None
    return texts, replace(tokens_of(VideoTokens, _joined(videos)), lengths_B=known)


def encode_texts(model: PairModel, inputs: Inputs, micro_batch_size: int) -> TextTokens:
    """Encode a batch's texts; see ``encode``."""

    def of(texts: dict[str, Tensor], extra: dict[str, Tensor]) -> dict[str, Tensor]:
        return present(model.tokens_of_texts(texts, extra))

    if not micro_batch_size:
        return model.tokens_of_texts(inputs.texts, inputs.text_extra)
    parts = []
    # Pass tensors positionally: checkpoint restores the random state only of positional tensors' devices, and without
    # it, recomputation would draw other dropout masks.
    for part in micro_batches(len(next(iter(inputs.texts.values()))), micro_batch_size):
        parts.append(checkpoint(of, _part(inputs.texts, part), _part(inputs.text_extra, part), use_reentrant=False))
    texts = tokens_of(TextTokens, _joined(parts))
    if not model.traits.gives_tokens:
        return texts
    counts = inputs.texts.get("lengths_B"), inputs.texts.get("num_of_interest_B")
    return replace(texts, lengths_B=counts[0], num_of_interest_B=counts[1])


def encode_masked(
    model: PairModel, inputs: Inputs, config: TrainConfig, workers: Workers, generator: torch.Generator
) -> MaskedTexts:
    """Mask some subwords of a batch's texts, and encode them."""
    head, num_texts = model.masked_words, len(inputs.rows)
    assert head is not None, "an objective masks words that its model cannot predict"
    rows = slice(workers.rank * num_texts, (workers.rank + 1) * num_texts)
    draws = MaskDraws.draw(generator, workers.size * num_texts, rows, config.data.max_text_tokens)
    texts, places = mask_words(inputs.texts, draws, mask_id=head.mask_id, num_ids=head.num_ids)
    encoded = encode_texts(model, replace(inputs, texts=texts), config.optimization.micro_batch_size)
    return MaskedTexts(encoded, places)


def _part(tensors: dict[str, Tensor], part: slice) -> dict[str, Tensor]:
    return {name: value[part] for name, value in tensors.items()}


def _joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def micro_batches(length: int, size: int) -> list[slice]:
    """Split 0 to ``length`` into slices of ``size``; the last one may be shorter."""
    return [slice(first, first + size) for first in range(0, length, size)]


def backward(model: PairModel, inputs: Inputs, config: TrainConfig, step: int, workers: Workers) -> dict[str, Tensor]:
    """Compute a batch's loss and leave the gradient of the whole batch's loss in the model.

    Random draws depend only on the seed, the step and the process.

    Args:
        model: The model, in training mode.
        inputs: This process's share of the batch.
        config: The run's settings.
        step: Counts from 0.
        workers: The processes that share the batch.

    Returns:
        This process's loss terms by name. Their means over the processes are the batch's terms.
    """
    seed, micro_batch_size = config.optimization.seed, config.optimization.micro_batch_size
    torch.manual_seed(random.Random(f"{seed} step {step} process {workers.rank}").getrandbits(63))
    if (tower := model.video_tower) is not None:
        inputs = augmented(inputs, config, step, workers, tower.saved.profile.frame_shape)
    texts, videos = encode(model, inputs, micro_batch_size)
    generator = torch.Generator().manual_seed(random.Random(f"{seed} step {step}").getrandbits(63))
    masked = encode_masked(model, inputs, config, workers, generator) if config.objective.masks_words else None
    batch = Batch(
        texts,
        videos,
        workers,
        generator=generator,
        recompute=micro_batch_size or None,
        weights_R=inputs.weights,
        video_of_R=inputs.video_of,
        labels=inputs.labels,
        ids=inputs.ids,
        max_text_tokens=config.data.max_text_tokens,
        masked=masked,
    )
    terms = config.objective.compute_loss(model, batch)
    _check_terms(terms, config.objective)
    model.zero_grad(set_to_none=True)
    total = sum(terms.values(), start=torch.zeros((), device=videos.mask_BM.device))
    if not total.requires_grad:
        raise UserError(
            f"objective {config.objective.name}: no trained parameter affects its loss; expected terms that "
            "are computed from the batch's texts and videos without detach, and some parameters that are not frozen"
        )
    with summed_gradients(model, workers):
        (total / workers.size).backward()
    return terms


def _check_terms(terms: Any, objective: Objective) -> None:
    """Raise ``UserError`` unless an objective, which may be custom, returned scalar terms that it declares."""
    expected = objective.loss_names
    if not isinstance(terms, Mapping):
        found = type(terms).__name__
    elif not terms or not set(terms) <= set(expected):
        found = f"the terms {', '.join(map(str, terms)) or '(none)'}"
    else:
        wrong = [name for name, term in terms.items() if not isinstance(term, Tensor) or term.dim() > 0]
        if not wrong:
            return
        term = terms[wrong[0]]
        shape = f" of shape {list(term.shape)}" if isinstance(term, Tensor) else ""
        found = f"{wrong[0]}: a {type(term).__name__}{shape}"
    raise UserError(
        f"objective {objective.name}: compute_loss returned {found}; "
        f"expected a dict of scalar tensors, named as its loss_terms: {', '.join(expected)}"
    )


@torch.no_grad()
def update_ema(ema_model: PairModel, model: PairModel, decay: float) -> None:
    """Update the running average of a model's weights: average = decay * average + (1 - decay) * model.

    Buffers, such as statistics of features, are copied. Frozen weights stay the same.
    """
    for averaged, new in zip(ema_model.parameters(), model.parameters(), strict=True):
        if new.requires_grad:
            averaged.lerp_(new, 1 - decay)
    for averaged, new in zip(ema_model.buffers(), model.buffers(), strict=True):
        averaged.copy_(new)
