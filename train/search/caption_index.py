"""The caption index: captions and subtitles, found by the words of a query (BM25, by SQLite's full-text search).

SQLite finds the terms that ``caption_terms`` makes of texts; it splits them at spaces only.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path

import numpy as np

from ...storage.captions.files import TimedCaption, caption_parts, read_timed_captions
from ...storage.captions.languages import LANGUAGES, SAMPLE_SIZE
from ...storage.common.errors import SettingError, refuse_unreadable
from ...storage.common.files import check_regular
from ...storage.common.progress import progress
from ...storage.common.terminal import number_of, say
from ...storage.common.writing import atomic_write
from ...storage.dataset.folder import DatasetFolder
from ..data.clips import Clip
from .caption_terms import CaptionTerms, has_words
from .coded_search import CandidateSearch
from .encoder import ClipScores, SearchEncoder
from .moments import Moment, ScoreCurve
from .query_checks import check_time, is_timed_out

FILE_NAME = "said.sqlite"
"""The file and its table keep the names of earlier versions: existing indexes stay valid."""
FORMAT = 3
TABLE = (
    "CREATE VIRTUAL TABLE said USING fts5("
    "terms, text UNINDEXED, video_id UNINDEXED, start_seconds UNINDEXED, end_seconds UNINDEXED, tokenize='ascii')"
)
"""The tokenizer treats all characters that are not ASCII as letters."""
ABOUT = "CREATE TABLE about(made_from TEXT, languages TEXT)"
TABLES = {"about", "said", *(f"said_{part}" for part in ("config", "content", "data", "docsize", "idx"))}
"""Tables of such a file: the two tables, and those that SQLite adds for the second."""
MIN_SCORE_SHARE = 0.5
"""A caption is found if it scores at least this share of the best one: captions below share only common words."""
SQLITE_STEPS_PER_TIME_CHECK = 10_000
"""Steps of SQLite's virtual machine between two checks of the time: a millisecond at most."""
MAX_QUERY_TERMS = 64
"""Maximum number of terms of a query that are looked up: the time of a search is proportional to it."""
DETECT = "auto"
"""Instead of a language: detect it."""
CAPTIONS_AT_ONCE = 20
"""Captions whose moments are made together."""
REMEDY = "remove it; the next search rebuilds it"
MAX_NAMED = 5
"""Captions without feature vectors that a note names."""


@dataclass(frozen=True, kw_only=True)
class CaptionMatch:
    """A caption that has words of a query."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    """None if the caption is about the whole video."""
    text: str
    score: float
    """BM25; higher is better."""


@dataclass(frozen=True)
class CaptionSpans:
    """Parts of videos that some captions are about."""

    by_video: dict[str, list[tuple[float, float]]]
    """{video id: start and end in seconds of each part}"""

    def overlap(self, video_id: str, start_seconds: float | None, end_seconds: float | None) -> bool:
        """Return whether one of the spans overlaps a part of a video; None for the video's own start or end."""
        start, end = start_seconds or 0.0, math.inf if end_seconds is None else end_seconds
        return any(start < last and end > first for first, last in self.by_video.get(video_id, ()))

    def overlap_moment(self, moment: Moment) -> bool:
        """Return whether one of the spans overlaps a moment."""
        return self.overlap(moment.video_id, moment.start_seconds, moment.end_seconds)


NO_SPANS = CaptionSpans({})


class CaptionIndex:
    """The captions of a data set, of all its protocols."""

    def __init__(self, path: Path) -> None:
        """Open a file that ``open_caption_index`` made.

        Raises:
            UserError: The file is damaged, or is not a caption index.
        """
        self.path = path
        check_regular(path)
        with self._refuse_damaged():
            # A connection may be used in another thread than this one, by one thread at a time.
            # Immutable: SQLite looks for no journal beside it, which may be a link, and makes none.
            where = f"{path.absolute().as_uri()}?immutable=1"
            self._database = sqlite3.connect(where, uri=True, check_same_thread=False)
            self._database.execute("PRAGMA trusted_schema=OFF")
            self._database.set_progress_handler(is_timed_out, SQLITE_STEPS_PER_TIME_CHECK)
            tables = self._database.execute("SELECT type, name FROM sqlite_schema").fetchall()
            if {name for kind, name in tables if kind == "table"} != TABLES or len(tables) != len(TABLES):
                raise ValueError("its tables are not a caption index")

    def made_from(self) -> str:
        """Return the description of the captions that ``open_caption_index`` recorded."""
        with self._refuse_damaged():
            [(made_from,)] = self._database.execute("SELECT made_from FROM about")
            return str(made_from)

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """Languages of the captions, such as "de", the most frequent first."""
        with self._refuse_damaged():
            [(text,)] = self._database.execute("SELECT languages FROM about")
            languages = json.loads(text)
            if not isinstance(languages, list) or not all(isinstance(code, str) for code in languages):
                raise ValueError("its languages are not a list of texts")
            if not languages or not LANGUAGES.issuperset(languages):
                raise ValueError(f"its languages {languages} are unknown")
            return tuple(dict.fromkeys(languages))

    @cached_property
    def _terms(self) -> CaptionTerms:
        return CaptionTerms(self.languages)

    def has_content_words(self, query: str) -> bool:
        """Return whether a query has words besides stop words, which match no captions.

        A stop word of only one of the captions' languages counts as a content word if captions contain it.
        """
        of_languages = self._terms.of_words(query).values()
        if not any(of_languages) or all(of_languages):
            return any(of_languages)
        with self._refuse_damaged(), self._until_timeout():
            return next(self._ranked(self._terms.of_query(query)), None) is not None

    def find(self, query: str, num_results: int, videos: Collection[str]) -> list[CaptionMatch]:
        """Return the captions that fit a query best, the best first.

        Args:
            query: Any text. Captions with one of its words, other than stop words, are found; rare words count more.
            num_results: Most captions to return.
            videos: Ids of the videos to search.
        """
        return list(islice(self.matches(query, videos), num_results))

    def matches(
        self,
        query: str,
        videos: Collection[str],
        min_score: float | None = None,
        excluded: CaptionSpans = NO_SPANS,
    ) -> Iterator[CaptionMatch]:
        """Yield all captions that fit a query, the best first.

        Args:
            query: Any text.
            videos: Ids of the videos to search.
            min_score: Least score of a caption that fits. None: a share of the best one (``MIN_SCORE_SHARE``).
            excluded: Parts of videos; captions that overlap one are left out.
        """
        found: set[tuple[str, float | None, str]] = set()
        ranked = self._ranked(self._terms.of_query(query))
        while True:
            with self._refuse_damaged(), self._until_timeout():
                match = next(ranked, None)
            if match is None or (min_score is not None and match.score < min_score):
                return
            key = match.video_id, match.start_seconds, match.text  # two protocols may have the same caption
            is_excluded = excluded.overlap(match.video_id, match.start_seconds, match.end_seconds)
            if match.video_id in videos and key not in found and not is_excluded:
                min_score = MIN_SCORE_SHARE * match.score if min_score is None else min_score
                found.add(key)
                yield match

    def spans_with(self, text: str) -> CaptionSpans:
        """Return the parts of videos whose captions have a content word of a text; no parts if it has no such word.

        Args:
            text: Any text.
        """
        spans: dict[str, list[tuple[float, float]]] = {}
        with self._refuse_damaged(), self._until_timeout():
            for match in self._ranked(self._terms.of_query(text)):
                end = math.inf if match.end_seconds is None else match.end_seconds
                spans.setdefault(match.video_id, []).append((match.start_seconds or 0.0, end))
        return CaptionSpans(spans)

    def videos_with(self, text: str) -> set[str]:
        """Return the ids of videos with a caption that has all content words of a text, in any form.

        Args:
            text: Any text.

        Raises:
            SettingError: It has no words, or only stop words.
        """
        if not self.has_content_words(text):
            problem = "has only stop words, which are not searched for; add other words"
            raise SettingError(
                "caption", text, problem if has_words(text) else "has no words; expected some, such as 'red roses'"
            )
        of_languages = [words[:MAX_QUERY_TERMS] for words in self._terms.of_words(text).values() if words]
        every = (" AND ".join(f"({_any_of(terms)})" for terms in words) for words in of_languages)
        in_any_language = " OR ".join(f"({words})" for words in dict.fromkeys(every))
        with self._refuse_damaged(), self._until_timeout():
            rows = self._database.execute("SELECT DISTINCT video_id FROM said WHERE said MATCH ?", (in_any_language,))
            return {str(video_id) for (video_id,) in rows}

    def languages_of_videos(self) -> dict[str, str]:
        """Return {video id: the one of ``languages`` in which the words of its captions are compared}."""
        texts: dict[str, list[str]] = {}
        with self._refuse_damaged(), self._until_timeout():
            for video_id, text in self._database.execute("SELECT video_id, text FROM said"):
                texts.setdefault(str(video_id), []).append(str(text))
        return {video_id: self._terms.language_of(of_video) for video_id, of_video in texts.items()}

    def _ranked(self, terms: Sequence[str]) -> Iterator[CaptionMatch]:
        if not terms:
            return
        statement = (
            "SELECT video_id, start_seconds, end_seconds, text, -rank FROM said WHERE said MATCH ? ORDER BY rank"
        )
        with closing(self._database.execute(statement, (_any_of(terms[:MAX_QUERY_TERMS]),))) as rows:
            for video_id, start, end, text, score in rows:
                if not all(isinstance(value, str) for value in (video_id, text)):
                    raise ValueError("a caption that is not text")
                if not all(value is None or math.isfinite(value) for value in (start, end)):
                    raise ValueError("a caption without a valid time")
                yield CaptionMatch(video_id=video_id, start_seconds=start, end_seconds=end, text=text, score=score)

    @contextmanager
    def _until_timeout(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError:  # "interrupted"
            check_time()
            raise

    def _refuse_damaged(self) -> AbstractContextManager[None]:
        errors = (sqlite3.Error, ValueError, TypeError)
        return refuse_unreadable(self.path, "not a readable caption index", REMEDY, errors)


def _any_of(terms: Sequence[str]) -> str:
    """Return an SQLite full-text query for captions with any of some terms."""
    return " OR ".join(f'"{term}"' for term in terms)


def open_caption_index(dataset: DatasetFolder, language: str | None = None) -> CaptionIndex | None:
    """Open the captions of a data set for search, after reading them again if they changed; None without any.

    Args:
        dataset: The data set.
        language: Language of the captions, such as "de", also for later calls; "auto" to detect it. None: the language
            of earlier calls, at first "auto".

    Raises:
        UserError: The captions or the index are damaged, or the language is not known.
    """
    if language is not None:
        check_language(language)
    files = caption_parts(dataset)
    if not files:
        return None
    path = dataset.path / "index" / FILE_NAME
    index = CaptionIndex(path) if path.exists() else None
    made_before = "" if index is None else index.made_from()
    facts = {
        "format": FORMAT,
        "parts": [[str(file.relative_to(dataset.path)), *_size_and_time(file)] for file in files],
        "lists": {package: version(package) for package in ("snowballstemmer", "spacy")},
        "language": language or _language_in(made_before),
    }
    made_from = json.dumps(facts)
    if index is not None and made_before == made_from:
        return index
    with atomic_write(path) as partial:
        _write(partial, made_from, files, facts["language"])
    return CaptionIndex(path)


def check_language(language: str) -> None:
    """Raise ``SettingError`` for an unknown language."""
    if language != DETECT and language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        raise SettingError("language", language, f"unknown; expected {DETECT}, which detects it, or one of {known}")


def _language_in(made_from: str) -> str:
    """Return the language that an index was made with; ``DETECT`` if it is not recorded."""
    try:
        facts = json.loads(made_from)
    except ValueError:
        return DETECT
    language = facts.get("language") if isinstance(facts, dict) else None
    return language if isinstance(language, str) and language in LANGUAGES else DETECT


def _size_and_time(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def _write(path: Path, made_from: str, files: Sequence[Path], language: str) -> None:
    terms = CaptionTerms([language]) if language != DETECT else CaptionTerms.detect([_sample(file) for file in files])
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=OFF")  # a file that is not whole is never used
        database.execute(ABOUT)
        database.execute(TABLE)
        for file in progress(files, total=len(files), what="reading captions", unit="files"):
            database.executemany("INSERT INTO said VALUES (?, ?, ?, ?, ?)", _rows(read_timed_captions(file), terms))
        database.execute("INSERT INTO about VALUES (?, ?)", (made_from, json.dumps(terms.languages)))
        database.commit()


def _sample(file: Path) -> list[str]:
    """Return the texts of about ``SAMPLE_SIZE`` captions of a file."""
    texts = [caption.text for caption in read_timed_captions(file)]
    return texts[:: max(1, len(texts) // SAMPLE_SIZE)]


def _rows(captions: Iterable[TimedCaption], terms: CaptionTerms) -> Iterator[tuple[str | float | None, ...]]:
    """Yield the rows of the table. The captions of a video are in one language."""
    for _, of_video in groupby(captions, attrgetter("video_id")):
        listed = list(of_video)
        language = terms.language_of([caption.text for caption in listed])
        for caption in listed:
            found = terms.of_caption(caption.text, language)
            yield found, caption.text, caption.video_id, caption.start_seconds, caption.end_seconds


NO_CURVE = ScoreCurve(np.zeros(0), np.zeros(0), np.zeros(0, np.float32))


@dataclass(frozen=True)
class _Located:
    """A caption, and the part of the video that it is about."""

    match: CaptionMatch
    start_seconds: float
    end_seconds: float
    clip: Clip

    def moment(
        self,
        score: float,
        percentile: float | None = None,
        stages: dict[str, float] | None = None,
        curve: ScoreCurve = NO_CURVE,
    ) -> Moment:
        """Return the moment of the caption."""
        return Moment(
            video_id=self.match.video_id,
            start_seconds=self.start_seconds,
            end_seconds=self.end_seconds,
            score=score,
            percentile=percentile,
            window=(self.start_seconds, self.end_seconds),
            stages=stages or {},
            curve=curve,
            found_by="text",
            caption=self.match.text,
            caption_score=self.match.score,
        )


def caption_moments(
    matches: Iterable[CaptionMatch],
    encoder: SearchEncoder,
    score: Callable[[Sequence[Clip]], ClipScores | None] | None = None,
    curve_of: Callable[[np.ndarray, str], ScoreCurve] | None = None,
    candidates: CandidateSearch | None = None,
) -> Iterator[Moment]:
    """Yield the moments that captions are about, in the same order.

    Captions without feature vectors are skipped, and a note names them.

    Args:
        matches: The captions that were found.
        encoder: Encoder of the data set.
        score: Scores clips with all stages, as it scores windows.
        curve_of: Returns the curve of a vector and a video.
        candidates: The search for the query's vector. None: moments have the captions' own scores, and no percentile.
    """
    remaining = iter(matches)
    while block := list(islice(remaining, CAPTIONS_AT_ONCE)):
        yield from _block_moments(block, encoder, score, curve_of, candidates)


def _block_moments(
    matches: Sequence[CaptionMatch],
    encoder: SearchEncoder,
    score: Callable[[Sequence[Clip]], ClipScores | None] | None,
    curve_of: Callable[[np.ndarray, str], ScoreCurve] | None,
    candidates: CandidateSearch | None,
) -> list[Moment]:
    """Return the moments of some captions, which are encoded together."""
    within = [located for match in matches if (located := _locate(match, encoder)) is not None]
    vectors = encoder.encode_clips([located.clip for located in within]) if within else np.zeros((0, 0), np.float32)
    has_vector = np.isfinite(vectors).all(axis=1)
    found = [within[index] for index in np.flatnonzero(has_vector)]
    _warn_about_skipped(matches, {located.match for located in found})
    if not found or candidates is None or curve_of is None or score is None:
        return [located.moment(located.match.score) for located in found]
    clips = [located.clip for located in found]
    scores = candidates.scores_of(vectors[has_vector])
    biases = scores - vectors[has_vector] @ candidates.query_D
    percentiles = candidates.percentiles(scores).tolist()
    staged = score(clips)
    totals = scores if staged is None else staged.total + biases
    moments = []
    for index, located in enumerate(found):
        stages = {} if staged is None else {name: float(values[index]) for name, values in staged.stages.items()}
        curve = curve_of(candidates.query_D, located.match.video_id).part(located.start_seconds, located.end_seconds)
        moments.append(located.moment(float(totals[index]), percentiles[index], stages, curve))
    return moments


def _warn_about_skipped(matches: Sequence[CaptionMatch], found: Collection[CaptionMatch]) -> None:
    skipped = [match for match in matches if match not in found]
    if skipped:
        named = ", ".join(
            f"{match.video_id}#{match.start_seconds}-{match.end_seconds}" for match in skipped[:MAX_NAMED]
        )
        more = ", ..." if len(skipped) > MAX_NAMED else ""
        say(
            f"note: skipped {number_of(len(skipped), 'captions')} with the query's words that have no feature vectors "
            f"({named}{more}): their times are before the first vector of the video, or after the last one"
        )


def _locate(match: CaptionMatch, encoder: SearchEncoder) -> _Located | None:
    """Return the part of the video that a caption is about; None if the video's features end before it starts."""
    duration = encoder.duration_seconds(match.video_id)
    if match.start_seconds is None or match.end_seconds is None:
        return _Located(match, 0.0, duration, Clip(match.video_id, None, None))
    start, end = match.start_seconds, min(match.end_seconds, duration)
    return _Located(match, start, end, Clip(match.video_id, start, end)) if start < end else None
