"""Reading CMCM's codebook: what each codeword stands for, in clips and in captions (the paper's section 4.3).

A row of a clip has the verbs of the clip's captions for labels, where the paper has an action label; a word piece is a part of a word.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...storage.records import Caption
from ..data.pairs import Clip, Pairs
from ..data.text import Pieces, at_characters
from ..data.text_inputs import TextInputs
from ..models.spoken import Recordings
from ..objectives import coded_texts, coded_videos
from ..scoring import CLIPS, TEXTS, Scorer
from ..workers import Workers

ONE_SIDE = 0.9
"""A codeword of which one side has a larger part than this of all use is that side's own (Figure 6)."""
HYPOTHESES = 2
MATRIX_LABELS, MATRIX_CODEWORDS = 20, 100  # Figure 3
SHOWN, SHOWN_CLIPS = 8, 4
"""Codewords whose places are shown, and clips of each (Figure 4)."""
VERB = "VERB"


@dataclass(frozen=True)
class Uses:
    """Where codewords stand in the clips and captions of a split."""

    clips: list[np.ndarray]
    """Of each clip: the codeword of each of its rows."""
    captions: list[np.ndarray]
    """Of each caption: the codeword of each of its word pieces, without the special ones."""
    words: list[list[str]]
    """Of each caption: the word that each of these pieces is a part of, in lower case; empty for what is no word."""


@torch.inference_mode()
def find_uses(scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip]) -> Uses:
    codebook, alone = scorer.model.codebook, Workers()
    scorer.model.eval()
    of_clips, of_captions, words = [], [], []
    for first in range(0, len(clips), CLIPS):
        coded = coded_videos(codebook, scorer.encode_videos(clips[first : first + CLIPS]), alone)
        of_clips += [
            codes[mask].cpu().numpy()
            for codes, mask in zip(codebook.nearest(coded.tokens_BLD), coded.mask_BL, strict=True)
        ]
    for first in range(0, len(captions), TEXTS):
        some = captions[first : first + TEXTS]
        coded = coded_texts(codebook, scorer.encode_texts(some), alone)
        if isinstance(scorer.text_inputs, Recordings):
            of_some = [
                codes[mask].cpu().numpy()
                for codes, mask in zip(codebook.nearest(coded.tokens_BLD), coded.mask_BL, strict=True)
            ]
            of_captions += of_some
            words += [[""] * len(codes) for codes in of_some]  # which word is spoken when is not known
            continue
        for caption, codes in zip(some, codebook.nearest(coded.tokens_BLD).cpu().numpy(), strict=True):
            pieces = word_pieces(scorer.text_inputs, caption)
            of_captions.append(codes[[place for place, _ in pieces]])
            words.append([word for _, word in pieces])
    return Uses(of_clips, of_captions, words)


def word_pieces(inputs: Pieces, caption: Caption) -> list[tuple[int, str]]:
    """The place of each word piece of a caption, and the word that it is a part of."""
    encoded = inputs.tokenizer(
        caption.caption, truncation=True, max_length=inputs.max_tokens, return_offsets_mapping=True
    )
    word_at = at_characters(caption, (word.lower() for word in caption.words), "")
    return [(place, word_at[start]) for place, (start, end) in enumerate(encoded["offset_mapping"]) if end > start]


def verbs_of(caption: Caption) -> list[str]:
    return sorted({word.lower() for word, tag in zip(caption.words, caption.pos_tags, strict=True) if tag == VERB})


def sharing(uses: Uses, size: int) -> dict[str, Any]:
    """How many codewords are in use, and what part of those by both sides (Figure 6). A side's uses are counted as parts of all of that
    side's, for clips have more rows than captions have words."""
    shares = np.stack([_counts(side, size) / max(sum(map(len, side)), 1) for side in (uses.clips, uses.captions)])
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
    }


def _counts(side: Sequence[np.ndarray], size: int) -> np.ndarray:
    return np.bincount(np.concatenate([*side, np.zeros(0, dtype=int)]).astype(int), minlength=size)


def table(uses: Uses, labels_of_clip: Sequence[Sequence[str]], size: int) -> list[dict[str, Any]]:
    """Table 2: of each codeword that clips use, how often, and the labels and words that it stands for best; the most precise first.

    Precision: of the codeword's rows, those of clips with the label. F1: of the codeword among word pieces and the word among them.
    """
    rows_with, pieces_with, of_word = [Counter() for _ in range(size)], [Counter() for _ in range(size)], Counter()
    for codes, labels in zip(uses.clips, labels_of_clip, strict=True):
        for code, number in Counter(codes.tolist()).items():
            rows_with[code].update(dict.fromkeys(labels, number))
    for codes, words in zip(uses.captions, uses.words, strict=True):
        for code, word in zip(codes.tolist(), words, strict=True):
            if word:
                pieces_with[code][word] += 1
                of_word[word] += 1
    occurrences, pieces = _counts(uses.clips, size), _counts(uses.captions, size)
    rows = []
    for code in np.flatnonzero(occurrences).tolist():
        precise = {label: number / occurrences[code] for label, number in rows_with[code].items()}
        f1 = {word: 2 * number / (pieces[code] + of_word[word]) for word, number in pieces_with[code].items()}
        rows.append(
            {"codeword": code, "occurrences": int(occurrences[code]), "verbs": _best(precise), "words": _best(f1)}
        )
    return sorted(rows, key=lambda row: (-max([p for _, p in row["verbs"]], default=0.0), row["codeword"]))


def _best(scores: dict[str, float]) -> list[tuple[str, float]]:
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:HYPOTHESES]
    return [(name, round(float(100 * value), 1)) for name, value in ordered]


def conditional_matrices(
    uses: Uses, labels_of_clip: Sequence[Sequence[str]], pairs: Pairs, size: int
) -> dict[str, Any]:
    """Figure 3: P(label | codeword) by the clips' rows and by the captions' pieces, for the most frequent labels and codewords."""
    frequent = Counter(label for labels in labels_of_clip for label in labels).most_common(MATRIX_LABELS)
    labels = {label: place for place, (label, _) in enumerate(frequent)}
    occurrences = _counts(uses.clips, size)
    codewords = np.argsort(-occurrences, kind="stable")[:MATRIX_CODEWORDS]
    codewords = codewords[occurrences[codewords] > 0]
    labels_of_caption = [labels_of_clip[clip] for clip in pairs.clip_of_caption]
    found = {"labels": list(labels), "codewords": codewords.tolist()}
    for name, side, of_side in (("clips", uses.clips, labels_of_clip), ("captions", uses.captions, labels_of_caption)):
        counts = np.zeros((len(labels), size))
        for codes, own in zip(side, of_side, strict=True):
            for label in own:
                if label in labels:
                    np.add.at(counts[labels[label]], codes, 1)
        found[name] = (counts / np.maximum(_counts(side, size), 1))[:, codewords]
    return found


def places(uses: Uses, pairs: Pairs, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figure 4: for some codewords that stand for a word, the clips and captions of which they light up most."""
    captions_of = pairs.captions_of_clips()
    named = sorted((row for row in rows if row["words"]), key=lambda row: -row["words"][0][1])[:SHOWN]
    named = named or [row for row in rows if row["verbs"]][:SHOWN]  # of what is spoken no words are known
    found = []
    for row in named:
        code = row["codeword"]
        share = [np.mean(codes == code) if len(codes) else 0.0 for codes in uses.clips]
        best = [clip for clip in np.argsort(share, kind="stable")[::-1][:SHOWN_CLIPS] if share[clip] > 0]
        shown = []
        for clip in best:
            caption = captions_of[clip][0]
            lit = {
                word
                for word, one in zip(uses.words[caption], uses.captions[caption], strict=True)
                if one == code and word
            }
            words = [(word, word.lower() in lit) for word in pairs.captions[caption].words]
            own = {"rows": (uses.clips[clip] == code).tolist(), "words": words, "recording": None}
            if not any(uses.words[caption]):  # the caption that says it most
                caption = max(captions_of[clip], key=lambda number: np.mean(uses.captions[number] == code))
                own |= {
                    "recording": pairs.captions[caption].recording,
                    "heard": (uses.captions[caption] == code).tolist(),
                }
            shown.append({**vars(pairs.clips[clip]), **own})
        found.append({**row, "clips": shown})
    return found


def read_codebook(scorer: Scorer, pairs: Pairs) -> dict[str, Any]:
    """All of it for a split: ``sharing``, ``table``, ``matrices``, ``places``, and the ``grid`` of a clip's rows."""
    size = scorer.model.codebook.size
    uses = find_uses(scorer, pairs.captions, pairs.clips)
    captions_of = pairs.captions_of_clips()
    verbs = [verbs_of(caption) for caption in pairs.captions]
    labels_of_clip = [sorted({verb for number in numbers for verb in verbs[number]}) for numbers in captions_of]
    rows = table(uses, labels_of_clip, size)
    return {
        "sharing": sharing(uses, size),
        "table": rows,
        "matrices": conditional_matrices(uses, labels_of_clip, pairs, size),
        "places": _with_spectrograms(places(uses, pairs, rows), scorer.text_inputs),
        "grid": scorer.config.grid,
    }


def _with_spectrograms(found: list[dict[str, Any]], inputs: TextInputs) -> list[dict[str, Any]]:
    """What is shown of recordings: their log-mel rows [T, D]."""
    for clip in (clip for row in found for clip in row["clips"] if clip["recording"]):
        clip["spectrogram"] = inputs.store.get(clip["recording"]).features[: inputs.max_rows]
    return found
