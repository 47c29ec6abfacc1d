"""Inverse document frequency of the words of the training captions (TACo, Appendix A)."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from ..storage.captions import IdfEntry
from ..storage.records import Caption

NOT_WORDS = {"PUNCT", "SPACE", "SYM", "X"}


def count_words(captions: Iterable[Caption]) -> Counter[tuple[str, str]]:
    """In how many of the training captions each (word, tag) occurs. Counts of parts add up to those of the whole.

    A word is its lower-cased text with its tag: "cook" the noun and "cook" the verb are two.
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
    """Eq. 7: idf = log(|D| / (1 + number of captions with the word)), over the ``num_captions`` of the training split.

    What occurs in all captions but one has an idf of 0, what occurs in all a little below, and both are kept so: a weight below 0
    would reward what does not fit, so who weighs by it takes 0 for it (``TokenWeights``). Sorted by word and tag.
    """
    return [
        IdfEntry(word=word, part_of_speech=tag, document_count=count, idf=math.log(num_captions / (1 + count)))
        for (word, tag), count in sorted(counts.items())
    ]
