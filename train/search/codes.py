"""Codes of windows, by which a search among millions finds candidates: their exact vectors are compared.

FAISS's own files are not written or read, because it does not promise to withstand a file of somebody else. The arrays
are kept as files of tensors that are checked (``mapped``), and its lists are filled from them when an index is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.common.errors import refuse_unreadable
from ...storage.common.progress import progress
from ...storage.common.tensor_files import SUFFIX, TensorFile, release, write_tensors
from ...storage.common.writing import remove_file
from .codebook import NUM_CODES, VALUES_OF_CODE, Codebook, PartCodes, encode, has_faiss, learn_codebook, padded_width
from .exact_search import Scan, best_of, exact_scores, half_product, percent_below
from .index import Part, WindowIndex, read_part

EXACT_WINDOWS = 1 << 20
"""Up to so many windows, all are compared."""
FORMAT = 1
NUM_PROBES = 256
"""Lists that are looked at."""
MIN_CANDIDATES = 512
"""Windows whose exact vectors are compared. Both: ``tests/benchmarks/README.md``."""
CODEBOOK_TYPES = {"lists": ("F32", 2), "pieces": ("F32", 3), "sample": ("F16", 2)}
CODES_TYPES = {"list": ("I32", 1), "codes": ("U8", 2)}
Spread = Callable[[Callable[[Any], int], Iterable[Any]], Iterator[int]]
"""Calls a function with each item and yields the results, in any order."""
WHAT, TODO = "not the codes of an index", "remove it and run vlalign-index"


def needs_codes(index: WindowIndex) -> bool:
    """Return whether an index has too many windows to compare all of them."""
    return index.num_windows > EXACT_WINDOWS


class CodeFolder:
    """The folder with the codes of an index: a codebook, and a file for each part."""

    def __init__(self, index_folder: Path) -> None:
        self.path = index_folder / "codes"
        self.codebook_path = self.path / f"codebook{SUFFIX}"

    def codebook(self) -> Codebook | None:
        """Return the codebook; None if there is none.

        Raises:
            UserError: It is damaged.
        """
        if not self.codebook_path.exists():
            return None
        file = TensorFile(self.codebook_path, CODEBOOK_TYPES, FORMAT, WHAT, TODO)
        with refuse_unreadable(self.codebook_path, WHAT, TODO):
            book = Codebook(*(np.array(file.arrays[name]) for name in CODEBOOK_TYPES))
            (num_lists, width), dim = book.lists.shape, book.sample.shape[1]
            if not num_lists or not dim or width != padded_width(dim):
                raise ValueError("its arrays do not fit each other")
            if book.pieces.shape != (NUM_CODES, VALUES_OF_CODE, width // NUM_CODES):
                raise ValueError("its arrays do not fit each other")
            if not all(np.isfinite(of).all() for of in (book.lists, book.pieces, book.sample)):
                raise ValueError("values that are no numbers")
        return book

    def path_of(self, part: Part) -> Path:
        """Return the file with the codes of a part."""
        return self.path / part.path.name

    def read(self, part: Part, codebook: Codebook) -> PartCodes | None:
        """Return the list [W] and the codes [W, 64] of each window of a part; None if they were not made yet.

        The codes are mapped, not read; any bytes are codes.

        Raises:
            UserError: The file is damaged.
        """
        file = self._file(part, codebook)
        if file is None:
            return None
        with refuse_unreadable(self.path_of(part), WHAT, TODO):
            lists, codes = np.array(file.arrays["list"]), file.arrays["codes"]
            if lists.shape != (len(part.vectors),) or codes.shape != (len(part.vectors), NUM_CODES // 2):
                raise ValueError("it has not as many windows as its part")
            if len(lists) and not (lists.min() >= 0 and lists.max() < len(codebook.lists)):
                raise ValueError("a list that does not exist")
        return lists, codes

    def _file(self, part: Part, codebook: Codebook) -> TensorFile | None:
        path = self.path_of(part)
        if not path.exists():
            return None
        file = TensorFile(path, CODES_TYPES, FORMAT, WHAT, TODO)
        return file if file.about.get("codebook") == codebook.digest else None

    def update(self, index: WindowIndex, spread: Spread = map) -> int:
        """Make what is missing: the codebook, and the codes of parts. Remove codes of parts that are gone.

        What is written stays if the work is stopped.

        Returns:
            How many windows got codes.
        """
        codebook = self.codebook()
        if codebook is None or codebook.sample.shape[1] != index.dim:
            codebook = learn_codebook(index)
            tensors = {name: getattr(codebook, name) for name in CODEBOOK_TYPES}
            write_tensors(self.codebook_path, tensors, {"format": str(FORMAT)})
        kept = {self.path_of(part) for part in index.parts} | {self.codebook_path}
        for path in self.path.glob(f"*{SUFFIX}"):
            if path not in kept:
                remove_file(path)
        todo = [part for part in index.parts if self._file(part, codebook) is None]
        total = sum(len(part.vectors) for part in todo)
        sizes = spread(partial(_code_part, self), [part.path for part in todo])
        for _ in progress(sizes, total=total, what="coding", unit="windows", size=lambda done: done):
            pass
        return total


def _code_part(folder: CodeFolder, path: Path) -> int:
    """Write the codes of a part; return its number of windows."""
    part, codebook = read_part(path), folder.codebook()
    assert codebook is not None
    lists, codes = encode(part.vectors, codebook)
    about = {"format": str(FORMAT), "codebook": codebook.digest}
    write_tensors(folder.path_of(part), {"list": lists, "codes": codes}, about)
    return len(lists)


class CodedIndex:
    """Windows by their lists and codes, in memory. Windows without codes are compared one by one."""

    def __init__(self, index: WindowIndex, codebook: Codebook, coded: Sequence[PartCodes | None]) -> None:
        """Fill FAISS's lists.

        Args:
            index: All windows.
            codebook: Of the codes.
            coded: Of each part of the index: what ``CodeFolder.read`` gave.
        """
        import faiss

        self.index, self.codebook = index, codebook
        with_codes: list[tuple[int, np.ndarray, PartCodes]] = []
        plain = [np.zeros(0, np.int64)]
        for first, part, of_part in zip(index.first_row.tolist(), index.parts, coded, strict=False):
            live = np.flatnonzero(index.is_live[first : first + len(part.vectors)])
            if of_part is None:
                plain.append(first + live)
            else:
                with_codes.append((first, live, of_part))
        self.plain = np.concatenate(plain)
        """Rows of the windows without codes."""
        num_lists = len(codebook.lists)
        sizes = np.zeros(num_lists, np.int64)
        for _, live, (list_W, _) in with_codes:
            sizes += np.bincount(list_W[live], minlength=num_lists)
        filled = codebook.new_index()
        inverted: Any = filled.invlists
        for number, size in enumerate(sizes.tolist()):  # once: a list that grows takes up to twice its size
            inverted.resize(number, size)
        ends = np.zeros(num_lists, np.int64)
        for first, live, (list_W, codes_WC) in with_codes:
            order = live[np.argsort(list_W[live], kind="stable")]
            lists, ids, codes = list_W[order], first + order, codes_WC[order]
            low = 0
            for number, count in zip(*np.unique(lists, return_counts=True), strict=True):
                ids_ptr, codes_ptr = faiss.swig_ptr(ids[low : low + count]), faiss.swig_ptr(codes[low : low + count])
                inverted.update_entries(int(number), int(ends[number]), int(count), ids_ptr, codes_ptr)
                ends[number] += count
                low += count
            release(codes_WC)
        filled.ntotal = int(sizes.sum())
        self.fast = faiss.IndexIVFPQFastScan(filled)
        filled.reset()  # the other index copied its lists, and keeps it alive
        self.fast.nprobe = NUM_PROBES

    def scan(self, query_D: np.ndarray) -> CodedScan:
        """Return the search of a query."""
        return CodedScan(self, query_D)


class CodedScan:
    """The search of a query among the windows that its codes find."""

    def __init__(self, coded: CodedIndex, query_D: np.ndarray) -> None:
        self.coded, self.query_D = coded, query_D
        self._sorted = np.sort(half_product(coded.codebook.sample, query_D))

    def best(self, count: int, videos: Collection[str] | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the windows with the highest scores among the candidates, the best first, and the scores.

        Args:
            count: Most rows to return.
            videos: Ids of the videos to search, all of whose windows are compared; None for all.
        """
        coded, index = self.coded, self.coded.index
        if videos is not None:
            of_videos = [index.rows_of(video_id) for video_id in sorted(set(videos))]
            rows = np.concatenate([np.zeros(0, np.int64), *of_videos])
        else:
            query = coded.codebook.padded(self.query_D[None])
            found = coded.fast.search(query, max(count, MIN_CANDIDATES))[1][0]
            rows = np.concatenate([found[found >= 0], coded.plain])
        rows.sort()
        return best_of(rows, exact_scores(index, rows, self.query_D), count)

    def percent_below(self, scores: np.ndarray) -> np.ndarray:
        """Return for each score how many percent of all windows have a lower one, as a sample of them tells."""
        return percent_below(self._sorted, scores)


AnyScan = Scan | CodedScan
"""The search of a query, among all windows or by codes."""


def open_codes(index: WindowIndex, index_folder: Path) -> CodedIndex | None:
    """Open the codes of an index; None if it is small enough to compare all windows, or has no codes.

    Raises:
        UserError: A file is damaged.
    """
    if not needs_codes(index) or not has_faiss():
        return None
    folder = CodeFolder(index_folder)
    codebook = folder.codebook()
    if codebook is None or codebook.sample.shape[1] != index.dim:
        return None
    coded = [folder.read(part, codebook) for part in index.parts]
    without = sum(len(part.vectors) for part, of_part in zip(index.parts, coded, strict=True) if of_part is None)
    if without > EXACT_WINDOWS:
        return None
    return CodedIndex(index, codebook, coded)
