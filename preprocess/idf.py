"""Inverse document frequency of the words in the training captions."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from ..storage.captions.idf import IdfEntry
from ..storage.records import Caption

NOT_WORDS = {"PUNCT", "SPACE", "SYM", "X"}
"""Part-of-speech tags of tokens that are not counted."""


def count_words(captions: Iterable[Caption]) -> Counter[tuple[str, str]]:
    """Return the number of training captions that contain each (word, tag).

    A word is its lower-cased text together with its tag: "cook" as a noun and "cook" as a verb are two words. Counts
    of parts of the captions add up to those of all captions.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for caption in captions:
        if caption.split == "train":
            counts.update(
                {
                    (word.lower(), tag)
                    for word, tag in zip(caption.words, caption.pos_tags, strict=True)
                    if tag not in NOT_WORDS
                }
            )
    return counts


def idf_table(num_captions: int, counts: Mapping[tuple[str, str], int]) -> list[IdfEntry]:
    """Return the IDF of each word: log(num_captions / (1 + number of captions with the word)).

    A word in all captions but one has an IDF of 0, and a word in all captions one slightly below 0. Negative values
    are kept here. Whoever uses them as weights clips them to 0 (``TokenWeights``), because a negative weight would
    reward a mismatch.

    Args:
        num_captions: Number of training captions.
        counts: Number of training captions with each (word, tag), as from ``count_words``.

    Returns:
        Entries sorted by word and tag.

    Source: TACo, Eq. 7.
    """
    return [
        IdfEntry(word=word, part_of_speech=tag, document_count=count, idf=math.log(num_captions / (1 + count)))
        for (word, tag), count in sorted(counts.items())
    ]
