"""The parts of the default recipe's model that are solved before training, and where the others begin."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
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
from ..models.words import WIDTH, SolvedBag, WordPair

Choice = TypeVar("Choice", Penalties, tuple[float, float])

MAX_CLIPS = 1_000_000
"""Upper limit of the training clips that are summed, drawn by the seed."""
MAX_CAPTIONS_OF_CLIP = 20
CLIPS_AT_ONCE = 512
MAX_VALIDATION_CLIPS = 1000
MAX_SENTENCE_CLIPS = 20_000
"""Upper limit of the training clips whose captions the text encoder reads, which takes by far the most time."""
USUAL_PENALTIES = Penalties(clips=0.5, words=2.0, power=2.0)
"""They stay unless others are better on validation beyond noise."""
TRIED_CLIPS, TRIED_WORDS = (0.1, 0.5, 2.0), (0.5, 2.0, 8.0, 32.0)
USUAL_SENTENCES, TRIED_SENTENCES = (0.5, 0.5), (0.0, 0.25, 0.5, 0.75, 1.0)
"""The usual penalty and share of sentence vectors; and the shares that are tried."""
MAX_BEGINNING_CLIPS, MAX_WHITENED_ROWS = 4000, 50_000
"""Upper limits of the training clips of which words' directions are found, and of the rows that principal directions
are of. They are in memory."""


class ClipPart(NamedTuple):
    """Some clips and their captions, as the model takes them."""

    rows_BMF: Tensor
    mask_BM: Tensor
    texts: dict[str, Tensor]
    """As the model's ``encode_texts`` takes them."""
    clip_of_C: Tensor

    @property
    def ids_CN(self) -> Tensor:
        """The words of each caption."""
        return self.texts["input_ids"]

    @property
    def mask_CN(self) -> Tensor:
        """True for a word, False for padding."""
        return self.texts["attention_mask"].bool()


class ValidationClips(NamedTuple):
    """Validation clips with a caption each."""

    x_BD: Tensor
    """The mean and the maximum of the clips' rows."""
    texts: list[tuple[Tensor, Tensor]]
    """Words and mask of the captions, in parts."""
    sentences: list[Tensor | None]
    """Their sentence vectors, in the same parts."""
    video_B: np.ndarray
    """Index of each clip's video."""

    def reciprocal_ranks(self, solved: SolvedBag) -> np.ndarray:
        """Return 1 / the rank of the right clip for each caption [B]."""
        parts = zip(self.texts, self.sentences, strict=True)
        captions = torch.cat([solved.of_captions(ids, mask, vectors) for (ids, mask), vectors in parts])
        scores_BB = captions @ solved.of_clips(self.x_BD).T
        return 1 / right_ranks(scores_BB.numpy(), np.arange(len(self.x_BD)))


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
        self.model.eval()
        correlations = CanonicalCorrelations(self._sums(pairs["train"]), seed=self.seed)
        validation = self._validation(pairs["validation"])
        self._choose_penalties(correlations, validation)
        if self.model.text_encoder is not None:
            self._solve_sentences(correlations, pairs["train"], validation)
        if validation is not None:
            recall = 100 * float((validation.reciprocal_ranks(self.solved) > 0.5).mean())
            say(f"solved: R@1 {recall:.1f} of {number_of(len(validation.x_BD), 'validation captions')}")
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
            yield ClipPart(rows_BMF, mask_BM, inputs, clip_of_C)

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

    def _validation(self, pairs: Pairs) -> ValidationClips | None:
        """Return validation clips with a caption each, or None if there is no validation split."""
        chosen = evenly(len(pairs.clips), MAX_VALIDATION_CLIPS)
        parts = list(self._parts(pairs, chosen.tolist()))
        if not parts:
            return None
        texts, sentences = [], []
        for part in parts:
            firsts = torch.searchsorted(part.clip_of_C, torch.arange(len(part.mask_BM)))
            inputs = {name: value[firsts] for name, value in part.texts.items()}
            texts.append((part.ids_CN[firsts], part.mask_CN[firsts]))
            sentences.append(self.model.sentence_vectors(inputs))
        x_BD = torch.cat([self.model.whole_clips(part.rows_BMF, part.mask_BM) for part in parts])
        return ValidationClips(x_BD, texts, sentences, pairs.clips.video[chosen])

    def _choose_penalties(self, correlations: CanonicalCorrelations, validation: ValidationClips | None) -> None:
        """Solve for words with the penalties that are best on validation beyond noise."""

        def use(penalties: Penalties) -> None:
            self.solved.set_words(correlations.solve(penalties, WIDTH))

        grid = [Penalties(c, w, USUAL_PENALTIES.power) for w, c in itertools.product(TRIED_WORDS, TRIED_CLIPS)]
        self._choose(use, USUAL_PENALTIES, grid, validation)

    def _solve_sentences(
        self, correlations: CanonicalCorrelations, pairs: Pairs, validation: ValidationClips | None
    ) -> None:
        """Solve for the text encoder's vectors; choose penalty and share as ``_choose_penalties`` does."""
        clips, sentences = [], []
        drawn = self._drawn(pairs, MAX_SENTENCE_CLIPS)
        parts = self._parts(pairs, drawn)
        for part in progress(parts, total=len(drawn), what="encoding", unit="clips", size=lambda of: len(of.rows_BMF)):
            vectors_CH = self.model.sentence_vectors(part.texts)
            assert vectors_CH is not None, "there is a text encoder"
            share_C = 1 / part.clip_of_C.bincount()[part.clip_of_C]
            sums_BH = vectors_CH.new_zeros(len(part.mask_BM), vectors_CH.shape[1])
            sentences.append(sums_BH.index_add(0, part.clip_of_C, share_C[:, None] * vectors_CH))
            clips.append(self.model.whole_clips(part.rows_BMF, part.mask_BM))
        x_BD, y_BH = torch.cat(clips), torch.cat(sentences)
        mean_H = y_BH.mean(dim=0)

        def use(choice: tuple[float, float]) -> None:
            penalty, share = choice
            self.solved.set_sentences(mean_H, correlations.regress(x_BD, y_BH - mean_H, penalty), share)

        self._choose(use, USUAL_SENTENCES, list(itertools.product(TRIED_CLIPS, TRIED_SENTENCES)), validation)

    def _choose(
        self, use: Callable[[Choice], None], usual: Choice, grid: list[Choice], validation: ValidationClips | None
    ) -> None:
        """Use the choice that is best on validation beyond noise."""
        chosen = usual
        if validation is not None:
            tried: dict[Choice, np.ndarray] = {}
            for choice in [usual, *grid]:
                use(choice)
                tried[choice] = validation.reciprocal_ranks(self.solved)
            chosen = best_beyond_noise(tried, usual, validation.video_B)
        use(chosen)

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
