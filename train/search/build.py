"""Making the index of a data set, in passes of bounded memory. ``vlalign-index`` wraps ``build_index``."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.packages import EXTRAS, install_command
from ...storage.common.progress import Listener, report_progress_to
from ...storage.common.terminal import say
from ...storage.common.writing import check_folders
from .caption_index import open_said
from .codebook import has_faiss
from .codes import CodedIndex, CodeFolder, Spread, needs_codes, open_codes
from .encoder import Encoder
from .index import WindowIndex, part_files, remove_parts, write_part
from .index_shards import IndexFolder, add_videos, add_videos_elsewhere
from .open_encoder import EncoderSource
from .windows import plan_windows

SMALL_WINDOWS = 20_000
"""With fewer windows missing, a search makes the index itself."""


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
    device: str = "auto",
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
    source = EncoderSource.of(folder, features=features, run=run, weights=weights, root=root, device=device)
    encoder = source.open()
    index = IndexFolder.of(encoder)
    check_folders(CodeFolder(index.path).path)
    before = after = index.open()
    if missing := before.state.missing:
        with report_progress_to(on_progress):
            if spread is None:
                add_videos(index, missing)
            else:
                add_videos_elsewhere(index, missing, source, spread)
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
        check_folders(folder.path)
        add_videos(folder, missing)
        return folder.open()
    todo = f"run vlalign-index --dataset {encoder.dataset.name}"
    if not index.num_windows:
        old = (
            f", only files that another model or version made ({len(index.state.other):,})" if index.state.other else ""
        )
        raise UserError(f"{folder.path}: no index of {len(missing):,} videos yet{old}; {todo} first")
    say(f"note: {len(missing):,} videos are not in the index {folder.path} and were not searched; {todo}")
    return index


def open_index_codes(encoder: Encoder, index: WindowIndex) -> CodedIndex | None:
    """Open the codes of an index's windows; None if searches compare all of them, which is said where it takes long.

    Raises:
        UserError: A file of codes is damaged.
    """
    coded = open_codes(index, IndexFolder.of(encoder).path)
    if coded is None and needs_codes(index):
        todo = "" if has_faiss() else f"install FAISS ({install_command(EXTRAS['index'])}), then "
        say(
            f"note: each search compares all {index.num_windows:,} windows, which takes seconds; {todo}"
            f"run vlalign-index --dataset {encoder.dataset.name}"
        )
    return coded
