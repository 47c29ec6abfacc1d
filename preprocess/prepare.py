"""Reads the records of a data set, tags them, and writes ``captions/``, ``idf.parquet`` and, where it lists any, ``videos.jsonl``.

Captions are tagged in parts of a fixed number, by any number of processes: neither how many there are nor when they were
stopped changes a byte of the result. A part that is there from the same captions and the same tagger is not made again.
"""

import hashlib
import importlib.metadata
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

from ..storage.captions import (
    ABOUT_NAME,
    part_path,
    read_captions_about,
    read_counts,
    read_part_about,
    write_captions_about,
    write_counts,
    write_idf,
    write_part,
)
from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.common.processes import worker_processes
from ..storage.common.progress import progress
from ..storage.common.signals import keeping
from ..storage.common.terminal import say
from ..storage.files import read_json, write_json
from ..storage.layout import DatasetFolder
from ..storage.records import Caption, VideoRecord
from .census import Census
from .idf import count_words, idf_table
from .plot import plot_idf
from .tag import batched, installed_model, tag_captions

Part = tuple[Path, int, list[Caption], str, str]
"""Where to, its number, its captions, what tells it from another, and the tagger."""
PART_CAPTIONS = 5000
"""Some 20 seconds of work for a core: what a stopped run does again at most, for each process."""
KEY_FIELDS = (
    "video_id",
    "caption",
    "split",
    "start_seconds",
    "end_seconds",
    "task",
    "step",
    "answer",
    "question_type",
    "recording",
)
SUMMARY_NAME = "summary.json"


def prepare(
    dataset: DatasetFolder,
    read: Callable[[Problems], Iterator[VideoRecord | Caption]],
    *,
    spacy_model: str,
    problems: Problems,
    num_workers: int = 1,
    make_parts: Callable[[Iterator[Part]], Iterator[int]] | None = None,
    about: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Returns the summary that is also on disk; None, and writes nothing, where no caption is of a video that the data set has.

    ``read`` gives the same records each time; it is called once to look through them, which finds what is bad before any work is
    done, and a second time if anything is left to tag.

    ``make_parts``: who calls ``make_part`` for each, and gives what it returns, in any order; ``num_workers`` processes of this
    machine, if not given. ``about``: what else decides the captions, to be kept with them.
    """
    model, model_version = installed_model(spacy_model)
    tagger = f"{model} {model_version}, spaCy {importlib.metadata.version('spacy')}"
    census, videos, keys, sizes = Census(), [], [], []
    for captions in batched(_captions(read(problems), videos), PART_CAPTIONS):
        for caption in captions:
            census.add(caption)
        keys.append(_key(captions, tagger))
        sizes.append(len(captions))
    if not keys:
        raise UserError(f"{dataset.name}: no caption is left; see the lines above")
    known, wanted = {video.video_id for video in videos or dataset.read_videos()}, census.video_ids()
    if known and not known & wanted:
        problems.add(
            f"{dataset.videos_file}: lists none of the {len(wanted):,} videos that captions name, such as {min(wanted)!r}; it has "
            f"{len(known):,}, such as {min(known)!r}; nothing is written; expected ids as vlalign-extract gave them"
        )
        return None
    if videos and dataset.read_videos() != videos:
        dataset.write_videos(videos)
    made_from = {
        "tagger": tagger,
        "captions_sha256": hashlib.sha256("".join(keys).encode()).hexdigest(),
        **(about or {}),
    }
    folder, summary_file = dataset.captions, dataset.captions / SUMMARY_NAME
    left = {number: sizes[number] for number, key in enumerate(keys) if not _is_made(folder, number, key)}
    if not left and read_captions_about(folder) == made_from and dataset.idf.exists() and summary_file.exists():
        say(f"{folder}: made from the same captions before; nothing to do")
        summary = read_json(summary_file)
    else:
        (folder / ABOUT_NAME).unlink(missing_ok=True)  # until all is there again
        if left:
            captions = _captions(read(Problems(quiet=True)), [])
            _tag(
                folder,
                captions,
                keys,
                left,
                spacy_model,
                make_parts or partial(_in_processes, num_workers=min(num_workers, len(left))),
            )
        summary = _finish(dataset, census, len(keys), made_from, problems)
    report_missing_videos(dataset, census, problems)
    return summary


def _captions(records: Iterable[VideoRecord | Caption], videos: list[VideoRecord]) -> Iterator[Caption]:
    """The captions; videos go to the list."""
    for record in records:
        if isinstance(record, VideoRecord):
            videos.append(record)
        else:
            yield record


def _key(captions: Sequence[Caption], tagger: str) -> str:
    """Tells a part from one of other captions, or of another tagger."""
    digest = hashlib.sha256(tagger.encode())
    for caption in captions:
        digest.update(json.dumps([getattr(caption, name) for name in KEY_FIELDS]).encode())
    return digest.hexdigest()


def _is_made(folder: Path, number: int, key: str) -> bool:
    return (
        read_part_about(part_path(folder, number)).get("key") == key and part_path(folder / "counts", number).exists()
    )


def _tag(
    folder: Path,
    captions: Iterator[Caption],
    keys: Sequence[str],
    left: Mapping[int, int],
    model: str,
    make_parts: Callable[[Iterator[Part]], Iterator[int]],
) -> None:
    parts = ((number, part) for number, part in enumerate(batched(captions, PART_CAPTIONS)) if number in left)
    made = make_parts((folder, number, part, keys[number], model) for number, part in parts)
    num_made = 0
    with keeping(lambda: f"{num_made:,} captions tagged by this call are kept" if num_made else ""):
        for count in progress(
            made, total=sum(left.values()), what="tagging", unit="captions", size=lambda count: count
        ):
            num_made += count


def _in_processes(parts: Iterator[Part], num_workers: int) -> Iterator[int]:
    """``make_part`` of each, in the order in which they are done, by processes that are given no more than two parts ahead."""
    if num_workers == 1:
        yield from map(make_part, parts)
        return
    waiting: set[Future[int]] = set()
    try:
        with worker_processes(num_workers) as pool:
            for part in parts:
                waiting.add(pool.submit(make_part, part))
                if len(waiting) > 2 * num_workers:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            yield from (future.result() for future in as_completed(waiting))
    except BrokenProcessPool:
        raise UserError(
            "a process that tagged captions was killed, perhaps for want of memory; the same call goes on, with --workers 1 in the least"
        ) from None


def make_part(part: Part) -> int:
    """Tags a part and writes it, whole or not at all; returns how many captions it has."""
    folder, number, captions, key, model = part
    tagged = list(tag_captions(captions, model))
    words: dict[str, Counter[str]] = {}
    for caption in tagged:
        words.setdefault(caption.split, Counter()).update(caption.pos_tags)
    write_counts(folder, number, count_words(tagged))
    write_part(folder, number, tagged, {"key": key, "tags": words})
    return len(tagged)


def _finish(
    dataset: DatasetFolder, census: Census, num_parts: int, made_from: dict[str, Any], problems: Problems
) -> dict[str, Any]:
    """What is made of all parts: the idf table, the summary, and last the note that all is there."""
    folder = dataset.captions
    counts: Counter[tuple[str, str]] = Counter()
    for number in range(num_parts):
        counts.update(read_counts(part_path(folder / "counts", number)))
        for split, tags in read_part_about(part_path(folder, number))["tags"].items():
            census.tags[split].update(tags)
    for path in (*folder.glob("part-*.parquet"), *(folder / "counts").glob("part-*.parquet")):
        if path.name >= part_path(folder, num_parts).name:
            path.unlink()  # of an earlier run with more captions
    idf = idf_table(census.num_captions["train"], counts)
    write_idf(dataset.idf, idf)
    plot_idf(idf, dataset.idf.with_suffix(".png"))
    summary = census.summary() | {
        "changed": dict(problems.changed),
        "left_out": {"count": problems.count, "first": problems.messages},
    }
    write_json(folder / SUMMARY_NAME, summary)
    write_captions_about(folder, made_from)
    return summary


def report_missing_videos(dataset: DatasetFolder, census: Census, problems: Problems) -> None:
    known = {video.video_id for video in dataset.read_videos()}
    for video_id in sorted(census.video_ids() - known) if known else ():
        problems.add(
            f"captions of video {video_id!r}: {dataset.videos_file} lists no such video; expected its id as vlalign-extract gave it"
        )
