"""``Store`` and ``StoreWriter``: the interfaces of all feature stores, on disk, in memory or in another format."""

import zlib
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ..common.errors import UserError
from ..records import Profile, StoredVideo, VideoFeatures, Weights
from ..shards.format import ROW_TYPES, Provenance, checksum

ClipSpan = tuple[str, float | None, float | None]
"""Video id, start and end in seconds; None for the start or the end of the video."""
RowRange = tuple[str, int, int]
"""Video id, first row, and the row after the last, counted within the video."""


class RowTimes(NamedTuple):
    """The times of a video's rows, and the number of valid frames of each. Fields as in ``VideoFeatures``.

    Example:
        >>> from vlalign.storage import open_store
        >>> times = open_store("vlalign_data/demo/features/s3d").row_times("demo0000")
        >>> times.start_seconds[:2].tolist(), times.end_seconds[:2].tolist()
        ([0.0, 1.0], [1.0, 2.0])
    """

    start_seconds: np.ndarray
    """float64 [T]"""
    end_seconds: np.ndarray
    """float64 [T]"""
    valid_frames: np.ndarray
    """int32 [T]"""


def rows_of_clip(starts: np.ndarray, ends: np.ndarray, start_seconds: float | None, end_seconds: float | None) -> slice:
    """Return the rows that a clip touches: from the row in which it starts to the row in which it ends.

    At a constant rate of f rows a second these are rows int(start * f) to int(end * f), both included. A clip has no
    rows if it starts at or after the end of the last row, ends before the start of the first row, or ends before it
    starts. A clip that ends after the last row is cut there.

    Args:
        starts: Start of each row in seconds, ascending: [T].
        ends: End of each row in seconds: [T].
        start_seconds: Start of the clip; None for the start of the video.
        end_seconds: End of the clip; None for the end of the video.

    Source: ``youtube_dataloader.py`` of HowTo100M.
    """
    low, high = 0, len(starts)
    if start_seconds is not None:
        is_after = high and start_seconds >= ends[-1]
        low = high if is_after else max(int(starts.searchsorted(start_seconds, "right")) - 1, 0)
    if end_seconds is not None:
        high = max(int(starts.searchsorted(end_seconds, "right")), low)
    return slice(low, high)


def checksum_of_all(checksums: dict[bytes, int]) -> int:
    """Return one checksum of all videos, which does not depend on their order.

    Args:
        checksums: Checksum of the rows by video id in UTF-8.
    """
    return sum(zlib.crc32(video_id, checksum) for video_id, checksum in checksums.items()) % 2**63


class Store(Protocol):
    """Features of videos, read by video id.

    ``FeatureStore`` reads them from a folder, ``MemoryStore`` holds them in memory. A custom store inherits from this
    class, sets ``profile``, ``weights`` and ``origin``, and implements ``video_ids``, ``about``, ``row_times`` and
    ``get_rows``. All other methods build on these, and may be overridden with faster ones. ``vlalign.storage.testing``
    has the tests that every store passes; commands refuse wrong results of custom stores (``CheckedStore``).
    All methods that take a video id raise ``KeyError`` if the store does not have it. Threads may read at the same
    time; processes get copies by ``pickle``.

    Example:
        >>> from vlalign.storage import RowTimes, Store, open_store
        >>> class OneVideo(Store):
        ...     def __init__(self, store, video_id):
        ...         self.profile, self.weights, self.origin = store.profile, store.weights, store.origin
        ...         self.video = store.get(video_id, dtype=None)
        ...
        ...     def video_ids(self):
        ...         return [self.video.video_id]
        ...
        ...     def about(self, video_id):
        ...         return self.video.about
        ...
        ...     def row_times(self, video_id):
        ...         return RowTimes(self.video.start_seconds, self.video.end_seconds, self.video.valid_frames)
        ...
        ...     def get_rows(self, ranges):
        ...         return [self.video.features[first:last] for _, first, last in ranges]
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> one = OneVideo(store, "demo0000")
        >>> one.checksum("demo0000") == store.checksum("demo0000")
        True
    """

    profile: Profile
    """Everything that decides the features' numbers."""
    weights: Weights
    """The weights that the model ran with."""
    origin: str
    """The maker of the features: ``EXTRACTED``, or whoever stated the profile."""

    @abstractmethod
    def video_ids(self) -> list[str]:
        """Return the ids of all videos: texts of one line, each once."""
        ...

    @abstractmethod
    def about(self, video_id: str) -> StoredVideo:
        """Return the facts about a video, without reading its rows.

        Args:
            video_id: Id of the video.
        """
        ...

    @abstractmethod
    def row_times(self, video_id: str) -> RowTimes:
        """Return the times of a video's rows, without reading features.

        Args:
            video_id: Id of the video.
        """
        ...

    @abstractmethod
    def get_rows(self, ranges: Sequence[RowRange]) -> list[np.ndarray]:
        """Return the features [T, D] of each range in the type that they are stored in.

        That is float16 or float32, or uint8 if they are frames.

        The arrays are read-only, and finite.

        Args:
            ranges: Video id, first row and the row after the last, of each range.
        """
        ...

    @property
    def name(self) -> str:
        """Name of the features: the name of the store's folder, or of the profile."""
        return self.profile.name

    @property
    def where(self) -> str:
        """The place of the features, for messages."""
        return f"{self.name} in {type(self).__name__}"

    @property
    def made_with(self) -> Mapping[str, Collection[str]]:
        """All values of ``Provenance.made_with``, such as versions of programs; nothing if they are unknown."""
        return {}

    def __len__(self) -> int:
        """Return the number of videos."""
        return len(self.video_ids())

    def __contains__(self, video_id: str) -> bool:
        """Return True if the store has the video."""
        try:
            self.about(video_id)
        except KeyError:
            return False
        return True

    def source(self, video_id: str) -> str:
        """Return the identity of the file that the features were made from.

        Args:
            video_id: Id of the video.
        """
        return self.about(video_id).source

    def duration_seconds(self, video_id: str) -> float:
        """Return the time at which the frames, or the sound, end.

        Args:
            video_id: Id of the video.
        """
        return self.about(video_id).duration_seconds

    def partial(self, video_id: str) -> str:
        """Return a text that names missing or damaged parts of the video; empty if it is complete.

        Args:
            video_id: Id of the video.
        """
        return self.about(video_id).partial

    def written_at_ns(self, video_id: str) -> int:
        """Return when the rows of a video were written, in nanoseconds since 1970; 0 if that is unknown.

        If the video's file is older than this and has the size that the features were made from, extraction takes it as
        unchanged without reading it.

        Args:
            video_id: Id of the video.
        """
        del video_id
        return 0

    def spans(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return when the first row of each video starts and its last row ends, without reading features.

        In seconds, float64 [N, 2]; NaN for a video without rows.

        Args:
            video_ids: Ids of N videos.
        """
        spans = np.full((len(video_ids), 2), np.nan)
        for span, times in zip(spans, map(self.row_times, video_ids), strict=True):
            if len(times.start_seconds):
                span[:] = times.start_seconds[0], times.end_seconds[-1]
        return spans

    def shard_of(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return the number of each video's shard, int64 [N]; 0 for all if there are no shards.

        Args:
            video_ids: Ids of N videos.
        """
        return np.zeros(len(video_ids), dtype=np.int64)

    def checksum(self, video_id: str) -> int:
        """Return the CRC-32 of a video's rows. Equal rows have the same checksum in every store.

        It covers the features as they are stored, then start and end (float64) and valid frames (int32) of each row.

        Args:
            video_id: Id of the video.
        """
        [features] = self.get_rows([(video_id, 0, self.about(video_id).num_rows)])
        times = self.row_times(video_id)
        return checksum([features, *(getattr(times, name).astype(kind) for name, kind in ROW_TYPES.items())])

    def rows_checksum(self) -> int:
        """Return a checksum of all videos and their rows, which does not depend on how the store keeps them."""
        return checksum_of_all({video_id.encode(): self.checksum(video_id) for video_id in self.video_ids()})

    def get(
        self,
        video_id: str,
        *,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        dtype: DTypeLike | None = np.float32,
    ) -> VideoFeatures:
        """Return the rows of a video, or of a clip of it (``rows_of_clip``).

        Args:
            video_id: Id of the video.
            start_seconds: Start of the clip; None for the start of the video.
            end_seconds: End of the clip; None for the end of the video.
            dtype: Type of the features; None for the type that they are stored in.
        """
        return self.get_clips([(video_id, start_seconds, end_seconds)], dtype=dtype)[0]

    def get_clips(self, clips: Sequence[ClipSpan], *, dtype: DTypeLike | None = np.float32) -> list[VideoFeatures]:
        """Return the rows of many clips, in the order of ``clips``. With ``dtype`` None, the arrays are read-only.

        Args:
            clips: Video id, start and end in seconds of each clip; None for the start or the end of the video.
            dtype: Type of the features; None for the type that they are stored in.
        """
        ranges = self.row_ranges(clips)
        return [
            clip_record(self.about(row_range[0]), self.row_times(row_range[0]), row_range, features, dtype)
            for row_range, features in zip(ranges, self.get_rows(ranges), strict=True)
        ]

    def row_ranges(self, clips: Sequence[ClipSpan]) -> list[RowRange]:
        """Return the rows that each clip touches (``rows_of_clip``), without reading features.

        Args:
            clips: Video id, start and end in seconds of each clip; None for the start or the end of the video.
        """
        ranges = []
        for video_id, start_seconds, end_seconds in clips:
            times = self.row_times(video_id)
            part = rows_of_clip(times.start_seconds, times.end_seconds, start_seconds, end_seconds)
            ranges.append((video_id, part.start, part.stop))
        return ranges


def clip_record(
    about: StoredVideo, times: RowTimes, row_range: RowRange, features: np.ndarray, dtype: DTypeLike | None
) -> VideoFeatures:
    """Return the record of a clip.

    Args:
        about: The clip's video.
        times: Times of all rows of the video.
        row_range: The rows of the clip.
        features: Features of these rows, as they are stored.
        dtype: Type of the features in the record; None for the type that they are stored in.
    """
    _, low, high = row_range
    return VideoFeatures(
        video_id=about.video_id,
        features=features if dtype is None else features.astype(dtype),
        start_seconds=times.start_seconds[low:high],
        end_seconds=times.end_seconds[low:high],
        valid_frames=times.valid_frames[low:high],
        duration_seconds=about.duration_seconds,
        source=about.source,
        decoder=about.decoder,
        partial=about.partial,
    )


class StoreWriter(Protocol):
    """Writes features of videos into a store. Extraction, imports and ``vlalign-store rm`` write through it.

    ``open_writer`` returns the writer of a folder; a ``MemoryStore`` is its own writer. A custom store that extraction
    fills has these methods in addition to the methods of ``Store``. Readers that are already open need not see new
    videos.

    Example:
        >>> from vlalign.storage import Provenance, open_store, open_writer
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> writer = open_writer("one-writer/s3d")
        >>> writer.write([store.get("demo0000")], Provenance(profile=store.profile, weights=store.weights))
        >>> writer.remove(["demo0000", "absent"])
        ['absent']
    """

    @property
    def where(self) -> str:
        """The place of the features, for messages."""
        ...

    @abstractmethod
    def provenance(self) -> Provenance | None:
        """Return how the store's features were made; None as long as nothing was written."""
        ...

    @abstractmethod
    def write(self, videos: Sequence[VideoFeatures], provenance: Provenance, *, dtype: str = "float16") -> None:
        """Write all videos, or none of them if that fails. Stored videos with the same ids are replaced.

        Args:
            videos: Features [T, D] and times of each video. If two have the same id, the later one is used.
            provenance: How the features were made (``refuse_mixed``).
            dtype: Type that the features are stored in, float16 or float32; uint8 for frames.

        Raises:
            UserError: The store's features have another profile, weights or origin.
            ValueError: The features cannot be stored (``check_storable``).
            OSError: The disk is full, or cannot be written.
        """
        ...

    @abstractmethod
    def remove(self, video_ids: Collection[str]) -> list[str]:
        """Remove videos; return the ids that the store did not have.

        Args:
            video_ids: Ids of the videos to remove.
        """
        ...

    def flush(self) -> None:
        """Finish deferred work of ``write``, such as sending features to a server. No features are lost if
        this fails."""


class WritableStore(Store, StoreWriter, Protocol):
    """A store that is its own writer.

    Example:
        >>> from vlalign.storage import MemoryStore, WritableStore, open_store
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> memory: WritableStore = MemoryStore(store.profile, store.weights)
        >>> memory.write([store.get("demo0000")], memory.provenance())
        >>> "demo0000" in memory
        True
    """


def refuse_mixed(writer: StoreWriter, provenance: Provenance) -> None:
    """Refuse features whose profile, weights or origin differ from the store's.

    Args:
        writer: Writer of the store.
        provenance: How the new features were made.

    Raises:
        UserError: They differ.

    Example:
        >>> from vlalign.storage import MemoryStore, Provenance, UserError, Weights, open_store, refuse_mixed
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> memory = MemoryStore(store.profile, store.weights)
        >>> refuse_mixed(memory, Provenance(profile=store.profile, weights=store.weights))
        >>> try:
        ...     refuse_mixed(memory, Provenance(profile=store.profile, weights=Weights(name="other.pth", sha256="")))
        ... except UserError as error:
        ...     print("the new features have" in str(error))
        True
    """
    stored = writer.provenance()
    if stored is not None and stored.key != provenance.key:
        raise UserError(
            f"{writer.where}: has {stored.describe()}; the new features have {provenance.describe()}; write them to "
            "another store, or remove this one"
        )
