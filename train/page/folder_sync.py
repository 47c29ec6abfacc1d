"""A thread that keeps the data set of a page up to date with folders of videos."""

import contextlib
import gc
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...storage.common.errors import UserError
from ...storage.common.progress import Progress, report_progress_to
from ...storage.common.signals import Stopped
from ...storage.common.terminal import number_of, say, warn
from ...storage.stores.opening import find_features
from ..search.build import build_index
from ..search.search import Search
from ..search.search_source import SearchSource
from ..sync.settings import EVERY_SECONDS, SyncSettings
from ..sync.sync import SyncResult
from ..sync.watch import show_messages, summary, sync_again_and_again, why_failed
from .responses import SyncResponse
from .searched_files import SearchedFiles

EXTRACTING = "extracting"
"""Name of the extraction in progress reports."""
MAX_PROBLEMS = 20
"""Maximum number of problem lines on the page; the terminal shows all."""

BEGIN_OF_PATH = r"(?<![\w/.)~-])"
"""Text that may precede a path."""
END_OF_NAME = r"[/:;,'\")]|$"
"""Text that may follow the path of a folder, which excludes longer names with the same beginning."""
PATH = re.compile(BEGIN_OF_PATH + r"""(?:/(?=\S)|\.\./|~/|[A-Za-z]:\\)|(?<=:)/(?=[^/\s])|file:/""")
"""The start of a path that is in none of the folders named by the page."""

ELSEWHERE = "a problem outside these folders; see the terminal"

REFRESH_SECONDS, REFRESH_SHARE = 120.0, 0.05
"""During a long extraction, the search is reopened with the current features: at most this often, and in at most this
share of the time.
"""
STOP_SECONDS = 3.0
"""Time that a sync has to end at its next step; then the program ends without it."""


class _Ended(Stopped):
    """Ends the sync, since the server has ended."""


@dataclass(frozen=True)
class _State:
    """The thread's current work, and its last error."""

    state: Literal["idle", "working", "failed"]
    what: str
    progress: Progress | None = None
    problems: tuple[str, ...] = ()


class FolderSync:
    """Runs a sync at once and then every minute, and reopens the search if its files were changed by this sync, by one
    that failed half-way, or by another process.

    Problems of a sync end neither this thread nor the server: the page shows them, and the terminal shows them once.
    """

    def __init__(
        self,
        settings: SyncSettings,
        folders: Mapping[str, str],
        source: SearchSource,
        searched: Sequence[str],
        model: str,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """Prepare a sync; ``start`` starts it.

        Args:
            settings: Settings of the syncs.
            folders: {absolute path of each folder: its name on the page}
            source: Opens the search.
            searched: Names of the features that the search reads.
            model: Name of the features or the run that are searched.
            every_seconds: Time from the end of a sync to the next one.
        """
        self.model, self.dataset_name = model, settings.folder.name
        self._settings, self._source, self._searched = settings, source, searched
        self._features = ",".join(settings.extraction().store_names)
        self._opened_from: SearchedFiles | None = None
        """The files of the page's search; None without a search."""
        self._every_seconds = every_seconds
        self._names = {**folders, str(settings.folder.path.absolute()): settings.folder.name}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._named = re.compile(f"{BEGIN_OF_PATH}({'|'.join(map(re.escape, longest_first))})(?={END_OF_NAME})")
        self._following = list(folders.values())
        self._state = _State("working", "reading the folders")
        self.held_back: Stopped | None = None
        """A signal that came while the sync was writing files: it ended the sync, but did not reach the command."""
        self._ending = threading.Event()
        self._on_search: Callable[[Search | None], None] = lambda _: None
        self._next_refresh = time.monotonic() + REFRESH_SECONDS
        self._thread: threading.Thread | None = None

    def first_search(self) -> Search | None:
        """Open the search before the thread starts, with existing features; return None if no video was read yet.

        Raises:
            UserError: The search cannot be opened, for example without its index, which the sync is about to make.
        """
        opened = self._opened() if self._has_features() else None
        if opened is None:
            return None
        search, self._opened_from = opened
        return search

    def start(self, on_search: Callable[[Search | None], None]) -> None:
        """Start the thread.

        Args:
            on_search: Called in the thread with each opened search, and with None when there are no videos any more.
        """
        # It is no daemon: a stopped command waits for it for some seconds, and then ends it (``run_command``).
        self._on_search = on_search
        self._thread = threading.Thread(target=self._run, name="sync")
        self._thread.start()

    def stop(self) -> None:
        """End the sync at its next step, and wait briefly for it. The next sync resumes there."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def state(self, version: int) -> SyncResponse:
        """Return how far the folders are read.

        Args:
            version: Version of the page's data sets.
        """
        state = self._state
        response = SyncResponse(
            following=self._following,
            state=state.state,
            what=self._shown(state.what),
            problems=[self._shown(line) for line in state.problems],
            version=version,
        )
        if (at := state.progress) is not None:
            response.done, response.total = at.done, at.total
            if at.seconds > 0 and at.done > at.earlier:
                response.rate = (at.done - at.earlier) / at.seconds
                response.seconds_left = max(at.total - at.done, 0) / response.rate
        return response

    @property
    def why_nothing_yet(self) -> str:
        """Reason why nothing can be found before the first search is open."""
        state = self._state
        if state.state == "working":
            return f"videos are being read; {self._shown(state.what)}"
        if state.problems:
            return f"no videos were read yet: {self._shown(state.problems[0])}"
        return f"there are no videos in {', '.join(self._following)} yet"

    def _run(self) -> None:
        try:
            self._sync()
        except Stopped as error:
            self.held_back = None if isinstance(error, _Ended) else error
        finally:
            if not self._ending.is_set():
                self._change(
                    "failed", "the sync has stopped; start vlalign-serve again", ["see the terminal for the reason"]
                )

    def _sync(self) -> None:
        before, said, again = None, set[str](), f"next attempt in {self._every_seconds:g} s"
        for result in sync_again_and_again(self._settings, self._wait, self._report):
            errors = []
            if isinstance(result, SyncResult):
                self._show(result, before)
                before = result
            else:
                errors.append(result)
            try:
                if isinstance(result, SyncResult):
                    self._refresh(with_index=self._source.run is not None)  # without a run, the sync makes the index
                elif time.monotonic() > self._next_refresh:
                    self._refresh(with_index=False)  # another process may be making it
            except Exception as error:  # as for errors of a sync, the next round tries again
                errors.append(error)
            if self._ending.is_set():  # thread pools fail while the process ends
                return
            failures = list(dict.fromkeys(map(why_failed, errors)))
            for failure in failures:
                if failure not in said:
                    warn(f"warning: {failure}; {again}")
            said = set(failures)
            if isinstance(result, SyncResult) and not failures:
                num_problems = number_of(len(result.warnings), "problems")
                how = ", up to date" if result.complete else f"; {num_problems}"
                self._change("idle", f"{number_of(result.num_videos, 'videos')}{how}", result.warnings)
            else:
                warnings = result.warnings if isinstance(result, SyncResult) else []
                self._change("failed", f"the last sync failed; {again}", [*failures, *warnings])

    def _show(self, result: SyncResult, before: SyncResult | None) -> None:
        """Print new results on the terminal."""
        show_messages(result, before)
        if result.changed:
            say(f"{self._settings.folder.path}: {summary(result)}")

    def _refresh(self, *, with_index: bool) -> None:
        """Reopen the search and pass it to the page, if its files have changed.

        Args:
            with_index: Update the index first: a search itself adds only small changes.
        """
        started = time.monotonic()
        try:
            if not self._has_features():
                if self._opened_from is not None:
                    self._on_search(None)
                self._opened_from = None
            elif self._opened_from is None or self._opened_from != self._files():
                with report_progress_to(self._report):
                    if with_index:
                        build_index(self._source)
                    self._state = replace(self._state, state="working", what="opening the search", progress=None)
                    search, files = self._opened()
                self._on_search(search)
                self._opened_from = files
                del search
                gc.collect()  # reference cycles keep files of the previous index open
        finally:
            now = time.monotonic()
            self._next_refresh = now + max(REFRESH_SECONDS, (now - started) / REFRESH_SHARE)

    def _opened(self) -> tuple[Search, SearchedFiles]:
        """Open the search; return it with the files that it was opened from."""
        before = self._files()
        search = Search.open(self._source)
        if search.index.state.missing:
            return search, before
        return search, replace(before, index=self._files().index)  # the search already has what it added itself

    def _has_features(self) -> bool:
        return all(find_features(self._settings.folder, name) is not None for name in self._searched)

    def _files(self) -> SearchedFiles:
        return SearchedFiles.of(self._settings.folder, self._searched, self.model)

    def _report(self, at: Progress) -> None:
        """Take the progress of a sync."""
        self._end_in_time(at)
        if at.what == EXTRACTING and not at.ended and time.monotonic() > self._next_refresh:
            with contextlib.suppress(UserError, OSError):  # the end of the sync reports the problem
                self._refresh(with_index=True)
        doing = f"{at.what} {self._features}" if at.what == EXTRACTING else at.what
        if at.unit == "bytes":
            shown = f"{at.done >> 20:,} of {at.total >> 20:,} MiB"
        else:
            shown = f"{at.done:,} of {at.total:,} {at.unit}"
        self._state = replace(self._state, state="working", what=f"{doing}: {shown}", progress=at)

    def _end_in_time(self, _: Progress) -> None:
        """Raise ``Stopped`` once the sync must end, as a signal does in a command."""
        if self._ending.is_set():
            raise _Ended(signal.SIGTERM)

    def _change(self, state: Literal["idle", "failed"], what: str, problems: Sequence[str]) -> None:
        more = [f"and {len(problems) - MAX_PROBLEMS:,} more"] if len(problems) > MAX_PROBLEMS else []
        shown = (*problems[:MAX_PROBLEMS], *more)
        self._state = replace(self._state, state=state, what=what, progress=None, problems=shown)

    def _shown(self, text: str) -> str:
        """Return a text for the page: with names instead of the folders' paths, and cut off before any other path."""
        text = self._named.sub(lambda found: self._names[found[0]], text)
        if (elsewhere := PATH.search(text)) is None:
            return text
        shown = text[: elsewhere.start()].rstrip(" \"'([`{")
        return f"{shown} ... (the terminal has the whole line)" if shown else ELSEWHERE

    def _wait(self) -> bool:
        return self._ending.wait(self._every_seconds)
