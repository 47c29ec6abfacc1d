"""Tagging in parts: each part of the captions is tagged and written as a whole, by any process, and never twice."""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from ..storage.captions.files import (
    EXTRA_COLUMNS,
    INPUT_FIELDS,
    MOMENT_FIELDS,
    extra_columns,
    part_path,
    read_part_about,
    write_part,
)
from ..storage.captions.idf import write_counts
from ..storage.captions.languages import languages_among
from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.records import Caption
from .chunks import ReadChunk, captions_among
from .datasets.sources import Chunk
from .idf import count_words
from .tag import Tagger, load_pipeline, tag_captions

T = TypeVar("T")

RERUN_HINT = "run the same command again"


@dataclass(frozen=True)
class TaggingPart:
    """Consecutive captions that are tagged together."""

    folder: Path
    """Folder of the caption tables."""
    index: int
    chunks: list[Chunk]
    """Chunks that contain the captions of this part, and perhaps captions of parts before and after it."""
    read: ReadChunk
    """Reads a chunk."""
    skip: int
    """Number of captions in the chunks that belong to earlier parts."""
    num_captions: int
    key: str
    """Identifies the captions and the tagger."""
    tagger: Tagger

    def captions(self) -> list[Caption]:
        """Return the captions of the part."""
        quiet = Problems(quiet=True)
        records = chain.from_iterable(self.read(chunk.content, quiet) for chunk in self.chunks)
        return list(islice(captions_among(records, quiet), self.skip, self.skip + self.num_captions))


def part_key(captions: Sequence[Caption], tagger: str) -> str:
    """Return a hash of the captions and the name of the tagger."""
    digest = hashlib.sha256(tagger.encode())
    for caption in captions:
        digest.update(input_bytes(caption))
    return digest.hexdigest()


def input_bytes(caption: Caption) -> bytes:
    """Return all fields of a caption that come from the annotations."""
    own: list[object] = [dict(caption.extra)] if caption.extra else []
    if caption.query is not None:
        own += [getattr(caption, name) for name in MOMENT_FIELDS]
    return json.dumps([*(getattr(caption, name) for name in INPUT_FIELDS), *own]).encode()


def is_tagged(folder: Path, index: int, key: str) -> bool:
    """Return whether a part with this key is on disk."""
    about = read_part_about(part_path(folder, index))
    return about.get("key") == key and part_path(folder / "counts", index).exists()


def tag_part(part: TaggingPart) -> int:
    """Tag a part and write it atomically. Return its number of captions.

    Raises:
        UserError: The captions do not match the part's key.
    """
    captions = part.captions()
    if part_key(captions, part.tagger.identity) != part.key:
        raise UserError(f"{part_path(part.folder, part.index)}: the annotations changed in the meantime; {RERUN_HINT}")
    tagged = list(tag_captions(captions, part.tagger.spacy_model))
    tags: dict[str, Counter[str]] = {}
    for caption in tagged:
        tags.setdefault(caption.split, Counter()).update(caption.pos_tags)
    write_counts(part.folder, part.index, count_words(tagged))
    tagger_language = load_pipeline(part.tagger.spacy_model).lang or ""
    languages = languages_among([caption.caption for caption in tagged], tagger_language)
    about: dict[str, Any] = {"key": part.key, "tags": tags, "languages": languages, "spoken": tagger_language}
    if columns := extra_columns(tagged):
        about[EXTRA_COLUMNS] = columns
    write_part(part.folder, part.index, tagged, about)
    return len(tagged)


def parts_among(chunks: Iterable[T], sizes: Iterable[int], part_captions: int) -> Iterator[tuple[list[T], int]]:
    """Yield the chunks that hold the captions of each part, and how many of their captions are in earlier parts.

    Args:
        chunks: The chunks, in order.
        sizes: Number of captions of each chunk.
        part_captions: Number of captions of each part but the last.
    """
    held: deque[tuple[T, int]] = deque()
    skip = num_held = 0
    for chunk, size in zip(chunks, sizes, strict=False):
        held.append((chunk, size))
        num_held += size
        while num_held - skip >= part_captions:
            yield [chunk for chunk, _ in held], skip
            skip += part_captions
            while held and held[0][1] <= skip:
                passed = held.popleft()[1]
                skip, num_held = skip - passed, num_held - passed
    if num_held > skip:
        yield [chunk for chunk, _ in held], skip
