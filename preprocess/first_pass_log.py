"""``survey.jsonl``: what the first pass over a large file found, kept while it goes on."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from ..storage.common.validation import is_text
from ..storage.common.writing import errors_naming, make_folder, open_own
from .corpus_statistics import Census

LOG_NAME = "survey.jsonl"


@dataclass(frozen=True)
class PieceCounts:
    """The counts and problems of a piece of the captions."""

    census: Census
    messages: list[str]
    """Problems."""
    changed: Counter[str]
    """As in ``Problems``."""

    @property
    def num_captions(self) -> int:
        """Number of captions of the piece."""
        return self.census.num_captions.total()


@dataclass(frozen=True)
class SurveyLine:
    """A line of the log."""

    keys: list[str]
    """Keys of the next parts."""
    pieces: list[PieceCounts]
    """The next pieces. All their captions are in parts of this line and of earlier ones."""
    is_last: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        pieces = [
            {"census": piece.census.to_json(), "messages": piece.messages, "changed": dict(piece.changed)}
            for piece in self.pieces
        ]
        return {"keys": self.keys, "pieces": pieces, "is_last": self.is_last}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "SurveyLine":
        """Return the line that ``to_json`` made these values of. Raises ``ValueError`` and others for anything else."""
        pieces = [
            PieceCounts(Census.from_json(piece["census"]), piece["messages"], Counter(piece["changed"]))
            for piece in values["pieces"]
        ]
        texts = [*values["keys"], *(message for piece in pieces for message in piece.messages)]
        counts = [count for piece in pieces for count in piece.changed.values()]
        if (
            not isinstance(values["keys"], list)
            or not all(map(is_text, texts))
            or not all(type(n) is int for n in counts)
        ):
            raise ValueError("keys or messages that are no texts, or counts that are no integers")
        return cls(values["keys"], pieces, bool(values["is_last"]))


@dataclass
class SurveyLog:
    """The log of a first pass, which goes on where an earlier call ended."""

    file: BinaryIO
    """Written at its end."""
    lines: list[SurveyLine] = field(default_factory=list)
    """What earlier calls found."""

    @property
    def ended(self) -> bool:
        """True if earlier calls found everything."""
        return bool(self.lines) and self.lines[-1].is_last

    def add(self, line: SurveyLine) -> None:
        """Write a line."""
        with errors_naming(Path(self.file.name)):
            self.file.write(json.dumps(line.to_json()).encode() + b"\n")
            self.file.flush()


@contextmanager
def survey_log(path: Path, about: Mapping[str, Any]) -> Iterator[SurveyLog]:
    """Open the log of a first pass.

    Args:
        path: The log. Its valid lines are kept if they are about the same, else it begins anew.
        about: Everything that decides what the first pass finds.

    Raises:
        UserError: The log is a link, or no regular file.
    """
    header = json.dumps(about, sort_keys=True).encode() + b"\n"
    make_folder(path.parent)
    with errors_naming(path), open_own(path, "a+b") as file:
        file.seek(0)
        log, end = SurveyLog(file), 0
        if file.readline(len(header) + 1) == header:
            end = len(header)
            for line in file:
                try:
                    log.lines.append(SurveyLine.from_json(json.loads(line)))
                except (
                    ValueError,
                    TypeError,
                    KeyError,
                    AttributeError,
                    RecursionError,
                ):  # cut short when its process ended
                    break
                end += len(line)
        file.truncate(end)
        if not end:
            file.write(header)
        yield log


@cache
def code_hash() -> str:
    """Return a hash of the code that makes captions of files. Other code may find other captions."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted([*package.rglob("*.py"), package.parent / "storage" / "records.py"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()
