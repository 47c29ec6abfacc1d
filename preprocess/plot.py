"""A picture of an idf table, as TACo's Figure 4."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from ..storage.captions import IdfEntry
from ..storage.files import written_whole

MOST_WORDS = 60
TAGS = {"NOUN": "nouns", "VERB": "verbs"}


def evenly(entries: Sequence[IdfEntry], tag: str) -> list[IdfEntry]:
    """The words with a tag from the rarest to the most frequent; where there are many, as many as fit, evenly chosen."""
    words = sorted((e for e in entries if e.part_of_speech == tag), key=lambda e: (-e.idf, e.word))
    count = min(len(words), MOST_WORDS)
    return [words[round(i * (len(words) - 1) / max(count - 1, 1))] for i in range(count)]


def plot_idf(entries: Sequence[IdfEntry], path: Path) -> None:
    """Writes a PNG."""
    from matplotlib.figure import Figure  # a second to import; without pyplot, no screen is asked for

    figure = Figure(figsize=(14, 7), layout="constrained")
    for axes, (tag, name) in zip(figure.subplots(len(TAGS)), TAGS.items(), strict=True):
        words = evenly(entries, tag)
        axes.bar(range(len(words)), [e.idf for e in words], color="tab:blue" if tag == "NOUN" else "tab:orange")
        axes.set_xticks(
            range(len(words)), [e.word for e in words], rotation=90, fontsize=8, parse_math=False, usetex=False
        )
        axes.set_ylabel("idf")
        axes.set_title(
            f"{len(words):,} of {sum(e.part_of_speech == tag for e in entries):,} {name}, from rare to frequent",
            fontsize=10,
        )
        axes.margins(x=0.01)
    with written_whole(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # words in a script that the font lacks are drawn as boxes
        figure.savefig(partial, format="png", dpi=100)
