"""A picture of an IDF table, like Figure 4 of TACo."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from ..storage.captions.idf import IdfEntry
from ..storage.common.matplotlib_settings import own_settings
from ..storage.common.packages import what_is_missing
from ..storage.common.terminal import say
from ..storage.common.writing import written_whole

MOST_WORDS = 60
TAGS = {"NOUN": "nouns", "VERB": "verbs"}


def choose_evenly(entries: Sequence[IdfEntry], tag: str) -> list[IdfEntry]:
    """Return up to ``MOST_WORDS`` words with a tag, evenly spaced from the rarest to the most frequent."""
    words = sorted((e for e in entries if e.part_of_speech == tag), key=lambda e: (-e.idf, e.word))
    count = min(len(words), MOST_WORDS)
    return [words[round(i * (len(words) - 1) / max(count - 1, 1))] for i in range(count)]


def plot_idf(entries: Sequence[IdfEntry], path: Path) -> None:
    """Write a PNG with a bar for the IDF of each chosen noun and verb; none without Matplotlib, which is reported."""
    try:
        with own_settings():
            _draw(entries, path)
    except ModuleNotFoundError as error:
        say(f"note: {path} is not drawn: {what_is_missing(error)}")


def _draw(entries: Sequence[IdfEntry], path: Path) -> None:
    from matplotlib.figure import Figure  # without pyplot, no display is needed

    figure = Figure(figsize=(14, 7), layout="constrained")
    for axes, (tag, name) in zip(figure.subplots(len(TAGS)), TAGS.items(), strict=True):
        words = choose_evenly(entries, tag)
        axes.bar(range(len(words)), [e.idf for e in words], color="tab:blue" if tag == "NOUN" else "tab:orange")
        axes.set_xticks(range(len(words)), [e.word for e in words], rotation=90, fontsize=8)
        axes.set_ylabel("idf")
        num_words = sum(e.part_of_speech == tag for e in entries)
        axes.set_title(f"{len(words):,} of {num_words:,} {name}, from rare to frequent", fontsize=10)
        axes.margins(x=0.01)
    with written_whole(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # words in a script that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="constrained_layout not applied")  # long words
        figure.savefig(partial, format="png", dpi=100)
