"""Repeated syncs: the loop of ``vlalign-sync --watch`` and of ``vlalign-serve --videos``."""

import gc
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...storage.common.errors import UserError, reason_of
from ...storage.common.packages import missing_package_message
from ...storage.common.plugins import message_of_plugin
from ...storage.common.progress import Listener
from ...storage.common.terminal import logger, number_of, say, warn
from .settings import SyncSettings
from .sync import SyncResult, sync_videos


def sync_again_and_again(
    settings: SyncSettings, wait: Callable[[], object], on_progress: Listener | None = None
) -> Iterator[SyncResult | Exception]:
    """Yield the result of each sync, or why it failed, such as a full disk or a bug; the next one may succeed.

    Args:
        settings: Settings of all syncs; ``forget`` is used only in the first.
        wait: Called between two syncs; no more follow if it returns true.
        on_progress: Called with the progress of the work.
    """
    while True:
        try:
            result = sync_videos(settings, on_progress=on_progress)
        except Exception as error:  # whatever ends one sync, the next one follows
            yield error
        else:
            yield result
            if result.changed:
                gc.collect()  # cycles of references keep files of the old index open
        settings = replace(settings, forget=())
        if wait():
            return


def why_failed(error: Exception) -> str:
    """Return why a sync failed. ``--verbose`` also shows where a bug is."""
    if isinstance(error, UserError | OSError):
        return str(error)
    if said := missing_package_message(error) or message_of_plugin(error):
        return said
    logger.debug("%s", "".join(traceback.format_exception(error)).rstrip())
    what = "not enough memory" if isinstance(error, MemoryError) else "a bug in vlalign"
    return f"{reason_of(error)} ({what}; see --verbose)"


def show_messages(result: SyncResult, before: SyncResult | None) -> None:
    """Print the messages of a sync, except those that the previous sync or this sync's extraction printed."""
    said = set() if before is None else {*before.notes, *before.warnings}
    said |= {result.failure_line(video_id) for video_id in result.failed_now if video_id in result.failed}
    for line in result.notes:
        if line not in said:
            say(f"note: {line}")
    for line in result.warnings:
        if line not in said:
            warn(f"warning: {line}")


def summary(result: SyncResult) -> str:
    """Return a line that summarises the sync."""
    transcribed = f"{len(result.transcribed):,} transcribed, " if result.transcribed else ""
    returned = f", {len(result.returned):,} returned" if result.returned else ""
    pruned = f", {len(result.pruned):,} pruned" if result.pruned else ""
    return (
        f"{number_of(result.num_videos, 'videos')}; {len(result.extracted):,} extracted, {transcribed}"
        f"{len(result.renamed):,} renamed, {len(result.removed):,} removed{returned}{pruned}, "
        f"{result.num_unchanged:,} unchanged, {len(result.skipped):,} skipped, {len(result.failed):,} failed"
    )
