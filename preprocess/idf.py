"""Inverse document frequency of the words in the training captions: counted, computed and drawn."""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..storage.captions.idf import ANY_TAG, IdfEntry
from ..storage.common.matplotlib_settings import default_settings
from ..storage.common.packages import missing_package_message
from ..storage.common.terminal import say
from ..storage.common.writing import atomic_write
from ..storage.records import Caption

NOT_WORDS = {"PUNCT", "SPACE", "SYM", "X"}
"""Part-of-speech tags of tokens that are not counted."""
MAX_DRAWN_WORDS = 60
DRAWN_TAGS = {"NOUN": "nouns", "VERB": "verbs"}


def count_words(captions: Iterable[Caption]) -> Counter[tuple[str, str]]:
    """Return the number of training captions that contain each (word, tag), and each word with any tag.

    Words are lower-cased. "cook" as a noun and "cook" as a verb are counted separately, and a caption with both counts
    once for ("cook", ``ANY_TAG``). The counts of parts of the captions add up to the counts of all captions.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for caption in captions:
        if caption.split == "train":
            words = [word.lower() for word in caption.words]
            counts.update(
                {(word, tag) for word, tag in zip(words, caption.pos_tags, strict=True) if tag not in NOT_WORDS}
            )
            counts.update({(word, ANY_TAG) for word in words})
    return counts


def idf_table(num_captions: int, counts: Mapping[tuple[str, str], int]) -> list[IdfEntry]:
    """Return the IDF of each word: log(num_captions / (1 + number of captions with the word)).

    A word in all captions but one has an IDF of 0; the IDF of a word in all captions is slightly below 0. Negative
    values are stored here. ``TokenWeights``, which uses them as weights, clips them to 0, because a negative weight
    would reward a mismatch.

    Args:
        num_captions: Number of training captions.
        counts: Number of training captions with each (word, tag) and each (word, ``ANY_TAG``), as from
            ``count_words``.

    Returns:
        Entries sorted by word and tag.

    Source: TACo, Eq. 7. Its "captions which contain a specific token" contain the word with any tag (``token_idf``).
    """

    def idf(count: int) -> float:
        return math.log(num_captions / (1 + count))

    return [
        IdfEntry(
            word=word,
            part_of_speech=tag,
            document_count=count,
            idf=idf(count),
            token_count=counts[word, ANY_TAG],
            token_idf=idf(counts[word, ANY_TAG]),
        )
        for (word, tag), count in sorted(counts.items())
        if tag != ANY_TAG
    ]


def choose_evenly(entries: Sequence[IdfEntry], tag: str) -> list[IdfEntry]:
    """Return up to ``MAX_DRAWN_WORDS`` words with a tag, evenly spaced from the rarest to the most frequent."""
    words = sorted((e for e in entries if e.part_of_speech == tag), key=lambda e: (-e.of_token, e.word))
    count = min(len(words), MAX_DRAWN_WORDS)
    return [words[round(i * (len(words) - 1) / max(count - 1, 1))] for i in range(count)]


def plot_idf(entries: Sequence[IdfEntry], path: Path) -> None:
    """Write a PNG like Figure 4 of TACo, with a bar for the IDF of each chosen noun and verb.

    Without Matplotlib, it is skipped and this is reported.
    """
    try:
        with default_settings():
            _draw(entries, path)
    except ModuleNotFoundError as error:
        say(f"note: {path} is not drawn: {missing_package_message(error)}")


def _draw(entries: Sequence[IdfEntry], path: Path) -> None:
    from matplotlib.figure import Figure  # without pyplot, no display is needed

    figure = Figure(figsize=(14, 7), layout="constrained")
    for axes, (tag, name) in zip(figure.subplots(len(DRAWN_TAGS)), DRAWN_TAGS.items(), strict=True):
        words = choose_evenly(entries, tag)
        axes.bar(range(len(words)), [e.of_token for e in words], color="tab:blue" if tag == "NOUN" else "tab:orange")
        axes.set_xticks(range(len(words)), [e.word for e in words], rotation=90, fontsize=8)
        axes.set_ylabel("idf")
        num_words = sum(e.part_of_speech == tag for e in entries)
        axes.set_title(f"{len(words):,} of {num_words:,} {name}, from rare to frequent", fontsize=10)
        axes.margins(x=0.01)
    with atomic_write(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # words in a script that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="constrained_layout not applied")  # long words
        figure.savefig(partial, format="png", dpi=100)
