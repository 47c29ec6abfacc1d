"""The meaning of each codeword of CMCM's codebook, in clips and in captions (section 4.3 of the paper).

The label of a clip is its action, if captions are spoken and the data set names actions (S-MiT). Otherwise, its labels
are the verbs of its captions. Words are compared with their subwords, or with the parts of a recording in which they
are spoken, if the data set has the times of its words (``storage.captions.word_times``).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from ...storage.captions.word_times import read_word_times, words_at
from ...storage.records import Caption
from ..data.clips import Clip
from ..data.pairs import Pairs
from ..data.text_inputs import RecordingInputs, SubwordInputs, TextInputs, seconds_of_token
from ..distributed import Workers
from ..models.codebook import Coded, SharedCodebook, quantize
from ..scoring.scorer import CLIP_CHUNK, TEXT_CHUNK, Scorer


@dataclass(frozen=True)
class Uses:
    """The codewords that replace the tokens of a split's clips and captions."""

    clips: list[np.ndarray]
    """The codewords of each clip's rows."""
    captions: list[np.ndarray]
    """The codewords of each caption's subwords (without special ones), or of its recording's tokens."""
    words: list[list[str]]
    """For each subword of each caption, the word that it is part of, in lower case; empty if there is none. For
    recordings, the word that is spoken in the middle of each token."""
    are_spoken: bool = False
    """Captions are recordings."""


def codebook_of(scorer: Scorer) -> SharedCodebook:
    """Return the model's codebook.

    Raises:
        ValueError: The model has none.
    """
    if scorer.model.codebook is None:
        raise ValueError(f"a model of the objective {scorer.config.objective.name} has no codebook")
    return scorer.model.codebook


@torch.inference_mode()
def find_uses(
    scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip], word_times: Path | None = None
) -> Uses:
    """Return the codeword that is nearest to each token.

    Args:
        scorer: A model with a codebook.
        captions: Their tokens are subwords, or parts of their recordings.
        clips: Their tokens are rows.
        word_times: Folder of the times of spoken words. None, or a folder without files: the times are unknown.

    Raises:
        UserError: A file of that folder cannot be read.
    """
    codebook, single_process = codebook_of(scorer), Workers()
    scorer.model.eval()
    of_clips, of_captions, words = [], [], []
    for first in range(0, len(clips), CLIP_CHUNK):
        encoded = scorer.encode_videos(clips[first : first + CLIP_CHUNK])
        of_clips += _codes(codebook, quantize(codebook, encoded, single_process))
    for first in range(0, len(captions), TEXT_CHUNK):
        chunk = captions[first : first + TEXT_CHUNK]
        coded = quantize(codebook, scorer.encode_texts(chunk), single_process)
        if isinstance(scorer.text_inputs, RecordingInputs):
            codes_of_chunk = list(_codes(codebook, coded))
            of_captions += codes_of_chunk
            seconds = seconds_of_token(scorer.text_inputs.store)
            words += [
                _words_heard(caption, len(codes), seconds, word_times)
                for caption, codes in zip(chunk, codes_of_chunk, strict=True)
            ]
        elif isinstance(scorer.text_inputs, SubwordInputs):
            nearest = _nearest(codebook, coded).cpu().numpy()
            for caption, codes in zip(chunk, nearest, strict=True):
                pieces = scorer.text_inputs.words_of_tokens(caption)
                of_captions.append(codes[[index for index, _ in pieces]])
                words.append([word for _, word in pieces])
    return Uses(of_clips, of_captions, words, isinstance(scorer.text_inputs, RecordingInputs))


def _words_heard(caption: Caption, num_tokens: int, seconds: float, folder: Path | None) -> list[str]:
    """Return the word that is spoken in the middle of each of a recording's tokens, which last ``seconds`` each."""
    if folder is None or caption.recording is None:
        return [""] * num_tokens
    return words_at(read_word_times(folder, caption.recording), [(n + 0.5) * seconds for n in range(num_tokens)])


def _nearest(codebook: SharedCodebook, coded: Coded) -> Tensor:
    if coded.tokens_BLD is None:
        raise ValueError("the model was trained without codewords (codebook size 0)")
    return codebook.nearest(coded.tokens_BLD)


def _codes(codebook: SharedCodebook, coded: Coded) -> Iterator[np.ndarray]:
    for codes, mask in zip(_nearest(codebook, coded), coded.mask_BL, strict=True):
        yield codes[mask].cpu().numpy()


ONE_SIDE = 0.9
"""A codeword belongs to one side if more than this share of its uses is on that side (Figure 6)."""
NUM_HYPOTHESES = 2
MATRIX_LABELS, MATRIX_CODEWORDS = 20, 100  # Figure 3
SHOWN_CODEWORDS, SHOWN_CLIPS = 8, 4
"""Number of codewords whose uses the report shows, and of clips for each (Figure 4)."""
VERB = "VERB"


class Sharing(TypedDict):
    """Counts of how clips and captions share the codewords (Figure 6)."""

    size: int
    """Number of codewords."""
    live: int
    """Number of codewords in use."""
    joint: float
    """Share of the live codewords that both sides use; 0 to 1, as are the next two."""
    clips_only: float
    captions_only: float
    part_of_clips: list[float]
    """The clips' share of the uses of each live codeword."""
    codewords: list[int]
    """Indices of the live codewords."""


class Codeword(TypedDict):
    """A row of Table 2."""

    codeword: int
    """Its index in the codebook."""
    occurrences: int
    """Number of clips' rows that it replaces."""
    in_captions: int
    """Number of captions' subwords, or of recordings' tokens, that it replaces."""
    labels: list[tuple[str, float]]
    """The labels with the highest precision, in percent."""
    words: list[tuple[str, float]]
    """The words with the highest F1, in percent."""


class Matrices(TypedDict):
    """P(label | codeword) (Figure 3)."""

    labels: list[str]
    codewords: list[int]
    clips: np.ndarray
    """[labels, codewords], from the clips' rows."""
    captions: np.ndarray
    """[labels, codewords], from the captions' pieces."""


class SpokenPlace(TypedDict, total=False):
    """More about a caption that is spoken."""

    heard: list[bool]
    """True for each token of the recording that the codeword replaces."""
    spectrogram: np.ndarray
    """[T, D], the recording's log-mel rows."""


class Place(SpokenPlace):
    """A clip and one of its captions, with the parts that a codeword replaces."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    rows: list[bool]
    """True for each row of the clip that the codeword replaces."""
    words: list[tuple[str, bool]]
    """The caption's words, and whether the codeword replaces a piece of them."""
    recording: str | None
    """Recording of a spoken caption."""


class ShownCodeword(Codeword):
    """A codeword, with the clips in which it replaces the largest share of rows."""

    clips: list[Place]


class CodebookReport(TypedDict):
    """The meaning of a run's codewords on a split."""

    sharing: Sharing
    label_name: str
    """"verb" or "action"."""
    vectors: np.ndarray
    """[live codewords, D]"""
    table: list[Codeword]
    matrices: Matrices
    places: list[ShownCodeword]
    grid: tuple[int, int, int] | None
    """Time, height and width of the grid that a clip's rows form, for features that are maps."""


def read_codebook(scorer: Scorer, pairs: Pairs, word_times: Path | None = None) -> CodebookReport:
    """Return the meanings of a run's codewords on a split.

    Args:
        scorer: A model with a codebook.
        pairs: Clips and captions of the split.
        word_times: As for ``find_uses``.

    Raises:
        UserError: A file of that folder cannot be read.
    """
    size = codebook_of(scorer).size
    uses = find_uses(scorer, pairs.captions, pairs.clips, word_times)
    has_actions = uses.are_spoken and any(caption.task for caption in pairs.captions)
    labels = [
        ([caption.task] if caption.task else []) if has_actions else verbs_of(caption) for caption in pairs.captions
    ]
    labels_of_clip = [
        sorted({label for caption in captions for label in labels[caption]}) for captions in pairs.captions_of_clips
    ]
    rows = table(uses, labels_of_clip, size)
    shown = places(uses, pairs, rows)
    _add_spectrograms(shown, scorer.text_inputs)
    shared = sharing(uses, size)
    return {
        "sharing": shared,
        "label_name": "action" if has_actions else "verb",
        "vectors": codebook_of(scorer).codewords[shared["codewords"]].cpu().numpy(),
        "table": rows,
        "matrices": conditional_matrices(uses, labels_of_clip, pairs, size),
        "places": shown,
        "grid": scorer.config.data.grid,
    }


def verbs_of(caption: Caption) -> list[str]:
    """Return the verbs of a caption in lower case, sorted."""
    return sorted({word.lower() for word, tag in zip(caption.words, caption.pos_tags, strict=True) if tag == VERB})


def sharing(uses: Uses, size: int) -> Sharing:
    """Return how many codewords are in use, and which sides use them.

    Each side's uses count as shares of that side's total, because clips have more rows than captions have words.
    """
    sides = uses.clips, uses.captions
    shares = np.stack([_counts(side, size) / max(sum(map(len, side)), 1) for side in sides])
    live = shares.sum(axis=0) > 0
    of_clips = shares[0, live] / shares[:, live].sum(axis=0)
    joint = (of_clips <= ONE_SIDE) & (of_clips >= 1 - ONE_SIDE)
    return {
        "size": size,
        "live": int(live.sum()),
        "joint": float(joint.mean()) if live.any() else 0.0,
        "clips_only": float((of_clips > ONE_SIDE).mean()) if live.any() else 0.0,
        "captions_only": float((of_clips < 1 - ONE_SIDE).mean()) if live.any() else 0.0,
        "part_of_clips": of_clips.tolist(),
        "codewords": np.flatnonzero(live).tolist(),
    }


def _counts(side: Sequence[np.ndarray], size: int) -> np.ndarray:
    return np.bincount(np.concatenate([*side, np.zeros(0, dtype=int)]).astype(int), minlength=size)


def table(uses: Uses, labels_of_clip: Sequence[Sequence[str]], size: int) -> list[Codeword]:
    """Return the codewords that clips use, the most precise first (Tables 2 and 6).

    The precision of a label is the share of the codeword's rows that belong to clips with the label. F1 compares the
    subwords that the codeword replaces with those that are parts of the word.

    Args:
        uses: Where codewords are used.
        labels_of_clip: Labels of each clip.
        size: Number of codewords.
    """
    rows_with: list[Counter[str]] = [Counter() for _ in range(size)]
    pieces_with: list[Counter[str]] = [Counter() for _ in range(size)]
    num_pieces_of: Counter[str] = Counter()
    for codes, labels in zip(uses.clips, labels_of_clip, strict=True):
        for code, count in Counter(codes.tolist()).items():
            rows_with[code].update(dict.fromkeys(labels, count))
    for codes, words in zip(uses.captions, uses.words, strict=True):
        for code, word in zip(codes.tolist(), words, strict=True):
            if word:
                pieces_with[code][word] += 1
                num_pieces_of[word] += 1
    occurrences, num_pieces = _counts(uses.clips, size), _counts(uses.captions, size)
    rows: list[Codeword] = []
    for code in np.flatnonzero(occurrences).tolist():
        precision = {label: count / occurrences[code] for label, count in rows_with[code].items()}
        f1 = {word: 2 * count / (num_pieces[code] + num_pieces_of[word]) for word, count in pieces_with[code].items()}
        rows.append(
            {
                "codeword": code,
                "occurrences": int(occurrences[code]),
                "in_captions": int(num_pieces[code]),
                "labels": _best(precision),
                "words": _best(f1),
            }
        )
    return sorted(rows, key=lambda row: (-max([p for _, p in row["labels"]], default=0.0), row["codeword"]))


def _best(scores: dict[str, float]) -> list[tuple[str, float]]:
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:NUM_HYPOTHESES]
    return [(name, round(float(100 * value), 1)) for name, value in ordered]


def conditional_matrices(uses: Uses, labels_of_clip: Sequence[Sequence[str]], pairs: Pairs, size: int) -> Matrices:
    """Return P(label | codeword) on both sides, for the most frequent labels and codewords (Figure 3).

    Args:
        uses: Where codewords are used.
        labels_of_clip: Labels of each clip. A caption has the labels of its clip.
        pairs: Clips and captions of the split.
        size: Number of codewords.
    """
    frequent = Counter(label for labels in labels_of_clip for label in labels).most_common(MATRIX_LABELS)
    index_of = {label: index for index, (label, _) in enumerate(frequent)}
    occurrences = _counts(uses.clips, size)
    codewords = np.argsort(-occurrences, kind="stable")[:MATRIX_CODEWORDS]
    codewords = codewords[occurrences[codewords] > 0]

    def matrix(side: Sequence[np.ndarray], labels_of_side: Sequence[Sequence[str]]) -> np.ndarray:
        counts = np.zeros((len(index_of), size))
        for codes, labels in zip(side, labels_of_side, strict=True):
            for label in labels:
                if label in index_of:
                    np.add.at(counts[index_of[label]], codes, 1)
        return (counts / np.maximum(_counts(side, size), 1))[:, codewords]

    clip_of_caption: list[int] = pairs.clip_of_caption.tolist()
    labels_of_caption = [labels_of_clip[clip] for clip in clip_of_caption]
    return {
        "labels": list(index_of),
        "codewords": codewords.tolist(),
        "clips": matrix(uses.clips, labels_of_clip),
        "captions": matrix(uses.captions, labels_of_caption),
    }


def places(uses: Uses, pairs: Pairs, rows: Sequence[Codeword]) -> list[ShownCodeword]:
    """Return the codewords with the best match to a word, and the clips in which they replace the largest share of rows
    (Figure 4).

    Args:
        uses: Where codewords are used.
        pairs: Clips and captions of the split.
        rows: What ``table`` returned.
    """
    captions_of = pairs.captions_of_clips
    named = sorted((row for row in rows if row["words"]), key=lambda row: -row["words"][0][1])[:SHOWN_CODEWORDS]
    named = named or [row for row in rows if row["labels"]][:SHOWN_CODEWORDS]  # recordings without times of words
    shown: list[ShownCodeword] = []
    for row in named:
        share = [np.mean(codes == row["codeword"]) if len(codes) else 0.0 for codes in uses.clips]
        best = [clip for clip in np.argsort(share, kind="stable")[::-1][:SHOWN_CLIPS].tolist() if share[clip] > 0]
        clips = [_place(uses, pairs, row["codeword"], clip, captions_of[clip]) for clip in best]
        shown.append({**row, "clips": clips})
    return shown


def _place(uses: Uses, pairs: Pairs, code: int, clip: int, captions: Sequence[int]) -> Place:
    caption = captions[0]
    if uses.are_spoken:  # show the one with the largest share
        caption = max(captions, key=lambda index: np.mean(uses.captions[index] == code))
    pieces = zip(uses.words[caption], uses.captions[caption], strict=True)
    replaced = {word for word, piece_code in pieces if piece_code == code and word}
    where = pairs.clips[clip]
    place: Place = {
        "video_id": where.video_id,
        "start_seconds": where.start_seconds,
        "end_seconds": where.end_seconds,
        "rows": (uses.clips[clip] == code).tolist(),
        "words": [(word, word.lower() in replaced) for word in pairs.captions[caption].words],
        "recording": None,
    }
    if uses.are_spoken:
        place["recording"] = pairs.captions[caption].recording
        place["heard"] = (uses.captions[caption] == code).tolist()
    return place


def _add_spectrograms(shown: Sequence[ShownCodeword], inputs: TextInputs) -> None:
    """Add the log-mel rows [T, D] of the recordings that are shown."""
    if not isinstance(inputs, RecordingInputs):
        return
    for clip in (clip for row in shown for clip in row["clips"]):
        if clip["recording"]:
            clip["spectrogram"] = inputs.store.get(clip["recording"]).features[: inputs.max_rows]
