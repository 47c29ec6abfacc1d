"""The caption index: captions and subtitles that are searched for their words (BM25, by SQLite), and their moments."""

import json
import math
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...storage.captions.files import CaptionTime, caption_parts, read_times
from ...storage.common.errors import refuse_unreadable
from ...storage.common.files import check_regular
from ...storage.common.progress import progress
from ...storage.common.terminal import number_of, say
from ...storage.common.writing import atomic_write
from ...storage.dataset.folder import DatasetFolder
from ..data.clips import Clip
from .codes import AnyScan
from .encoder import Encoder
from .limits import check_time, is_out_of_time
from .moments import Moment, ScoreCurve

FILE_NAME = "said.sqlite"
FORMAT = 1
TABLE = (
    "CREATE VIRTUAL TABLE said USING fts5("
    "text, video_id UNINDEXED, start_seconds UNINDEXED, end_seconds UNINDEXED, tokenize='porter unicode61')"
)
ABOUT = "CREATE TABLE about(made_from TEXT)"
TABLES = {"about", "said", *(f"said_{part}" for part in ("config", "content", "data", "docsize", "idx"))}
"""Tables of such a file: the two, and those that SQLite adds to the first."""
LEAST_SHARE = 0.5
"""A caption is found if it scores at least this share of the best one. Fewer have only words that many others have."""
STEPS_BETWEEN_LOOKS = 10_000
"""Steps of SQLite's machine between two looks at the clock: a millisecond at most."""
MOST_WORDS = 64
"""More words of a query are not looked up: a search for words takes time in proportion to them."""
TODO = "remove it; the next search makes it again"


@dataclass(frozen=True, kw_only=True)
class Said:
    """A caption that has words of a query."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    """None if the caption is about the whole video."""
    text: str
    score: float
    """BM25; higher is better."""


class SaidIndex:
    """The captions of a data set, of all its protocols."""

    def __init__(self, path: Path) -> None:
        """Open a file that ``open_said`` made.

        Raises:
            UserError: The file is damaged, or is another one.
        """
        self.path = path
        check_regular(path)
        with self._refusing():
            # A connection may be used in another thread than this one, by one thread at a time.
            # Immutable: SQLite looks for no journal beside it, which may be a link, and makes none.
            where = f"{path.absolute().as_uri()}?immutable=1"
            self._open = sqlite3.connect(where, uri=True, check_same_thread=False)
            self._open.execute("PRAGMA trusted_schema=OFF")
            self._open.set_progress_handler(is_out_of_time, STEPS_BETWEEN_LOOKS)
            tables = self._open.execute("SELECT type, name FROM sqlite_schema").fetchall()
            if {name for kind, name in tables if kind == "table"} != TABLES or len(tables) != len(TABLES):
                raise ValueError("its tables are not those of an index of captions")

    def made_from(self) -> str:
        """Return what ``open_said`` noted about the captions."""
        with self._refusing():
            [(made_from,)] = self._open.execute("SELECT made_from FROM about")
            return str(made_from)

    def find(self, query: str, num_results: int, videos: Collection[str]) -> list[Said]:
        """Return the captions that fit a query best, the best first.

        Args:
            query: Any text. Captions with one of its words are found; rare words count more.
            num_results: Most captions to return.
            videos: Ids of the videos to search.
        """
        found: list[Said] = []
        with self._refusing(), self._in_time():
            for said in self._ranked(query):
                if (found and said.score < LEAST_SHARE * found[0].score) or len(found) == num_results:
                    break
                if said.video_id in videos and not any(_is_same(said, other) for other in found):
                    found.append(said)
        return found

    def _ranked(self, query: str) -> Iterator[Said]:
        words = list(dict.fromkeys(re.findall(r"\w+", query.lower())))[:MOST_WORDS]
        if not words:
            return
        asked = "SELECT video_id, start_seconds, end_seconds, text, -rank FROM said WHERE said MATCH ? ORDER BY rank"
        with closing(self._open.execute(asked, (" OR ".join(f'"{word}"' for word in words),))) as rows:
            for video_id, start, end, text, score in rows:
                if not all(isinstance(value, str) for value in (video_id, text)):
                    raise ValueError("a caption that is no text")
                if not all(value is None or math.isfinite(value) for value in (start, end)):
                    raise ValueError("a caption without a valid time")
                yield Said(video_id=video_id, start_seconds=start, end_seconds=end, text=text, score=score)

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError:  # "interrupted"
            check_time()
            raise

    def _refusing(self) -> AbstractContextManager[None]:
        errors = (sqlite3.Error, ValueError, TypeError)
        return refuse_unreadable(self.path, "not a readable index of captions", TODO, errors)


def _is_same(said: Said, other: Said) -> bool:
    """Return whether two protocols have the same caption."""
    return (said.video_id, said.start_seconds, said.text) == (other.video_id, other.start_seconds, other.text)


def open_said(dataset: DatasetFolder) -> SaidIndex | None:
    """Open the captions of a data set for search, after reading them again if they changed; None without any.

    Raises:
        UserError: The captions or the index are damaged.
    """
    parts = caption_parts(dataset)
    if not parts:
        return None
    sizes = [[str(part.relative_to(dataset.path)), *_changes(part)] for part in parts]
    made_from = json.dumps({"format": FORMAT, "parts": sizes})
    path = dataset.path / "index" / FILE_NAME
    if path.exists():
        index = SaidIndex(path)
        if index.made_from() == made_from:
            return index
    with atomic_write(path) as partial:
        _write(partial, made_from, progress(parts, total=len(parts), what="reading captions", unit="files"))
    return SaidIndex(path)


def _changes(part: Path) -> tuple[int, int]:
    stat = part.stat()
    return stat.st_size, stat.st_mtime_ns


def _write(path: Path, made_from: str, parts: Iterable[Path]) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=OFF")  # a file that is not whole is never used
        database.execute(ABOUT)
        database.execute(TABLE)
        for part in parts:
            database.executemany("INSERT INTO said VALUES (?, ?, ?, ?)", map(_row, read_times(part)))
        database.execute("INSERT INTO about VALUES (?)", (made_from,))
        database.commit()


def _row(caption: CaptionTime) -> tuple[str, str, float | None, float | None]:
    return caption.text, caption.video_id, caption.start_seconds, caption.end_seconds


MOST_NAMED = 5
NO_CURVE = ScoreCurve(np.zeros(0), np.zeros(0), np.zeros(0, np.float32))


def found_said(
    captions: Sequence[Said],
    encoder: Encoder,
    query: str,
    curve_of: Callable[[np.ndarray, str], ScoreCurve] | None = None,
    scan: AnyScan | None = None,
) -> list[Moment]:
    """Return the moments that captions are about, in the same order.

    Captions without feature rows are left out, and a line names them.

    Args:
        captions: What was found.
        encoder: Scores the moments as it does what is seen.
        query: What was asked.
        curve_of: Returns the curve of a vector and a video.
        scan: Of the query's vector. None: moments have the captions' own scores, and no percentile.
    """
    within = [(said, place) for said in captions if (place := _place(said, encoder)) is not None]
    vectors = encoder.clip_vectors([clip for _, (_, _, clip) in within]) if within else np.zeros((0, 0), np.float32)
    with_rows = np.flatnonzero(np.isfinite(vectors).all(axis=1))
    placed = [within[index] for index in with_rows]
    _say_left_out(captions, {said for said, _ in placed})
    if not placed or scan is None or curve_of is None:
        return [_moment(said, place, said.score) for said, place in placed]
    clips = [clip for _, (_, _, clip) in placed]
    scores = vectors[with_rows] @ scan.query_D
    percents = scan.percent_below(scores).tolist()
    staged = encoder.score(query, clips, len(clips))
    totals = scores if staged is None else staged.total
    moments = []
    for index, (said, place) in enumerate(placed):
        stages = {} if staged is None else {name: float(values[index]) for name, values in staged.stages.items()}
        curve = curve_of(scan.query_D, said.video_id).part(*place[:2])
        moments.append(_moment(said, place, float(totals[index]), percents[index], stages, curve))
    return moments


def _say_left_out(captions: Sequence[Said], kept: Collection[Said]) -> None:
    left_out = [said for said in captions if said not in kept]
    if left_out:
        named = ", ".join(f"{said.video_id}#{said.start_seconds}-{said.end_seconds}" for said in left_out[:MOST_NAMED])
        more = ", ..." if len(left_out) > MOST_NAMED else ""
        say(
            f"note: {number_of(len(left_out), 'captions')} with the query's words left out, which have no feature rows "
            f"({named}{more}): their times lie before the first row of the video, or after the last one"
        )


def _place(said: Said, encoder: Encoder) -> tuple[float, float, Clip] | None:
    """Return the part of the video that a caption is about; None if its features end before it."""
    duration = encoder.duration_seconds(said.video_id)
    if said.start_seconds is None or said.end_seconds is None:
        return 0.0, duration, Clip(said.video_id, None, None)
    start, end = said.start_seconds, min(said.end_seconds, duration)
    return (start, end, Clip(said.video_id, start, end)) if start < end else None


def _moment(
    said: Said,
    place: tuple[float, float, Clip],
    score: float,
    percentile: float | None = None,
    stages: dict[str, float] | None = None,
    curve: ScoreCurve = NO_CURVE,
) -> Moment:
    start, end, _ = place
    return Moment(
        video_id=said.video_id,
        start_seconds=start,
        end_seconds=end,
        score=score,
        percentile=percentile,
        window=(start, end),
        stages=stages or {},
        curve=curve,
        found_by="words",
        said=said.text,
    )
