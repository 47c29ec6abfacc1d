"""The tables of a data set, made of its captions in parts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..storage.captions.files import (
    ABOUT_NAME,
    MAPPED_NAME,
    OTHER_LANGUAGES,
    part_path,
    read_captions,
    read_captions_about,
    read_part_about,
    read_table,
    write_captions_about,
)
from ..storage.captions.idf import read_counts, write_idf
from ..storage.common.errors import refuse_unreadable
from ..storage.common.files import read_json, write_json
from ..storage.common.problems import Problems
from ..storage.common.process_pool import InOrder
from ..storage.common.progress import progress
from ..storage.common.signals import keeping
from ..storage.common.terminal import say
from ..storage.common.writing import remove_file
from ..storage.dataset.folder import DatasetFolder
from .chunks import Pieces
from .corpus_statistics import CaptionStatistics, LeftOut, count_shared_texts
from .first_pass import Survey
from .idf import idf_table
from .language import other_languages
from .parts import Part, is_made, make_part, parts_among
from .plot import plot_idf
from .tag import Tagger

SUMMARY_NAME = "summary.json"


def make_tables(
    dataset: DatasetFolder,
    pieces: Pieces,
    found: Survey,
    tagger: Tagger,
    about: dict[str, Any],
    problems: Problems,
    in_order: InOrder,
) -> CaptionStatistics:
    """Tag the parts that are not on disk, and write what is made of all parts.

    Args:
        dataset: Where to write.
        pieces: The captions.
        found: What the first pass over them found.
        tagger: The tagger.
        about: What decides the tables.
        problems: What was left out.
        in_order: Tags and encodes the parts.

    Returns:
        The statistics that are also on disk.
    """
    folder, summary_file = dataset.captions, dataset.captions / SUMMARY_NAME
    left = {index for index, key in enumerate(found.keys) if not is_made(folder, index, key)}
    made_of = {name: value for name, value in (read_captions_about(folder) or {}).items() if name != OTHER_LANGUAGES}
    if not left and made_of == about and dataset.idf.exists() and summary_file.exists():
        say(f"{folder}: already made from the same captions; nothing to do")
        read_captions(folder, in_order)  # writes the file that training maps, if an earlier call was stopped before
        with refuse_unreadable(summary_file, "not a summary of captions", "remove it and run the command again"):
            return CaptionStatistics.from_json(read_json(summary_file))
    for name in (ABOUT_NAME, MAPPED_NAME):  # the folder is incomplete until everything is written
        remove_file(folder / name, missing_ok=True)
    if left:
        located = parts_among(pieces.split(Problems(quiet=True)), found.piece_sizes, found.part_captions)
        parts = (
            Part(folder, index, held, pieces.read, skip, found.size_of(index), found.keys[index], tagger)
            for index, (held, skip) in enumerate(located)
            if index in left
        )
        _tag(in_order(make_part, parts, doing="tagging captions"), sum(map(found.size_of, left)))
    return _finish(dataset, found, about, problems, in_order)


def _tag(made: Iterator[int], total: int) -> None:
    num_tagged = 0
    with keeping(lambda: f"{num_tagged:,} captions tagged by this call are kept" if num_tagged else ""):
        for count in progress(made, total=total, what="tagging", unit="captions", size=int):
            num_tagged += count


def _finish(
    dataset: DatasetFolder, found: Survey, about: dict[str, Any], problems: Problems, in_order: InOrder
) -> CaptionStatistics:
    """Write what is made of all parts: the IDF table, the statistics, then the note that everything is complete, and
    the file that training maps, which that note belongs to."""
    folder, census, num_parts = dataset.captions, found.census, len(found.keys)
    counts: Counter[tuple[str, str]] = Counter()
    languages: Counter[str] = Counter()
    spoken = ""
    for index in range(num_parts):
        counts.update(read_counts(part_path(folder / "counts", index)))
        part_about = read_part_about(part_path(folder, index))
        with refuse_unreadable(part_path(folder, index), "not a part of the captions", "remove it, and run this again"):
            for split, tags in part_about["tags"].items():
                census.tags[split].update(_counts(tags))
            languages.update(_counts(part_about.get("languages", {})))  # parts of 1.0.0 have none
            spoken = str(part_about.get("spoken", spoken))
    for path in (*folder.glob("part-*.parquet"), *(folder / "counts").glob("part-*.parquet")):
        if path.name >= part_path(folder, num_parts).name:
            remove_file(path)  # from an earlier call with more captions
    for partial_file in (*folder.glob(".part-*.partial"), *(folder / "counts").glob(".part-*.partial")):
        remove_file(partial_file, missing_ok=True)  # of a call that was killed
    idf = idf_table(census.num_captions["train"], counts)
    write_idf(dataset.idf, idf)
    plot_idf(idf, dataset.idf.with_suffix(".png"))
    left_out = LeftOut(count=problems.count, first=problems.messages)
    shared_texts = count_shared_texts(_texts(dataset, num_parts), list(census.num_captions))
    statistics = census.statistics(shared_texts=shared_texts, changed=problems.changed, left_out=left_out)
    others = other_languages(languages, spoken)
    statistics = replace(statistics, other_languages=others)
    write_json(folder / SUMMARY_NAME, statistics.to_json())
    write_captions_about(folder, about | ({OTHER_LANGUAGES: others} if others else {}))
    read_captions(folder, in_order)  # writes the file that training maps
    return statistics


def _counts(values: Any) -> dict[str, int]:
    """Return what was counted. Raises ``ValueError`` for anything but integers by name."""
    if not isinstance(values, dict) or not all(type(count) is int for count in values.values()):
        raise ValueError("counts that are no integers")
    return values


def _texts(dataset: DatasetFolder, num_parts: int) -> Iterator[tuple[str, str, str]]:
    """Yield the split, the video and the text of each caption."""
    for index in range(num_parts):
        columns = ["split", "video_id", "caption"]
        table = read_table(part_path(dataset.captions, index), columns)
        yield from zip(*(table[name].to_pylist() for name in columns), strict=True)
