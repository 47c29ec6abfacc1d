"""Making the index of a data set, in passes of bounded memory: encode windows, write codes, biases and captions.

``vlalign-index`` wraps ``build_index``; opening a search of a small data set makes the same index.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from ...storage.common.errors import SettingError
from ...storage.common.progress import Listener, report_progress_to
from ...storage.common.writing import check_folders
from .caption_index import check_language, open_caption_index
from .coded_search import CodeFolder, ParallelMap, has_faiss, needs_codes, read_coded_index
from .index import IndexFolder, WindowIndex, remove_index_shards, shard_files, write_index_shard
from .search import Search
from .search_source import SearchSource
from .shot_windows import WindowKind, write_window_kind
from .window_biases import open_window_biases
from .window_encoding import add_videos, add_videos_in_parallel


@dataclass(frozen=True)
class BuiltIndex:
    """Result of ``build_index``.

    Example:
        >>> from vlalign.train import SearchSource, build_index
        >>> built = build_index(SearchSource("vlalign_data/demo", run="words-s3d-seed0", device="cpu"))
        >>> built.needs_codes, built.num_windows >= built.num_videos
        (False, True)
    """

    folder: Path
    """Folder of the index."""
    num_windows: int
    """Windows of all videos."""
    num_videos: int
    """Videos that can be found."""
    num_added: int
    """Videos that were encoded now: new ones, and those whose features changed."""
    num_outdated: int
    """Videos with outdated windows, since their features changed or were removed."""
    num_other: int
    """Files that were removed because another model or version made them."""
    needs_codes: bool
    """True if there are too many windows to compare all of them."""
    num_coded: int | None
    """Windows that got codes now; None if none are needed, or FAISS is missing."""


def build_index(
    source: SearchSource,
    *,
    language: str | None = None,
    windows: WindowKind | None = None,
    parallel_map: ParallelMap | None = None,
    on_progress: Listener | None = None,
) -> BuiltIndex:
    """Bring the index of a data set up to date: encode new and changed videos, and remove outdated windows.

    A stopped call loses at most the windows of one shard; the next one resumes from there.

    Args:
        source: The data set and the model, such as ``SearchSource("vlalign_data/mine", features="clip_vit_b32")``.
        language: Language of the captions, such as "de", from now on; "auto" to detect it. None: as before.
        windows: "shots" for windows that are the shots in the data set's store ``shots``, "lengths" for windows of
            fixed lengths; from now on. None: as before.
        parallel_map: Calls a function with each item, in other processes, and yields the results as they come. All of
            these must be picklable, and the processes must see the same files. None: everything is done here.
        on_progress: Called with the progress.

    Returns:
        The index, and what this call changed.

    Raises:
        UserError: As ``open_search``; or the language or the kind of windows is unknown, or there are no shots.

    Example:
        >>> from vlalign.train import SearchSource, build_index
        >>> built = build_index(SearchSource("vlalign_data/demo", run="words-s3d-seed0", device="cpu"))
        >>> built.num_videos
        24
    """
    if language is not None:
        check_language(language)
    if windows is not None and windows not in get_args(WindowKind):
        raise SettingError("windows", windows, f"expected {' or '.join(get_args(WindowKind))}")
    source = source.absolute()
    encoder = source.open_encoder()
    folder = IndexFolder.of(encoder, windows)
    check_folders(CodeFolder(folder.path).path)
    if windows is not None:
        write_window_kind(folder.path, windows)
    before = after = folder.open()
    missing = before.state.missing
    num_coded = None
    with report_progress_to(on_progress):
        if missing:
            if parallel_map is None:
                add_videos(folder, missing)
            else:
                add_videos_in_parallel(folder, missing, source, parallel_map)
            after = folder.open()
        if _remove_outdated(folder, after):
            after = folder.open()
        if needs_codes(after) and has_faiss():
            num_coded = CodeFolder(folder.path).update(after, parallel_map or map)
        biases = open_window_biases(folder, after)
        open_caption_index(encoder.dataset, language)
        Search(encoder, after, coded_index=read_coded_index(after, folder.path), biases=biases).judge(folder)
    return BuiltIndex(
        folder=folder.path,
        num_windows=after.num_windows,
        num_videos=after.state.num_current,
        num_added=len(missing),
        num_outdated=before.state.num_outdated,
        num_other=len(before.state.other),
        needs_codes=needs_codes(after),
        num_coded=num_coded,
    )


def _remove_outdated(folder: IndexFolder, current: WindowIndex) -> bool:
    """Rewrite shards in which fewer than half of the windows are current; remove old files and shards without any.

    Returns:
        Whether a shard was removed.
    """
    current_files = []
    for first, shard in zip(current.first_row.tolist(), current.shards, strict=False):
        video = current.video[first : first + len(shard.vectors)]
        live = video >= 0
        if 2 * live.sum() >= len(video):
            current_files.append(shard.path)
            continue
        numbers = np.unique(video[live])
        ids = [current.video_ids[number] for number in numbers]
        checksums = dict(zip(shard.video_ids, shard.checksums.tolist(), strict=True))
        spans = [shard.spans[video == number] for number in numbers]
        vectors = [np.asarray(shard.vectors[video == number]) for number in numbers]
        current_files.append(write_index_shard(folder.path, folder.key, {v: checksums[v] for v in ids}, spans, vectors))
    outdated = [path for path in shard_files(folder.path) if path not in current_files]
    remove_index_shards(outdated)
    return bool(outdated)
