"""Inverse document frequency of the words of the training captions (TACo, Appendix A)."""

import math
from collections import Counter
from collections.abc import Iterable

from ..storage.captions import IdfEntry
from ..storage.records import Caption

NOT_WORDS = {"PUNCT", "SPACE", "SYM", "X"}


def idf_table(captions: Iterable[Caption]) -> list[IdfEntry]:
    """Eq. 7: idf = log(|D| / (1 + number of captions with the word)), over the captions of the training split.

    A word is its lower-cased text with its tag: "cook" the noun and "cook" the verb are two. What occurs in every caption has
    an idf at or a little below zero, and is kept so: whoever weighs by it decides what that means. Sorted by word and tag.
    """
    num_captions = 0
    counts: Counter[tuple[str, str]] = Counter()
    for caption in captions:
        if caption.split != "train":
            continue
        num_captions += 1
        counts.update({(word.lower(), tag) for word, tag in zip(caption.words, caption.pos_tags, strict=True) if tag not in NOT_WORDS})
    return [
        IdfEntry(word=word, part_of_speech=tag, document_count=count, idf=math.log(num_captions / (1 + count)))
        for (word, tag), count in sorted(counts.items())
    ]
