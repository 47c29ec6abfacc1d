"""The parts of the default recipe's model that are solved before training, and where the others begin."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...storage.common.progress import progress
from ...storage.common.terminal import number_of, say
from ..data.clip_features import ClipFeatures
from ..data.clips import evenly
from ..data.pairs import Pairs
from ..data.text_inputs import TextInputs
from ..intervals import best_beyond_noise
from ..metrics import right_ranks
from ..models.closed_form import CanonicalCorrelations, Penalties, Sums
from ..models.word_directions import whiten, word_directions
from ..models.words import WIDTH, WordPair

MAX_CLIPS = 1_000_000
"""Upper limit of the training clips that are summed, drawn by the seed."""
MAX_CAPTIONS_OF_CLIP = 20
CLIPS_AT_ONCE = 512
MAX_VALIDATION_CAPTIONS = 1000
USUAL_PENALTIES = Penalties(clips=0.5, words=2.0, power=2.0)
"""They stay unless others are better on validation beyond noise."""
TRIED_CLIPS, TRIED_WORDS = (0.1, 0.5, 2.0), (0.5, 2.0, 8.0, 32.0)
MAX_BEGINNING_CLIPS, MAX_WHITENED_ROWS = 4000, 50_000
"""Upper limits of the training clips of which words' directions are found, and of the rows that principal directions
are of. They are in memory."""


class ClipPart(NamedTuple):
    """Some clips and their captions, as the model takes them."""

    rows_BMF: Tensor
    mask_BM: Tensor
    ids_CN: Tensor
    mask_CN: Tensor
    clip_of_C: Tensor


class Solver:
    """Reads clips and captions for a new model, and solves what it does not train."""

    def __init__(
        self, model: WordPair, features: ClipFeatures, text_inputs: TextInputs, *, max_rows: int, seed: int
    ) -> None:
        """Take a new model, whose feature statistics are set.

        Args:
            model: The model, on the CPU.
            features: Of the clips.
            text_inputs: Numbers the captions' words.
            max_rows: Upper limit of a clip's rows.
            seed: Draws clips, where there are too many.
        """
        assert model.solved is not None, "the objective says so"
        self.model, self.solved, self.features, self.text_inputs = model, model.solved, features, text_inputs
        self.max_rows, self.seed = max_rows, seed

    @torch.no_grad()
    def solve(self, pairs: Mapping[str, Pairs]) -> None:
        """Set what the model does not train, and where its words and rows begin.

        Args:
            pairs: {split: pairs}
        """
        correlations = CanonicalCorrelations(self._sums(pairs["train"]), seed=self.seed)
        self._choose_penalties(correlations, pairs["validation"])
        self._begin(pairs["train"])

    def _parts(self, pairs: Pairs, clips: Sequence[int]) -> Iterator[ClipPart]:
        """Yield clips with their captions, at most 20 of each."""
        chunks = [clips[first : first + CLIPS_AT_ONCE] for first in range(0, len(clips), CLIPS_AT_ONCE)]
        for index, chunk in enumerate(chunks):
            if index + 1 < len(chunks):
                self.features.prefetch([pairs.clips[clip] for clip in chunks[index + 1]])
            captions_of = [pairs.captions_of_clips[clip] for clip in chunk]
            chosen = [[of[i] for i in evenly(len(of), MAX_CAPTIONS_OF_CLIP)] for of in captions_of]
            inputs = self.text_inputs(list(pairs.captions.take([caption for of in chosen for caption in of])))
            rows_BMF, mask_BM = self.features.batch([pairs.clips[clip] for clip in chunk], self.max_rows)
            clip_of_C = torch.arange(len(chunk)).repeat_interleave(torch.tensor([len(of) for of in chosen]))
            yield ClipPart(rows_BMF, mask_BM, inputs["input_ids"], inputs["attention_mask"].bool(), clip_of_C)

    def _drawn(self, pairs: Pairs, most: int) -> Sequence[int]:
        every = range(len(pairs.clips))
        return every if len(every) <= most else sorted(random.Random(self.seed).sample(every, most))

    def _sums(self, pairs: Pairs) -> Sums:
        """Return the sums over the training clips, and show progress."""
        drawn = self._drawn(pairs, MAX_CLIPS)
        sums = Sums.zeros(len(self.solved.clips), len(self.solved.idf))
        parts = self._parts(pairs, drawn)
        for part in progress(parts, total=len(drawn), what="solving", unit="clips", size=lambda of: len(of.rows_BMF)):
            x_BD = self.model.whole_clips(part.rows_BMF, part.mask_BM)
            sums.add(x_BD, *self.solved.word_weights(part.ids_CN, part.mask_CN), part.clip_of_C)
        return sums

    def _choose_penalties(self, correlations: CanonicalCorrelations, validation: Pairs) -> None:
        """Solve with the penalties that are best on validation beyond noise, and report them."""
        self.solved.set(correlations.solve(USUAL_PENALTIES, WIDTH))
        parts = list(self._parts(validation, evenly(len(validation.clips), MAX_VALIDATION_CAPTIONS).tolist()))
        if not parts:
            return
        x_BD = torch.cat([self.model.whole_clips(part.rows_BMF, part.mask_BM) for part in parts])
        firsts = [
            [int((part.clip_of_C == clip).nonzero()[0, 0]) for clip in range(len(part.mask_BM))] for part in parts
        ]
        texts = [(part.ids_CN[first], part.mask_CN[first]) for part, first in zip(parts, firsts, strict=True)]

        def reciprocal_ranks() -> np.ndarray:
            texts_BK = F.normalize(torch.cat([self.solved.of_captions(*of) for of in texts]), dim=1)
            clips_BK = F.normalize(self.solved.of_clips(x_BD), dim=1)
            return 1 / right_ranks((texts_BK @ clips_BK.T).numpy(), np.arange(len(x_BD)))

        tried = {USUAL_PENALTIES: reciprocal_ranks()}
        for words, clips in itertools.product(TRIED_WORDS, TRIED_CLIPS):
            penalties = Penalties(clips, words, USUAL_PENALTIES.power)
            self.solved.set(correlations.solve(penalties, WIDTH))
            tried[penalties] = reciprocal_ranks()
        videos_B = validation.clips.video[evenly(len(validation.clips), MAX_VALIDATION_CAPTIONS)]
        best = best_beyond_noise(tried, USUAL_PENALTIES, videos_B)
        self.solved.set(correlations.solve(best, WIDTH))
        recall = 100 * float((tried[best] > 0.5).mean())
        say(
            f"solved bag: R@1 {recall:.1f} of {number_of(len(x_BD), 'validation captions')} (penalties: clips "
            f"{best.clips:g}, words {best.words:g})"
        )

    def _begin(self, pairs: Pairs) -> None:
        """Set the words' vectors and the layer on rows to the directions of words in some training clips."""
        parts = list(self._parts(pairs, self._drawn(pairs, MAX_BEGINNING_CLIPS)))
        longest = max(part.mask_BM.shape[1] for part in parts)
        rows_BMF = torch.cat([_padded(self.model.standardised(part.rows_BMF), longest) for part in parts])
        mask_BM = torch.cat([_padded(part.mask_BM, longest) for part in parts])
        whitening = whiten(_some(rows_BMF[mask_BM]), WIDTH, seed=self.seed)
        words = torch.cat([_shares(part, len(self.model.words.weight)) for part in parts]).coalesce()
        directions_VK = word_directions(whitening(rows_BMF), mask_BM, words, len(self.model.words.weight))
        self.model.begin(whitening, directions_VK)


def _padded(x_BL: Tensor, length: int) -> Tensor:
    """Return x [B, L, ...] padded with zeros to [B, ``length``, ...]."""
    return torch.cat([x_BL, x_BL.new_zeros(len(x_BL), length - x_BL.shape[1], *x_BL.shape[2:])], dim=1)


def _some(rows_TF: Tensor) -> Tensor:
    return rows_TF[torch.from_numpy(evenly(len(rows_TF), MAX_WHITENED_ROWS))]


def _shares(part: ClipPart, num_words: int) -> Tensor:
    """Return the share of each clip's captions that have a word, sparse [B, V]."""
    caption_P, column_P = part.mask_CN.nonzero(as_tuple=True)
    clip_P = part.clip_of_C[caption_P]
    share_P = 1 / part.clip_of_C.bincount()[clip_P]
    places = torch.stack([clip_P, part.ids_CN[caption_P, column_P]])
    return torch.sparse_coo_tensor(places, share_P, (len(part.mask_BM), num_words), check_invariants=False)
