"""The parts of the default recipe's model that are solved before training, and the initial values of the others."""

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
from ..metrics import right_ranks
from ..models.closed_form import CanonicalCorrelations, Covariances, Strengths, Sums
from ..models.word_directions import whiten, word_directions
from ..models.words import WIDTH, SolvedBag, WordPair
from .likelihood import log_likelihood

Choice = TypeVar("Choice", tuple[str, Strengths], tuple[str, float, float])

MAX_CLIPS = 1_000_000
"""Maximum number of training clips in the sums; if there are more, the seed draws them."""
MAX_CAPTIONS_OF_CLIP = 20
CLIPS_AT_ONCE = 512
MAX_VALIDATION = 1000
"""Maximum number of validation clips, and of their captions, for choosing strengths."""
MAX_SENTENCE_CLIPS = 20_000
"""Maximum number of training clips whose captions the text encoder reads, which takes most of the time."""
USUAL_STRENGTHS = "mean and maximum", Strengths(clips=0.5, words=2.0, power=2.0)
"""Strengths for data sets without a validation split."""
TRIED_CLIPS, TRIED_WORDS, TRIED_POWERS = (0.1, 0.5, 2.0, 8.0), (0.5, 2.0, 8.0, 32.0), (1.0, 2.0, 3.0)
USUAL_SENTENCES, TRIED_SENTENCES = ("mean", 0.5, 0.5), (0.0, 0.25, 0.5, 0.75, 1.0)
"""Pooling, penalty and share of sentence vectors for data sets without a validation split; and the shares to try."""
MAX_BEGINNING_CLIPS, MAX_WHITENED_ROWS = 4000, 50_000
"""Maximum number of training clips for finding words' directions, and of rows for finding principal directions. All
are in memory."""


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
    """Validation clips and their captions."""

    x_BD: Tensor
    """The mean and the maximum of the clips' rows."""
    texts: list[tuple[Tensor, Tensor]]
    """Words and mask of the captions, in parts."""
    sentences: list[Tensor | None]
    """Sentence vectors of the captions, in the same parts."""
    right_C: np.ndarray
    """Index of each caption's clip."""

    def scores(self, solved: SolvedBag) -> np.ndarray:
        """Return the scores of captions with clips [C, B]."""
        parts = zip(self.texts, self.sentences, strict=True)
        captions = torch.cat([solved.of_captions(ids, mask, vectors) for (ids, mask), vectors in parts])
        return (captions @ solved.of_clips(self.x_BD).T).numpy()

    def ranks(self, solved: SolvedBag) -> np.ndarray:
        """Return the rank of the right clip for each caption [C]."""
        return right_ranks(self.scores(solved), self.right_C)


class Solver:
    """Reads clips and captions for a new model, and solves the parts that are not trained."""

    def __init__(
        self, model: WordPair, features: ClipFeatures, text_inputs: TextInputs, *, max_rows: int, seed: int
    ) -> None:
        """Prepare to solve a new model with feature statistics already set.

        Args:
            model: The model, on the CPU.
            features: Features of the clips.
            text_inputs: Turns captions into word ids.
            max_rows: Upper limit of a clip's rows.
            seed: Draws clips if there are too many.
        """
        assert model.solved is not None, "the objective says so"
        self.model, self.solved, self.features, self.text_inputs = model, model.solved, features, text_inputs
        self.max_rows, self.seed = max_rows, seed

    @torch.no_grad()
    def solve(self, pairs: Mapping[str, Pairs]) -> None:
        """Set the parts that are not trained, and the initial vectors of words and rows.

        Args:
            pairs: {split: pairs}
        """
        self.model.eval()
        if (num_words := len(self.model.word_weights)) > (num_solved := len(self.solved.idf)):
            say(f"note: of {num_words:,} words, the {num_solved:,} most frequent are solved")
        covariances = Covariances(self._sums(pairs["train"]))
        validation = self._validation(pairs["validation"])
        of_pooling = {
            "mean": CanonicalCorrelations(covariances, len(self.solved.clips) // 2, seed=self.seed),
            "mean and maximum": CanonicalCorrelations(covariances, seed=self.seed),
        }
        pooling, strengths = self._choose_strengths(of_pooling, validation)
        how = f"{pooling} of feature vectors, penalties {strengths.clips:g} (clips) and {strengths.words:g} (words), "
        how += f"correlations to the power {strengths.power:g}"
        if self.model.text_encoder is not None:
            pooling, penalty, share = self._solve_sentences(of_pooling, pairs["train"], validation)
            how += f"; sentence vectors {share:.0%} ({pooling} of feature vectors, penalty {penalty:g})"
        if validation is None:
            say(f"bag stage solved: {how}, the defaults, since there is no validation split")
        else:
            recall = 100 * float((validation.ranks(self.solved) < 2).mean())
            asked = number_of(len(validation.right_C), "validation captions")
            say(f"bag stage solved: {how}, chosen on {asked}: R@1 of this stage {recall:.1f}")
        self._begin(pairs["train"])

    def _parts(self, pairs: Pairs, clips: Sequence[int]) -> Iterator[ClipPart]:
        """Yield clips with at most 20 captions each."""
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
        """Return validation clips with one caption each, or several if clips are few; None without this split."""
        chosen = evenly(len(pairs.clips), MAX_VALIDATION)
        of_each = max(MAX_VALIDATION // max(len(chosen), 1), 1)
        texts, sentences, clips, right = [], [], [], []
        for part in self._parts(pairs, chosen.tolist()):
            firsts_B = torch.searchsorted(part.clip_of_C, torch.arange(len(part.mask_BM)))
            taken = torch.arange(len(part.clip_of_C)) - firsts_B[part.clip_of_C] < of_each
            inputs = {name: value[taken] for name, value in part.texts.items()}
            texts.append((part.ids_CN[taken], part.mask_CN[taken]))
            sentences.append(self.model.sentence_vectors(inputs))
            right.append(part.clip_of_C[taken] + sum(map(len, clips)))
            clips.append(self.model.whole_clips(part.rows_BMF, part.mask_BM))
        if not clips:
            return None
        return ValidationClips(torch.cat(clips), texts, sentences, torch.cat(right).numpy())

    def _choose_strengths(
        self, of_pooling: Mapping[str, CanonicalCorrelations], validation: ValidationClips | None
    ) -> tuple[str, Strengths]:
        """Solve for words with the pooling and strengths of highest validation likelihood; return these two."""

        def use(choice: tuple[str, Strengths]) -> None:
            pooling, strengths = choice
            self.solved.set_words(of_pooling[pooling].solve(strengths, WIDTH))

        grid = itertools.product(TRIED_WORDS, TRIED_CLIPS, TRIED_POWERS)
        strengths = [Strengths(clips, words, power) for words, clips, power in grid]
        return self._choose(use, USUAL_STRENGTHS, list(itertools.product(of_pooling, strengths)), validation)

    def _solve_sentences(
        self, of_pooling: Mapping[str, CanonicalCorrelations], pairs: Pairs, validation: ValidationClips | None
    ) -> tuple[str, float, float]:
        """Solve for the text encoder's vectors; return the pooling, penalty and share of highest likelihood."""
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
        covariances = {pooling: of.covariance(x_BD, y_BH - mean_H) for pooling, of in of_pooling.items()}

        def use(choice: tuple[str, float, float]) -> None:
            pooling, penalty, share = choice
            self.solved.set_sentences(mean_H, of_pooling[pooling].regress(covariances[pooling], penalty), share)

        grid = list(itertools.product(of_pooling, TRIED_CLIPS, TRIED_SENTENCES))
        return self._choose(use, USUAL_SENTENCES, grid, validation)

    def _choose(
        self, use: Callable[[Choice], None], usual: Choice, grid: list[Choice], validation: ValidationClips | None
    ) -> Choice:
        """Use and return the choice of highest validation likelihood, or ``usual`` without a validation split."""
        chosen, highest = usual, -np.inf
        for choice in grid if validation is not None else []:
            use(choice)
            assert validation is not None
            if (likelihood := log_likelihood(validation.scores(self.solved), validation.right_C)) > highest:
                chosen, highest = choice, likelihood
        use(chosen)
        return chosen

    def _begin(self, pairs: Pairs) -> None:
        """Initialise the words' vectors and the layer on rows from the directions of words in some training clips."""
        clips = self._drawn(pairs, MAX_BEGINNING_CLIPS)
        max_of_part = MAX_WHITENED_ROWS * CLIPS_AT_ONCE // len(clips) + 1
        rows = [self._rows_of(part, max_of_part) for part in self._parts(pairs, clips)]
        whitening = whiten(torch.cat(rows), WIDTH, seed=self.seed)
        parts = []
        for part in self._parts(pairs, clips):
            shares = _shares(part, len(self.model.words.weight))
            parts.append((whitening(self.model.standardised(part.rows_BMF)), part.mask_BM, shares))
        longest = max(mask_BM.shape[1] for _, mask_BM, _ in parts)
        rows_BMK = torch.cat([_padded(rows_BMK, longest) for rows_BMK, _, _ in parts])
        mask_BM = torch.cat([_padded(mask_BM, longest) for _, mask_BM, _ in parts])
        words = torch.cat([shares for *_, shares in parts]).coalesce()
        self.model.begin(whitening, word_directions(rows_BMK, mask_BM, words, len(self.model.words.weight)))

    def _rows_of(self, part: ClipPart, most: int) -> Tensor:
        """Return some rows of a part's clips, standardised."""
        rows_TF = part.rows_BMF[part.mask_BM]
        return self.model.standardised(rows_TF[torch.from_numpy(evenly(len(rows_TF), most))])


def _padded(x_BL: Tensor, length: int) -> Tensor:
    """Return x [B, L, ...] padded with zeros to [B, ``length``, ...]."""
    return torch.cat([x_BL, x_BL.new_zeros(len(x_BL), length - x_BL.shape[1], *x_BL.shape[2:])], dim=1)


def _shares(part: ClipPart, num_words: int) -> Tensor:
    """Return the share of each clip's captions that contain each word, sparse [B, V]."""
    caption_P, column_P = part.mask_CN.nonzero(as_tuple=True)
    clip_P = part.clip_of_C[caption_P]
    share_P = 1 / part.clip_of_C.bincount()[clip_P]
    places = torch.stack([clip_P, part.ids_CN[caption_P, column_P]])
    return torch.sparse_coo_tensor(places, share_P, (len(part.mask_BM), num_words), check_invariants=False)
