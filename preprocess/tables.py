"""The tables of a data set, made of its captions in parts."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ..storage.captions.files import (
    ABOUT_NAME,
    CACHE_NAME,
    EXTRA_COLUMNS,
    OTHER_LANGUAGES,
    part_path,
    read_captions,
    read_captions_about,
    read_part_about,
    read_table,
    write_captions_about,
)
from ..storage.captions.idf import ANY_TAG, has_token_idf, read_counts, write_idf
from ..storage.common.errors import UserError, refuse_unreadable
from ..storage.common.files import read_json, write_json
from ..storage.common.problems import Problems
from ..storage.common.process_pool import OrderedMap, map_in_processes
from ..storage.common.progress import progress
from ..storage.common.signals import report_saved_work
from ..storage.common.terminal import say
from ..storage.common.writing import remove_file
from ..storage.dataset.folder import DatasetFolder
from .chunks import ChunkedRecords
from .corpus_statistics import CaptionStatistics, SkippedInputs, count_shared_texts
from .first_pass import FirstPass
from .idf import idf_table, plot_idf
from .language import other_languages
from .parts import TaggingPart, is_tagged, parts_among, tag_part
from .settings import CaptionProvenance
from .tag import Tagger, installed_tagger

SUMMARY_NAME = "summary.json"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The captions of a data set that are to be prepared, and the processes that do it."""

    dataset: DatasetFolder
    """The folder of its tables."""
    chunks: ChunkedRecords
    """The captions."""
    spacy_model: str
    """Installed spaCy pipeline."""
    problems: Problems
    """Receives inputs that are skipped."""
    provenance: CaptionProvenance = field(default_factory=CaptionProvenance)
    num_processes: int = 1
    """Processes of this machine that read, tag and encode captions, unless there is a ``parallel_map``."""
    parallel_map: OrderedMap | None = None
    """Reads, tags and encodes captions elsewhere, such as on a cluster."""

    @cached_property
    def tagger(self) -> Tagger:
        """The spaCy pipeline with its version. Raises ``UserError`` if it is not installed."""
        return installed_tagger(self.spacy_model)

    def mapper(self, max_processes: int | None = None) -> OrderedMap:
        """Return the map over parts or chunks: ``parallel_map``, or processes of this machine."""
        limit = self.num_processes if max_processes is None else min(self.num_processes, max_processes)
        return self.parallel_map or partial(map_in_processes, num_processes=limit)


def make_tables(preparation: Preparation, first_pass: FirstPass) -> CaptionStatistics:
    """Tag the parts that are not on disk, and write the files made from all parts.

    Returns:
        The statistics that are also on disk.
    """
    dataset, parallel_map = preparation.dataset, preparation.mapper()
    folder, summary_file = dataset.captions, dataset.captions / SUMMARY_NAME
    captions_sha256 = hashlib.sha256("".join(first_pass.keys).encode()).hexdigest()
    about = {
        "tagger": preparation.tagger.identity,
        "captions_sha256": captions_sha256,
        **preparation.provenance.to_json(),
    }
    left = {index for index, key in enumerate(first_pass.keys) if not is_tagged(folder, index, key)}
    results = (OTHER_LANGUAGES, EXTRA_COLUMNS)
    made_of = {name: value for name, value in (read_captions_about(folder) or {}).items() if name not in results}
    if not left and made_of == about and _is_current_idf(dataset.idf) and summary_file.exists():
        say(f"{folder}: already made from the same captions; nothing to do")
        _build_caption_cache(folder, parallel_map)  # missing if an earlier call was stopped before this
        with refuse_unreadable(summary_file, "not a summary of captions", "remove it and run the command again"):
            return CaptionStatistics.from_json(read_json(summary_file))
    for name in (ABOUT_NAME, CACHE_NAME):  # the folder is incomplete until everything is written
        remove_file(folder / name, missing_ok=True)
    if left:
        parts = _parts(preparation, first_pass, left)
        _show_tagging(parallel_map(tag_part, parts, doing="tagging captions"), sum(map(first_pass.size_of, left)))
    statistics, columns = _write_tables(preparation, first_pass)
    found = {OTHER_LANGUAGES: statistics.other_languages, EXTRA_COLUMNS: columns}
    write_captions_about(folder, about | {name: value for name, value in found.items() if value})
    _build_caption_cache(folder, parallel_map)
    return statistics


def _is_current_idf(path: Path) -> bool:
    """Return whether there is an IDF table with all columns. Tables of earlier versions lack some."""
    try:
        return has_token_idf(path)
    except UserError:
        return False


def _build_caption_cache(folder: Path, parallel_map: OrderedMap) -> None:
    """Write the file that training maps into memory, if it is missing: reading the captions makes it."""
    read_captions(folder, parallel_map)


def _parts(preparation: Preparation, first_pass: FirstPass, wanted: Collection[int]) -> Iterator[TaggingPart]:
    """Yield the parts with these numbers."""
    chunks = preparation.chunks
    located = parts_among(chunks.split(Problems(quiet=True)), first_pass.chunk_sizes, first_pass.part_captions)
    for index, (chunks_of_part, skip) in enumerate(located):
        if index in wanted:
            yield TaggingPart(
                folder=preparation.dataset.captions,
                index=index,
                chunks=chunks_of_part,
                read=chunks.read,
                skip=skip,
                num_captions=first_pass.size_of(index),
                key=first_pass.keys[index],
                tagger=preparation.tagger,
            )


def _show_tagging(made: Iterator[int], total: int) -> None:
    num_tagged = 0
    with report_saved_work(lambda: f"{num_tagged:,} captions tagged by this call are kept" if num_tagged else ""):
        for count in progress(made, total=total, what="tagging", unit="captions", size=int):
            num_tagged += count


def _write_tables(preparation: Preparation, first_pass: FirstPass) -> tuple[CaptionStatistics, list[str]]:
    """Write the IDF table and the statistics; return the statistics, and the names of the user's extra columns."""
    dataset, problems = preparation.dataset, preparation.problems
    folder, counter, num_parts = dataset.captions, first_pass.counter, len(first_pass.keys)
    counts: Counter[tuple[str, str]] = Counter()
    languages: Counter[str] = Counter()
    columns: dict[str, None] = {}
    tagger_language = ""
    for index in range(num_parts):
        counts.update(_read_counts(folder, index))
        part_about = read_part_about(part_path(folder, index))
        with refuse_unreadable(
            part_path(folder, index), "not a part of the captions", "remove it and run the same command again"
        ):
            for split, tags in part_about["tags"].items():
                counter.tags[split].update(_counts(tags))
            languages.update(_counts(part_about.get("languages", {})))  # parts of 1.0.0 have none
            columns |= dict.fromkeys(map(str, part_about.get(EXTRA_COLUMNS, [])))
            tagger_language = str(part_about.get("spoken", tagger_language))
    for path in (*folder.glob("part-*.parquet"), *(folder / "counts").glob("part-*.parquet")):
        if path.name >= part_path(folder, num_parts).name:
            remove_file(path)  # from an earlier call with more captions
    for partial_file in (*folder.glob(".part-*.partial"), *(folder / "counts").glob(".part-*.partial")):
        remove_file(partial_file, missing_ok=True)  # of a call that was killed
    idf = idf_table(counter.num_captions["train"], counts)
    write_idf(dataset.idf, idf)
    plot_idf(idf, dataset.idf.with_suffix(".png"))
    skipped = SkippedInputs(count=problems.count, first=problems.messages)
    shared_texts = count_shared_texts(_texts(dataset, num_parts), list(counter.num_captions))
    statistics = counter.statistics(shared_texts=shared_texts, changed=problems.changed, left_out=skipped)
    statistics = replace(statistics, other_languages=other_languages(languages, tagger_language))
    write_json(folder / SUMMARY_NAME, statistics.to_json())
    return statistics, list(columns)


def _read_counts(folder: Path, index: int) -> Counter[tuple[str, str]]:
    """Return the counts of a part, with any-tag counts added from the part if an older version lacks them."""
    counts = read_counts(part_path(folder / "counts", index))
    if not any(tag == ANY_TAG for _, tag in counts):
        table = read_table(part_path(folder, index), ["split", "words"])
        for split, words in zip(table["split"].to_pylist(), table["words"].to_pylist(), strict=True):
            if split == "train":
                counts.update({(word.lower(), ANY_TAG) for word in words})
    return counts


def _counts(values: Any) -> dict[str, int]:
    """Return ``values`` if it is {name: int}, else raise ``ValueError``."""
    if not isinstance(values, dict) or not all(type(count) is int for count in values.values()):
        raise ValueError("a count is not an integer")
    return values


def _texts(dataset: DatasetFolder, num_parts: int) -> Iterator[tuple[str, str, str]]:
    """Yield the split, the video and the text of each caption."""
    for index in range(num_parts):
        columns = ["split", "video_id", "caption"]
        table = read_table(part_path(dataset.captions, index), columns)
        yield from zip(*(table[name].to_pylist() for name in columns), strict=True)
