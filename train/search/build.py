"""Making the index of a data set, in passes of bounded memory. ``vlalign-index`` wraps ``build_index``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.progress import Listener, progress, report_progress_to
from ...storage.common.terminal import say
from ...storage.layout import DatasetFolder
from ..data.clips import Clip
from .codebook import has_faiss
from .codes import CodedIndex, CodeFolder, Spread, needs_codes, open_codes
from .encoders import Encoder, key_of
from .index import WindowIndex, folder_name, open_parts, part_files, remove_parts, write_part
from .opening import EncoderSource
from .said import open_said
from .windows import WINDOW_SECONDS, plan_windows

PART_WINDOWS = 1 << 16
"""Windows in a part, and so in memory at a time: 128 MiB in float32 for 512 values. One video more may fit in."""
SMALL_WINDOWS = 20_000
"""With fewer windows missing, a search makes the index itself."""
BATCH_WINDOWS = 1024
"""Windows that are encoded between two reports of progress."""


@dataclass(frozen=True)
class IndexFolder:
    """The folder of a data set's index for one encoder, and the key that its parts must have."""

    encoder: Encoder
    path: Path
    key: str

    @classmethod
    def of(cls, encoder: Encoder) -> "IndexFolder":
        """Return the index folder of an encoder."""
        key = key_of(encoder, window_seconds=list(WINDOW_SECONDS))
        return cls(encoder, index_folder(encoder.dataset, encoder.name), key)

    def open(self) -> WindowIndex:
        """Open the windows that count now.

        Raises:
            UserError: A part is damaged.
        """
        encoder = self.encoder
        checksums = {video_id: encoder.checksum(video_id) for video_id in encoder.video_ids()}
        return WindowIndex(open_parts(self.path), self.key, checksums)


@dataclass(frozen=True)
class BuiltIndex:
    """Result of ``build_index``."""

    folder: Path
    num_windows: int
    num_videos: int
    num_added: int
    """Videos that were encoded now: new ones, and those whose features changed."""
    num_outdated: int
    """Videos whose windows no longer counted: of features that changed or are gone."""
    num_other: int
    """Files that were removed because another model or version made them."""
    needs_codes: bool
    """Whether there are too many windows to compare all of them."""
    num_coded: int | None
    """Windows that got codes now; None if none are needed, or FAISS is missing."""


def build_index(
    folder: Path | str | None = None,
    *,
    features: str | None = None,
    run: Path | str | None = None,
    weights: Path | str | None = None,
    root: Path | str = "vlalign_data",
    device: str = "cpu",
    spread: Spread | None = None,
    on_progress: Listener | None = None,
) -> BuiltIndex:
    """Bring the index of a data set up to date: encode what is new or changed, and remove what no longer counts.

    A stopped call loses at most the windows of one file; the next one goes on from there.

    Args:
        folder: The data set's folder. None: that of the run.
        features: Name of a store whose model also reads texts.
        run: Folder of a run, or its name.
        weights: File or folder of the weights that made the store.
        root: Where a run is looked up if ``folder`` is None.
        device: What a run computes on.
        spread: Calls a function with each of some items, in other processes, and yields the results as they come; all
            of it must be picklable, and the processes must see the same files. None: everything is done here.
        on_progress: Called with the progress.

    Raises:
        UserError: As ``open_search``.
    """
    source = EncoderSource(
        None if folder is None else Path(folder).absolute(),
        features,
        None if run is None else str(run),
        None if weights is None else Path(weights).absolute(),
        Path(root).absolute(),
        device,
    )
    encoder = source.open()
    index = IndexFolder.of(encoder)
    before = after = index.open()
    if missing := before.state.missing:
        with report_progress_to(on_progress):
            if spread is None:
                add_videos(index, missing)
            else:
                _add_elsewhere(index, missing, source, spread)
        after = index.open()
    if _clean(index, after):
        after = index.open()
    num_coded = None
    too_many = needs_codes(after)
    if too_many and has_faiss():
        with report_progress_to(on_progress):
            num_coded = CodeFolder(index.path).update(after, spread or map)
    with report_progress_to(on_progress):
        open_said(encoder.dataset)
    return BuiltIndex(
        folder=index.path,
        num_windows=after.num_windows,
        num_videos=after.state.num_current,
        num_added=len(missing),
        num_outdated=before.state.num_outdated,
        num_other=len(before.state.other),
        needs_codes=too_many,
        num_coded=num_coded,
    )


def _clean(index: IndexFolder, current: WindowIndex) -> bool:
    """Rewrite parts of which less than half counts; remove them and those of which nothing does. Return if any were."""
    kept = []
    for first, part in zip(current.first_row.tolist(), current.parts, strict=False):
        video = current.video[first : first + len(part.vectors)]
        live = video >= 0
        if 2 * live.sum() >= len(video):
            kept.append(part.path)
            continue
        numbers = np.unique(video[live])
        ids = [current.video_ids[number] for number in numbers]
        checksums = dict(zip(part.video_ids, part.checksums.tolist(), strict=True))
        spans = [part.spans[video == number] for number in numbers]
        vectors = [np.asarray(part.vectors[video == number]) for number in numbers]
        kept.append(write_part(index.path, index.key, {v: checksums[v] for v in ids}, spans, vectors))
    gone = [path for path in part_files(index.path) if path not in kept]
    remove_parts(gone)
    return bool(gone)


def index_folder(dataset: DatasetFolder, name: str) -> Path:
    """Return the folder of the index of features or a run."""
    return dataset.path / "index" / folder_name(name)


@dataclass(frozen=True)
class PlannedPart:
    """Videos whose windows will be a part."""

    video_ids: list[str]
    num_windows: int


def add_videos(index: IndexFolder, video_ids: Sequence[str]) -> None:
    """Encode the windows of videos and write them as parts. What is written stays if the work is stopped.

    Args:
        index: Where the parts go.
        video_ids: Videos of the encoder.
    """
    encoder, parts = index.encoder, list(_parts(index.encoder, video_ids))
    encoded = progress(
        (video for part in parts for video in _encoded(encoder, part.video_ids)),
        total=sum(part.num_windows for part in parts),
        what="indexing",
        unit="windows",
        size=lambda done: len(done[1]),
    )
    for part in parts:
        _write(index, dict(islice(encoded, len(part.video_ids))))


def _add_elsewhere(index: IndexFolder, video_ids: Sequence[str], source: EncoderSource, spread: Spread) -> None:
    """Do what ``add_videos`` does, each part in another process."""
    parts = list(_parts(index.encoder, video_ids))
    sizes = spread(partial(_add_part, source), parts)
    total = sum(part.num_windows for part in parts)
    for _ in progress(sizes, total=total, what="indexing", unit="windows", size=lambda done: done):
        pass


def _add_part(source: EncoderSource, part: PlannedPart) -> int:
    """Write a part; return its number of windows."""
    index = _opened(source)
    _write(index, dict(_encoded(index.encoder, part.video_ids)))
    return part.num_windows


@lru_cache(maxsize=1)
def _opened(source: EncoderSource) -> IndexFolder:
    return IndexFolder.of(source.open())


def _parts(encoder: Encoder, video_ids: Sequence[str]) -> Iterator[PlannedPart]:
    """Divide videos into parts."""
    ids: list[str] = []
    num_windows = 0
    for video_id in video_ids:
        ids.append(video_id)
        num_windows += len(plan_windows(encoder.duration_seconds(video_id)))
        if num_windows >= PART_WINDOWS:
            yield PlannedPart(ids, num_windows)
            ids, num_windows = [], 0
    if ids:
        yield PlannedPart(ids, num_windows)


def _write(index: IndexFolder, done: dict[str, np.ndarray]) -> None:
    """Write the vectors of videos as a part."""
    encoder = index.encoder
    windows = [plan_windows(encoder.duration_seconds(video_id)) for video_id in done]
    write_part(index.path, index.key, {v: encoder.checksum(v) for v in done}, windows, list(done.values()))


def _encoded(encoder: Encoder, video_ids: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the vectors of each video's windows. Several short videos are encoded together."""
    batch: dict[str, np.ndarray] = {}
    for video_id in video_ids:
        batch[video_id] = plan_windows(encoder.duration_seconds(video_id))
        if sum(map(len, batch.values())) >= BATCH_WINDOWS:
            yield from _encode_batch(encoder, batch)
            batch = {}
    if batch:
        yield from _encode_batch(encoder, batch)


def _encode_batch(encoder: Encoder, batch: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    clips = [clip for video_id, windows in batch.items() for clip in clips_of(video_id, windows)]
    vectors = encoder.clip_vectors(clips)
    borders = np.cumsum([len(windows) for windows in batch.values()])[:-1]
    yield from zip(batch, np.split(vectors, borders), strict=True)


def clips_of(video_id: str, windows: np.ndarray) -> list[Clip]:
    """Return the windows of a video as clips; the first is the whole (``plan_windows``)."""
    parts = [Clip(video_id, float(start), float(end)) for start, end in windows[1:].tolist()]
    return [Clip(video_id, None, None), *parts]


def open_index(encoder: Encoder) -> WindowIndex:
    """Open the index for a search, after adding what is missing if that is little.

    Raises:
        UserError: There is none, and too much is missing to be added now; or a part is damaged.
    """
    folder = IndexFolder.of(encoder)
    index = folder.open()
    missing = index.state.missing
    if not missing:
        return index
    num_missing = 0
    for video_id in missing:
        num_missing += len(plan_windows(encoder.duration_seconds(video_id)))
        if num_missing > SMALL_WINDOWS:
            break
    if num_missing <= SMALL_WINDOWS:
        add_videos(folder, missing)
        return folder.open()
    todo = f"run vlalign-index --dataset {encoder.dataset.name}"
    if not index.num_windows:
        raise UserError(f"{folder.path}: no index of {len(missing):,} videos yet; {todo} first")
    say(f"note: {len(missing):,} videos are not in the index {folder.path} and were not searched; {todo}")
    return index


def open_index_codes(encoder: Encoder, index: WindowIndex) -> CodedIndex | None:
    """Open the codes of an index's windows; None if searches compare all of them, which is said where it takes long.

    Raises:
        UserError: A file of codes is damaged.
    """
    coded = open_codes(index, IndexFolder.of(encoder).path)
    if coded is None and needs_codes(index):
        todo = "" if has_faiss() else 'install "vlalign[index]", then '
        say(
            f"note: each search compares all {index.num_windows:,} windows, which takes seconds; {todo}"
            f"run vlalign-index --dataset {encoder.dataset.name}"
        )
    return coded
