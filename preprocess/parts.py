"""Tagging in parts: each part of the captions is tagged and written as a whole, by any process, and never twice."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from ..storage.captions import INPUT_FIELDS, part_path, read_part_about, write_part
from ..storage.common.errors import UserError
from ..storage.common.processes import worker_processes
from ..storage.idf import write_counts
from ..storage.records import Caption
from .idf import count_words
from .tag import tag_captions


@dataclass(frozen=True)
class Part:
    """Consecutive captions that are tagged together."""

    folder: Path
    """Folder of the caption tables."""
    index: int
    captions: list[Caption]
    key: str
    """Identifies the captions and the tagger."""
    spacy_model: str


MakeParts = Callable[[Iterator[Part]], Iterator[int]]
"""Calls ``make_part`` for each part, in any order and on any machine, and yields what it returns."""


def part_key(captions: Sequence[Caption], tagger: str) -> str:
    """Return a hash of the captions and the name of the tagger."""
    digest = hashlib.sha256(tagger.encode())
    for caption in captions:
        digest.update(json.dumps([getattr(caption, name) for name in INPUT_FIELDS]).encode())
    return digest.hexdigest()


def is_made(folder: Path, index: int, key: str) -> bool:
    """Return whether a part with this key is on disk."""
    about = read_part_about(part_path(folder, index))
    return about.get("key") == key and part_path(folder / "counts", index).exists()


def make_part(part: Part) -> int:
    """Tag a part and write it, whole or not at all. Return its number of captions."""
    tagged = list(tag_captions(part.captions, part.spacy_model))
    tags: dict[str, Counter[str]] = {}
    for caption in tagged:
        tags.setdefault(caption.split, Counter()).update(caption.pos_tags)
    write_counts(part.folder, part.index, count_words(tagged))
    write_part(part.folder, part.index, tagged, {"key": part.key, "tags": tags})
    return len(tagged)


def make_parts_in_processes(parts: Iterator[Part], num_processes: int) -> Iterator[int]:
    """Make parts in processes of this machine, and yield the number of captions of each as it is done.

    At most two parts per process are read ahead. With one process, everything is done in this one.

    Raises:
        UserError: A process was killed.
    """
    if num_processes == 1:
        yield from map(make_part, parts)
        return
    waiting: set[Future[int]] = set()
    try:
        with worker_processes(num_processes) as pool:
            for part in parts:
                waiting.add(pool.submit(make_part, part))
                if len(waiting) > 2 * num_processes:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            yield from (future.result() for future in as_completed(waiting))
    except BrokenProcessPool:
        raise UserError(
            "a process that tagged captions was killed, perhaps because memory ran out; run the same command again to "
            "continue, if necessary with --workers 1"
        ) from None
