"""Wrap custom stores: their results are checked against the interface of ``Store`` before use."""

import math
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..common.errors import UserError, VlalignError, reason_of
from ..common.terminal import one_line
from ..common.validation import is_text
from ..records import Profile, StoredVideo, VideoFeatures, Weights
from ..shards.format import Provenance, row_types
from .feature_store import FeatureStore
from .store import ClipSpan, RowRange, RowTimes, Store, StoreWriter

NO_ID = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that no id contains: control characters, ends of lines, and surrogates."""
UNKNOWN_ROWS = -1
"""Number of rows of a video whose ``about`` was not called yet."""


def checked_store(store: Store, features: str = "") -> Store:
    """Return a store with checked results: a folder of shards unchanged, any other store as a ``CheckedStore``."""
    return store if type(store) is FeatureStore else CheckedStore(store, features)


class _OwnCode:
    """Calls methods of a custom store, and reports its errors in one line."""

    def __init__(self, store: Any, features: str = "") -> None:
        """Take a store.

        Args:
            store: The store.
            features: Name of its features, for messages.
        """
        self._store = store
        kind = type(store)
        self._named = f"store {kind.__module__}:{kind.__qualname__}" + (f" of {features}" if features else "")

    def _get(self, name: str) -> Any:
        return self._ask(name, lambda: getattr(self._store, name))

    def _call(self, name: str, *args: Any, of: str = "", passed: tuple[type[Exception], ...] = (), **more: Any) -> Any:
        """Call a method.

        Args:
            name: Its name.
            args: Its arguments.
            of: What the call is about, for messages.
            passed: Errors that it may raise.
            more: Arguments by name.
        """
        return self._ask(name + of, lambda: getattr(self._store, name)(*args, **more), passed)

    def _ask(self, what: str, ask: Callable[[], Any], passed: tuple[type[Exception], ...] = ()) -> Any:
        try:
            return ask()
        except (VlalignError, MemoryError, *passed):
            raise
        except (Exception, SystemExit) as error:  # somebody's own code may raise anything
            raise UserError(f"{self._named}: {what}: {reason_of(error)}{self._place(error)}; see --verbose") from error

    def _place(self, error: BaseException) -> str:
        """Return the last line of an error's traceback in the store's module, or else the last line of all."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        file = getattr(sys.modules.get(type(self._store).__module__), "__file__", None)
        frame = [frame for frame in frames if frame.filename == file][-1:] or frames[-1:]
        return f" ({frame[0].filename}, line {frame[0].lineno})" if frame else ""

    def _expect(self, holds: bool, what: str, found: object, expected: str) -> None:
        if not holds:
            raise UserError(f"{self._named}: {what}: returned {_describe(found)}; expected {expected}")


class CheckedStore(_OwnCode, Store):
    """A custom store that follows the interface of ``Store``, or reports a violation in one line.

    Results are checked at each call: kinds, shapes and types, finite values, ascending times. Errors of its code become
    a ``UserError``, except ``KeyError`` for videos that it does not list.
    """

    def __init__(self, store: Store, features: str = "") -> None:
        """Ask a store which videos it has and, if it has any, how they were made.

        Args:
            store: The store.
            features: Name of its features, for messages.

        Raises:
            UserError: The store violates the interface.
        """
        super().__init__(store, features)
        self._num_rows = dict.fromkeys(self._checked_ids(), UNKNOWN_ROWS)
        if self._num_rows:
            self.profile, self.weights, self.origin = self._get("profile"), self._get("weights"), self._get("origin")
            self._expect(isinstance(self.profile, Profile), "profile", self.profile, "a vlalign.storage.Profile")
            is_weights = (
                isinstance(self.weights, Weights) and is_text(self.weights.name) and is_text(self.weights.sha256)
            )
            self._expect(is_weights, "weights", self.weights, "vlalign.storage.Weights with a name and a SHA-256")
            self._expect(is_text(self.origin), "origin", self.origin, "a text, such as EXTRACTED")

    def _checked_ids(self) -> list[str]:
        ids = self._call("video_ids")
        self._expect(_is_list(ids), "video_ids", ids, "a list of texts")
        ids = self._ask("video_ids", lambda: list(ids))
        for video_id in ids:
            is_id = isinstance(video_id, str) and bool(video_id) and NO_ID.search(video_id) is None
            self._expect(is_id, "video_ids: an id", video_id, "a text of one line in valid Unicode")
        if len(set(ids)) < len(ids):
            [(twice, _)] = Counter(ids).most_common(1)
            raise UserError(f"{self._named}: video_ids: returned {twice!a} twice; expected each video once")
        return ids

    @property
    def name(self) -> str:
        """Name of the features, as the store returns it."""
        return self._text("name")

    @property
    def where(self) -> str:
        """The place of the features, as the store returns it."""
        return self._text("where")

    def _text(self, name: str) -> str:
        self._expect(is_text(text := self._get(name)), name, text, "a text")
        return text

    @property
    def made_with(self) -> Mapping[str, Collection[str]]:
        """All values of ``Provenance.made_with``, as the store returns them."""
        made_with = self._get("made_with")
        is_right = isinstance(made_with, Mapping) and all(
            is_text(name)
            and isinstance(values, Collection)
            and not isinstance(values, str)
            and all(map(is_text, values))
            for name, values in made_with.items()
        )
        self._expect(is_right, "made_with", made_with, "a list of texts by name")
        return made_with

    def video_ids(self) -> list[str]:
        """Return the ids of all videos."""
        return list(self._num_rows)

    def __len__(self) -> int:
        return len(self._num_rows)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._num_rows

    def _is_own(self, name: str) -> bool:
        """Return whether the store has its own method instead of the one of ``Store``."""
        return getattr(type(self._store), name) is not getattr(Store, name)

    def about(self, video_id: str) -> StoredVideo:
        """Return the facts about a video."""
        self._check_known([video_id])
        of = f" of video {video_id!a}"
        about = self._call("about", video_id, of=of)
        what = "about" + of
        self._expect(isinstance(about, StoredVideo), what, about, "a vlalign.storage.StoredVideo")
        self._expect(about.video_id == video_id, f"{what}: video_id", about.video_id, f"{video_id!a}")
        num_rows, seconds = about.num_rows, about.duration_seconds
        self._expect(_is_count(num_rows), f"{what}: num_rows", num_rows, "the number of its rows, 0 or more")
        self._expect(_is_seconds(seconds), f"{what}: duration_seconds", seconds, "a finite number, 0 or more")
        for name in ("source", "decoder", "partial"):
            self._expect(is_text(text := getattr(about, name)), f"{what}: {name}", text, "a text")
        self._num_rows[video_id] = int(num_rows)
        if type(num_rows) is int and type(seconds) is float:
            return about
        return replace(about, num_rows=int(num_rows), duration_seconds=float(seconds))

    def _rows_of(self, video_id: str) -> int:
        """Return the number of rows of a video, as ``about`` states it."""
        num_rows = self._num_rows[video_id]
        return self.about(video_id).num_rows if num_rows == UNKNOWN_ROWS else num_rows

    def row_times(self, video_id: str) -> RowTimes:
        """Return the times of a video's rows."""
        num_rows, of = self._rows_of(video_id), f" of video {video_id!a}"
        times = self._call("row_times", video_id, of=of)
        self._expect(isinstance(times, RowTimes), "row_times" + of, times, "vlalign.storage.RowTimes")
        self._check_times("row_times" + of, times, num_rows)
        return times

    def _check_times(self, what: str, times: RowTimes | VideoFeatures, num_rows: int) -> None:
        for name, kinds, kind in (
            ("start_seconds", "fiu", "float64"),
            ("end_seconds", "fiu", "float64"),
            ("valid_frames", "iu", "int32"),
        ):
            values = getattr(times, name)
            is_right = _is_array(values) and values.dtype.kind in kinds and values.shape == (num_rows,)
            self._expect(is_right, f"{what}: {name}", values, f"{kind} [{num_rows}], one for each row")
        starts, ends = times.start_seconds, times.end_seconds
        is_ordered = (starts >= 0).all() and (starts <= ends).all() and (starts[1:] >= starts[:-1]).all()
        if not (is_ordered and np.isfinite(ends).all()):
            raise UserError(
                f"{self._named}: {what}: its rows have impossible times; expected 0 <= start <= end in seconds, in "
                "order"
            )

    def get_rows(self, ranges: Sequence[RowRange]) -> list[np.ndarray]:
        """Return the features [T, D] of each range in the type that they are stored in; the arrays are read-only."""
        of = self._of([video_id for video_id, _, _ in ranges])
        found = self._call("get_rows", ranges, of=of)
        is_right = isinstance(found, list | tuple) and len(found) == len(ranges)
        self._expect(is_right, "get_rows" + of, found, f"a list of {len(ranges)} arrays, one for each range")
        for (video_id, low, high), rows in zip(ranges, found, strict=True):
            self._check_rows(f"get_rows of video {video_id!a}, rows {low} to {high}", rows, high - low)
        return [_read_only(rows) for rows in found]

    def _check_rows(self, what: str, rows: Any, num_rows: int, dtype: np.dtype | None = None) -> None:
        """Check features.

        Args:
            what: The call, for messages.
            rows: The returned features.
            num_rows: Number of requested rows.
            dtype: The requested type; None for any type that features are stored in.
        """
        shape = (num_rows, self.profile.dimension)
        allowed = tuple(map(np.dtype, row_types(self.profile))) if dtype is None else (dtype,)
        kind = " or ".join(map(str, allowed))
        is_right = _is_array(rows) and rows.shape == shape and rows.dtype in allowed
        self._expect(is_right, what, rows, f"{kind} {list(shape)}")
        if rows.dtype != np.uint8 and not np.isfinite(rows).all():
            raise UserError(f"{self._named}: {what}: contains NaN or infinite values; expected finite ones")

    def get_clips(self, clips: Sequence[ClipSpan], *, dtype: DTypeLike | None = np.float32) -> list[VideoFeatures]:
        """Return the rows of many clips, in the order of ``clips``. With ``dtype`` None, the arrays are read-only."""
        if not self._is_own("get_clips"):
            return super().get_clips(clips, dtype=dtype)
        of = self._of([video_id for video_id, _, _ in clips])
        found = self._call("get_clips", clips, dtype=dtype, of=of)
        is_right = isinstance(found, list | tuple) and len(found) == len(clips)
        self._expect(is_right, "get_clips" + of, found, f"a list of {len(clips)} VideoFeatures, one for each clip")
        for (video_id, *_), clip in zip(clips, found, strict=True):
            what = f"get_clips of video {video_id!a}"
            self._expect(isinstance(clip, VideoFeatures), what, clip, "vlalign.storage.VideoFeatures")
            self._expect(clip.video_id == video_id, f"{what}: video_id", clip.video_id, f"{video_id!a}")
            self._check_rows(what, clip.features, len(clip.features), None if dtype is None else np.dtype(dtype))
            self._check_times(what, clip, len(clip.features))
        return [replace(clip, features=_read_only(clip.features)) for clip in found] if dtype is None else list(found)

    def row_ranges(self, clips: Sequence[ClipSpan]) -> list[RowRange]:
        """Return the rows that each clip touches, without reading features."""
        if not self._is_own("row_ranges"):
            return super().row_ranges(clips)
        of = self._of([video_id for video_id, _, _ in clips])
        found = self._call("row_ranges", clips, of=of)
        is_right = isinstance(found, list | tuple) and len(found) == len(clips)
        self._expect(is_right, "row_ranges" + of, found, f"a list of {len(clips)} ranges, one for each clip")
        for (video_id, *_), rows in zip(clips, found, strict=True):
            is_right = (
                isinstance(rows, tuple)
                and len(rows) == 3
                and all(map(_is_count, rows[1:]))
                and rows[0] == video_id
                and rows[1] <= rows[2] <= self._rows_of(video_id)
            )
            what = f"row_ranges of video {video_id!a}"
            self._expect(is_right, what, rows, f"({video_id!a}, first row, row after the last)")
        return list(found)

    def _of(self, video_ids: Sequence[str]) -> str:
        """Return which videos a call is about, for messages. Raises ``KeyError`` for an unknown video."""
        self._check_known(video_ids)
        return _of_videos(video_ids)

    def _check_known(self, video_ids: Iterable[str]) -> None:
        for video_id in video_ids:
            if video_id not in self._num_rows:
                raise KeyError(video_id)

    def _fact(self, name: str, video_id: str, is_right: Callable[[Any], bool], expected: str) -> Any:
        """Return a fact about a video from the store's own method."""
        self._check_known([video_id])
        of = f" of video {video_id!a}"
        fact = self._call(name, video_id, of=of)
        self._expect(is_right(fact), name + of, fact, expected)
        return fact

    def source(self, video_id: str) -> str:
        """Return the identity of the file that the features were made from."""
        return self._fact("source", video_id, is_text, "a text") if self._is_own("source") else super().source(video_id)

    def partial(self, video_id: str) -> str:
        """Describe the missing or damaged part of a video; empty if it is complete."""
        if not self._is_own("partial"):
            return super().partial(video_id)
        return self._fact("partial", video_id, is_text, "a text")

    def duration_seconds(self, video_id: str) -> float:
        """Return the time at which the frames, or the sound, end."""
        if not self._is_own("duration_seconds"):
            return super().duration_seconds(video_id)
        return float(self._fact("duration_seconds", video_id, _is_seconds, "a finite number, 0 or more"))

    def written_at_ns(self, video_id: str) -> int:
        """Return when the rows of a video were written, in nanoseconds since 1970; 0 if that is unknown."""
        return int(self._fact("written_at_ns", video_id, _is_count, "an integer, 0 or more"))

    def checksum(self, video_id: str) -> int:
        """Return the CRC-32 of a video's rows."""
        if not self._is_own("checksum"):
            return super().checksum(video_id)
        return int(self._fact("checksum", video_id, lambda crc: _is_count(crc) and crc < 1 << 32, "a CRC-32"))

    def rows_checksum(self) -> int:
        """Return a checksum of all videos and their rows, which does not depend on how the store keeps them."""
        if not self._is_own("rows_checksum"):
            return super().rows_checksum()
        found = self._call("rows_checksum")
        self._expect(_is_count(found) and found < 1 << 63, "rows_checksum", found, "an integer from 0 to 2**63 - 1")
        return int(found)

    def spans(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return when the first row of each video starts and its last row ends, float64 [N, 2]; NaN without rows."""
        if not self._is_own("spans"):
            return super().spans(video_ids)
        of, shape = self._of(video_ids), (len(video_ids), 2)
        spans = self._call("spans", video_ids, of=of)
        is_right = _is_array(spans) and spans.dtype == np.float64 and spans.shape == shape
        self._expect(is_right, "spans" + of, spans, f"float64 {list(shape)}")
        wrong = ~((spans[:, 0] >= 0) & (spans[:, 0] <= spans[:, 1]) & np.isfinite(spans[:, 1])) & ~np.isnan(spans).all(
            1
        )
        for place in np.flatnonzero(wrong)[:1].tolist():
            what = f"spans of video {video_ids[place]!a}"
            raise UserError(f"{self._named}: {what}: {spans[place].tolist()}; expected 0 <= start <= end, or NaN twice")
        return spans

    def shard_of(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return the number of each video's shard, int64 [N]."""
        if not self._is_own("shard_of"):
            return super().shard_of(video_ids)
        of = self._of(video_ids)
        numbers = self._call("shard_of", video_ids, of=of)
        is_right = _is_array(numbers) and numbers.dtype == np.int64 and numbers.shape == (len(video_ids),)
        self._expect(is_right, "shard_of" + of, numbers, f"int64 [{len(video_ids)}]")
        return numbers


class CheckedWriter(_OwnCode, StoreWriter):
    """The writer of a custom store. Errors of its code become a ``UserError``, except ``OSError``."""

    @property
    def where(self) -> str:
        """The place of the features, as the store returns it; the store's class while it has no place yet."""
        try:
            return str(self._store.where)
        except Exception:  # before a profile provides the name
            return self._named

    def provenance(self) -> Provenance | None:
        """Return how the store's features were made; None as long as nothing was written."""
        found = self._call("provenance")
        is_right = found is None or isinstance(found, Provenance)
        self._expect(is_right, "provenance", found, "a vlalign.storage.Provenance, or None")
        return found

    def write(self, videos: Sequence[VideoFeatures], provenance: Provenance, *, dtype: str = "float16") -> None:
        """Write all videos, or none of them if that fails."""
        of = _of_videos([video.video_id for video in videos])
        self._call("write", videos, provenance, dtype=dtype, of=of, passed=(OSError,))

    def remove(self, video_ids: Collection[str]) -> list[str]:
        """Remove videos; return the ids that the store did not have."""
        return self._call("remove", video_ids, of=_of_videos(list(video_ids)), passed=(OSError,))

    def flush(self) -> None:
        """Finish the work that ``write`` deferred."""
        self._call("flush", passed=(OSError,))


def _describe(value: Any) -> str:
    """Describe a value in a few words, without running code of its class."""
    kind = type(value)
    if kind in (type(None), bool, int, float, complex, str, bytes):
        return one_line(ascii(value))[:80]
    if isinstance(value, np.ndarray):
        return f"{'' if _is_array(value) else kind.__name__ + ' '}{value.dtype} {list(value.shape)}"
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} of {len(value)}" if kind in (list, tuple, dict, set) else name


def _of_videos(video_ids: Sequence[str]) -> str:
    """Return which videos a call is about, for messages."""
    if not video_ids:
        return " of no videos"
    return f" of video {video_ids[0]!a}" + (f" and {len(video_ids) - 1} more" if len(video_ids) > 1 else "")


def _is_list(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


def _is_array(value: object) -> bool:
    """Return whether a value is a plain array, not a masked one or a matrix."""
    return type(value) in (np.ndarray, np.memmap)


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)


def _is_seconds(value: Any) -> bool:
    return (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and bool(0 <= value < math.inf)
    )


def _read_only(rows: np.ndarray) -> np.ndarray:
    """Return a read-only array: the array itself, or a view of it."""
    if rows.flags.writeable:
        rows = rows.view()
        rows.flags.writeable = False
    return rows
