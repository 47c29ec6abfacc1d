"""The first pass over the captions: what there is, and the key of each part.

Of a file that is read in pieces, several processes read the pieces, and what they found is kept in ``survey.jsonl``. A
call that follows continues there, if file, code and settings are the same.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from ..storage.common.problems import Problems
from ..storage.common.process_pool import InOrder
from ..storage.common.progress import progress
from ..storage.records import VideoRecord
from .chunks import Pieces, ReadPiece, captions_among
from .corpus_statistics import Census
from .datasets.sources import Piece
from .first_pass_log import PieceCounts, SurveyLine, SurveyLog
from .parts import input_bytes

BYTES_PER_PROCESS = 1 << 23
"""Least share of a file that is worth starting a process."""


@dataclass
class Survey:
    """The result of the first pass."""

    part_captions: int
    census: Census = field(default_factory=Census)
    videos: list[VideoRecord] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """Keys of all parts, in order."""
    piece_sizes: list[int] = field(default_factory=list)
    """Number of captions of each piece."""

    @property
    def num_captions(self) -> int:
        """Number of captions so far."""
        return self.census.num_captions.total()

    def size_of(self, part: int) -> int:
        """Return the number of captions of a part."""
        return min(self.part_captions, self.num_captions - part * self.part_captions)

    def add_line(self, line: SurveyLine, problems: Problems) -> None:
        """Add what an earlier call found."""
        self.keys += line.keys
        for piece in line.pieces:
            self.add(piece, problems)

    def add(self, piece: PieceCounts, problems: Problems) -> None:
        """Add what a piece holds, and report its problems."""
        self.census.add_all(piece.census)
        self.piece_sizes.append(piece.num_captions)
        for message in piece.messages:
            problems.add(message)
        problems.changed.update(piece.changed)


class Collected(Problems):
    """All problems of a piece, for another process to report."""

    def add(self, message: str) -> None:
        """Keep the message."""
        self.messages.append(message)


@dataclass(frozen=True)
class FoundInPiece:
    """The captions and videos of a piece, as a process counted them."""

    counts: PieceCounts
    videos: list[VideoRecord]
    inputs: list[bytes]
    """What decides each caption."""
    num_bytes: int
    """As of the piece."""


def survey_piece(piece: Piece, read: ReadPiece) -> FoundInPiece:
    """Look through a piece."""
    problems, census = Collected(), Census()
    videos: list[VideoRecord] = []
    inputs = []
    for caption in captions_among(read(piece.content, problems), problems, videos):
        census.add(caption)
        inputs.append(input_bytes(caption))
    return FoundInPiece(PieceCounts(census, problems.messages, problems.changed), videos, inputs, piece.num_bytes)


class PartKeys:
    """The keys of parts, made of captions that come in pieces of any size."""

    def __init__(self, tagger: str, part_captions: int, skip: int) -> None:
        """Begin with a new part.

        Args:
            tagger: Name of the tagger.
            part_captions: Number of captions of each part but the last.
            skip: Number of captions at the start that belong to earlier parts.
        """
        self._begin = partial(hashlib.sha256, tagger.encode())
        self._part_captions, self._skip = part_captions, skip
        self._digest, self._count = self._begin(), 0

    def add(self, inputs: list[bytes]) -> Iterator[str]:
        """Add captions, and yield the key of each part that they complete."""
        position = min(self._skip, len(inputs))
        self._skip -= position
        while position < len(inputs):
            taken = inputs[position : position + self._part_captions - self._count]
            self._digest.update(b"".join(taken))
            self._count, position = self._count + len(taken), position + len(taken)
            if self._count == self._part_captions:
                yield from self.end()

    def end(self) -> Iterator[str]:
        """Yield the key of the last part, if one has begun."""
        if self._count:
            yield self._digest.hexdigest()
            self._digest, self._count = self._begin(), 0


def survey(
    pieces: Pieces,
    tagger: str,
    problems: Problems,
    *,
    part_captions: int,
    in_order: InOrder,
    log: SurveyLog | None = None,
) -> Survey:
    """Look through all captions.

    Args:
        pieces: The captions.
        tagger: Name of the tagger, which is a part of the keys.
        problems: Receives inputs that are left out.
        part_captions: Number of captions of each part but the last.
        in_order: Reads the pieces.
        log: What an earlier call found. It is extended.

    Raises:
        UserError: The captions cannot be read.
    """
    found = Survey(part_captions)
    for line in log.lines if log else ():
        found.add_line(line, problems)
    if log and log.ended:
        return found
    num_logged = found.num_captions
    keys = PartKeys(tagger, part_captions, skip=len(found.keys) * part_captions - num_logged)
    unlogged: list[PieceCounts] = []
    for result in _read(pieces, problems, len(found.piece_sizes), in_order):
        found.add(result.counts, problems)
        found.videos += result.videos
        unlogged.append(result.counts)
        if new := list(keys.add(result.inputs)):
            found.keys += new
            # Only pieces whose captions all have a part with a key, so that the next call need not read them again.
            whole = []
            while unlogged and num_logged + unlogged[0].num_captions <= len(found.keys) * part_captions:
                whole.append(unlogged.pop(0))
                num_logged += whole[-1].num_captions
            if log:
                log.add(SurveyLine(new, whole))
    new = list(keys.end())
    found.keys += new
    if log:
        log.add(SurveyLine(new, unlogged, is_last=True))
    return found


def _read(pieces: Pieces, problems: Problems, num_known: int, in_order: InOrder) -> Iterator[FoundInPiece]:
    """Yield what the pieces after the first ``num_known`` hold. Show progress if they are those of a file."""
    split, read = pieces.split(problems), partial(survey_piece, read=pieces.read)
    if pieces.source is None:
        return in_order(read, islice(split, num_known, None), doing="reading captions")
    num_bytes = 0
    if num_known:
        known = progress(islice(split, num_known), total=num_known, what="passing what was read before", unit="pieces")
        num_bytes = sum(piece.num_bytes for piece in known)
    return progress(
        in_order(read, split, doing="reading captions"),
        total=pieces.source.stat().st_size,
        what="reading captions",
        unit="bytes",
        size=lambda found: found.num_bytes,
        done=num_bytes,
    )
