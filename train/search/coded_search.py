"""Search among millions of windows: candidates are found by codes in memory, and their exact vectors are compared.

A window is in the list with the nearest centroid (an inverted file), and has a code of 64 bytes (product quantization,
Jegou et al. 2011); FAISS computes both. The files are not in FAISS's format, because its reader is not safe with files
of strangers: the arrays are in tensor files that are checked, and FAISS's lists are filled from them when an index is
opened.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...storage.common.errors import refuse_unreadable
from ...storage.common.progress import progress
from ...storage.common.tensor_files import SUFFIX, TensorFile, release, write_tensors
from ...storage.common.writing import remove_file
from .exact_search import ExactSearch, best_of, exact_scores, half_products, percentiles
from .index import IndexShard, WindowIndex, read_index_shard

if TYPE_CHECKING:
    import faiss

EXACT_WINDOWS = 1 << 20
"""Up to this number of windows, a query is compared with all of them."""
FORMAT = 1
NUM_PROBES = 256
"""Number of lists that are searched."""
MIN_CANDIDATES = 512
"""Minimum number of windows whose exact vectors are compared. Both were measured: ``tests/benchmarks/README.md``."""
QUANTIZER_FILE = f"codebook{SUFFIX}"
QUANTIZER_TYPES = {"lists": ("F32", 2), "pieces": ("F32", 3), "sample": ("F16", 2)}
"""{tensor: type, dimensions} of the quantizer's file, in the order of the fields of ``VectorQuantizer``."""
CODES_TYPES = {"list": ("I32", 1), "codes": ("U8", 2)}
ParallelMap = Callable[[Callable[[Any], int], Iterable[Any]], Iterator[int]]
"""Calls a function with each item and yields the results, in any order."""
DAMAGE, REMEDY = "not the codes of an index", "remove it and run vlalign-index"
NUM_SUBVECTORS, CENTROIDS_PER_SUBVECTOR = 128, 16
"""A vector is cut into 128 subvectors, each of which is one of 16 centroids: 64 bytes a window."""
SAMPLE_PER_LIST, CODE_SAMPLE, PERCENTILE_SAMPLE = 40, 65_536, 5_000
"""Numbers of windows: to train the lists with, for each list; to train the codes with; to estimate percentiles."""
MAX_LISTS = 1 << 14
WINDOWS_CODED_AT_ONCE = 1 << 14
ShardCodes = tuple[np.ndarray, np.ndarray]
"""The list of each window int32 [W], and its codes uint8 [W, 64]: two subvectors a byte."""


def has_faiss() -> bool:
    """Return whether FAISS is installed (extra ``index``)."""
    return find_spec("faiss") is not None


def padded_width(dim: int) -> int:
    """Return the width of vectors of ``dim`` values after padding to whole subvectors."""
    return math.ceil(dim / NUM_SUBVECTORS) * NUM_SUBVECTORS


@dataclass(frozen=True)
class VectorQuantizer:
    """The centroids that determine a vector's list and code (FAISS's coarse and product quantizers)."""

    list_centroids: np.ndarray
    """float32 [L, P]; vectors of D values are padded with zeros to P."""
    code_centroids: np.ndarray
    """The centroids of each subvector, float32 [128, 16, P / 128]."""
    sample: np.ndarray
    """Vectors of some windows, float16 [S, D], to estimate percentiles."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the centroids. Files of codes contain the digest of their quantizer."""
        arrays = (self.list_centroids, self.code_centroids)
        return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()

    @cached_property
    def coarse(self) -> faiss.IndexFlatIP:
        """FAISS's exact search for the list of a vector."""
        import faiss

        coarse = faiss.IndexFlatIP(self.list_centroids.shape[1])
        coarse.add(np.ascontiguousarray(self.list_centroids))
        return coarse

    def new_index(self) -> faiss.IndexIVFPQ:
        """Return an empty FAISS index with these centroids. It needs this quantizer to stay alive."""
        import faiss

        num_lists, width = self.list_centroids.shape
        index = faiss.IndexIVFPQ(self.coarse, width, num_lists, NUM_SUBVECTORS, 4, faiss.METRIC_INNER_PRODUCT)
        index.by_residual = False
        faiss.copy_array_to_vector(np.ascontiguousarray(self.code_centroids).ravel(), index.pq.centroids)
        index.is_trained = True
        return index

    def padded(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors [N, D] as float32 [N, P]."""
        return _padded(vectors, self.list_centroids.shape[1])


def train_quantizer(index: WindowIndex) -> VectorQuantizer:
    """Return the quantizer of an index, trained on a sample of its windows. Equal windows give equal quantizers."""
    import faiss

    width = padded_width(index.dim)
    num_lists = min(max(int(math.sqrt(index.num_windows)), 1), MAX_LISTS)
    sample = _sample(index, max(SAMPLE_PER_LIST * num_lists, CODE_SAMPLE))
    vectors = _padded(sample, width)
    clustering = faiss.Clustering(width, num_lists)
    clustering.niter, clustering.spherical, clustering.seed = 8, True, 0
    clustering.min_points_per_centroid, clustering.max_points_per_centroid = 1, SAMPLE_PER_LIST
    coarse = faiss.IndexFlatIP(width)
    clustering.train(vectors, coarse)
    product = faiss.ProductQuantizer(width, NUM_SUBVECTORS, 4)
    product.cp.seed, product.cp.min_points_per_centroid = 0, 1
    product.train(vectors[np.random.default_rng(0).permutation(len(vectors))[:CODE_SAMPLE]])
    list_centroids = faiss.vector_to_array(clustering.centroids).reshape(num_lists, width)
    shape = NUM_SUBVECTORS, CENTROIDS_PER_SUBVECTOR, width // NUM_SUBVECTORS
    code_centroids = faiss.vector_to_array(product.centroids).reshape(shape)
    few = np.random.default_rng(1).permutation(len(sample))[:PERCENTILE_SAMPLE]
    return VectorQuantizer(list_centroids, code_centroids, sample[np.sort(few)])


def _sample(index: WindowIndex, count: int) -> np.ndarray:
    """Return the vectors of some windows, float16 [N, D]; skips those with values that are not finite."""
    live = np.flatnonzero(index.is_live)
    rows = np.sort(np.random.default_rng(0).choice(live, min(count, len(live)), replace=False))
    vectors = index.halves_of(rows)
    return vectors[np.isfinite(vectors).all(axis=1)]


def _padded(vectors: np.ndarray, width: int) -> np.ndarray:
    padded = np.zeros((len(vectors), width), np.float32)
    padded[:, : vectors.shape[1]] = vectors
    return padded


def encode_vectors(vectors: np.ndarray, quantizer: VectorQuantizer) -> ShardCodes:
    """Return the list int32 [N] and the codes uint8 [N, 64] of vectors [N, D].

    NaN and infinite values count as 0.
    """
    index = quantizer.new_index()
    lists = np.empty(len(vectors), np.int32)
    codes = np.empty((len(vectors), NUM_SUBVECTORS // 2), np.uint8)
    for low in range(0, len(vectors), WINDOWS_CODED_AT_ONCE):
        block = quantizer.padded(np.nan_to_num(vectors[low : low + WINDOWS_CODED_AT_ONCE], posinf=0, neginf=0))
        lists[low : low + len(block)] = quantizer.coarse.search(block, 1)[1][:, 0]
        codes[low : low + len(block)] = index.pq.compute_codes(block)
    return lists, codes


def needs_codes(index: WindowIndex) -> bool:
    """Return whether an index has too many windows to compare all of them."""
    return index.num_windows > EXACT_WINDOWS


class CodeFolder:
    """The folder with the codes of an index: a quantizer, and a file for each shard."""

    def __init__(self, index_folder: Path) -> None:
        self.path = index_folder / "codes"
        self.quantizer_path = self.path / QUANTIZER_FILE

    def quantizer(self) -> VectorQuantizer | None:
        """Return the quantizer; None if there is none.

        Raises:
            UserError: It is damaged.
        """
        if not self.quantizer_path.exists():
            return None
        file = TensorFile(self.quantizer_path, QUANTIZER_TYPES, FORMAT, DAMAGE, REMEDY)
        with refuse_unreadable(self.quantizer_path, DAMAGE, REMEDY):
            quantizer = VectorQuantizer(*(np.array(file.arrays[name]) for name in QUANTIZER_TYPES))
            (num_lists, width), dim = quantizer.list_centroids.shape, quantizer.sample.shape[1]
            if not num_lists or not dim or width != padded_width(dim):
                raise ValueError("its arrays do not fit each other")
            if quantizer.code_centroids.shape != (NUM_SUBVECTORS, CENTROIDS_PER_SUBVECTOR, width // NUM_SUBVECTORS):
                raise ValueError("its arrays do not fit each other")
            if not all(
                np.isfinite(array).all()
                for array in (quantizer.list_centroids, quantizer.code_centroids, quantizer.sample)
            ):
                raise ValueError("values that are not numbers")
        return quantizer

    def path_of(self, shard: IndexShard) -> Path:
        """Return the file with the codes of a shard."""
        return self.path / shard.path.name

    def read(self, shard: IndexShard, quantizer: VectorQuantizer) -> ShardCodes | None:
        """Return the list [W] and the codes [W, 64] of each window of a shard; None if they were not made yet.

        The codes are mapped, not read, and need no check: any bytes are valid codes.

        Raises:
            UserError: The file is damaged.
        """
        file = self._file(shard, quantizer)
        if file is None:
            return None
        with refuse_unreadable(self.path_of(shard), DAMAGE, REMEDY):
            lists, codes = np.array(file.arrays["list"]), file.arrays["codes"]
            if lists.shape != (len(shard.vectors),) or codes.shape != (len(shard.vectors), NUM_SUBVECTORS // 2):
                raise ValueError("it has another number of windows than its shard")
            if len(lists) and not (lists.min() >= 0 and lists.max() < len(quantizer.list_centroids)):
                raise ValueError("a list that does not exist")
        return lists, codes

    def _file(self, shard: IndexShard, quantizer: VectorQuantizer) -> TensorFile | None:
        path = self.path_of(shard)
        if not path.exists():
            return None
        file = TensorFile(path, CODES_TYPES, FORMAT, DAMAGE, REMEDY)
        return file if file.about.get("codebook") == quantizer.digest else None

    def update(self, index: WindowIndex, parallel_map: ParallelMap = map) -> int:
        """Make the quantizer and the codes of shards that are missing. Remove codes of deleted shards.

        Written files remain if the work is stopped.

        Returns:
            How many windows got codes.
        """
        quantizer = self.quantizer()
        if quantizer is None or quantizer.sample.shape[1] != index.dim:
            quantizer = train_quantizer(index)
            arrays = quantizer.list_centroids, quantizer.code_centroids, quantizer.sample
            tensors = dict(zip(QUANTIZER_TYPES, arrays, strict=True))
            write_tensors(self.quantizer_path, tensors, {"format": str(FORMAT)})
        current = {self.path_of(shard) for shard in index.shards} | {self.quantizer_path}
        for path in self.path.glob(f"*{SUFFIX}"):
            if path not in current:
                remove_file(path)
        todo = [shard for shard in index.shards if self._file(shard, quantizer) is None]
        total = sum(len(shard.vectors) for shard in todo)
        sizes = parallel_map(partial(_code_shard, self), [shard.path for shard in todo])
        for _ in progress(sizes, total=total, what="coding", unit="windows", size=lambda done: done):
            pass
        return total


def _code_shard(folder: CodeFolder, path: Path) -> int:
    """Write the codes of a shard; return its number of windows."""
    shard, quantizer = read_index_shard(path), folder.quantizer()
    assert quantizer is not None
    lists, codes = encode_vectors(shard.vectors, quantizer)
    about = {"format": str(FORMAT), "codebook": quantizer.digest}
    write_tensors(folder.path_of(shard), {"list": lists, "codes": codes}, about)
    return len(lists)


class CodedIndex:
    """Windows by their lists and codes, in memory. Windows without codes are compared one by one."""

    def __init__(self, index: WindowIndex, quantizer: VectorQuantizer, codes: Sequence[ShardCodes | None]) -> None:
        """Fill FAISS's lists.

        Args:
            index: All windows.
            quantizer: Quantizer of the codes.
            codes: Result of ``CodeFolder.read`` for each shard of the index.
        """
        import faiss

        self.index, self.quantizer = index, quantizer
        with_codes: list[tuple[int, np.ndarray, ShardCodes]] = []
        uncoded = [np.zeros(0, np.int64)]
        for first, shard, in_shard in zip(index.first_row.tolist(), index.shards, codes, strict=False):
            live = np.flatnonzero(index.is_live[first : first + len(shard.vectors)])
            if in_shard is None:
                uncoded.append(first + live)
            else:
                with_codes.append((first, live, in_shard))
        self.uncoded_rows = np.concatenate(uncoded)
        """Rows of the windows without codes."""
        num_lists = len(quantizer.list_centroids)
        sizes = np.zeros(num_lists, np.int64)
        for _, live, (list_W, _) in with_codes:
            sizes += np.bincount(list_W[live], minlength=num_lists)
        filled = quantizer.new_index()
        inverted: Any = filled.invlists
        for number, size in enumerate(sizes.tolist()):  # resized once: a growing list takes up to twice its size
            inverted.resize(number, size)
        ends = np.zeros(num_lists, np.int64)
        for first, live, (list_W, codes_WC) in with_codes:
            order = live[np.argsort(list_W[live], kind="stable")]
            lists, ids, ordered = list_W[order], first + order, codes_WC[order]
            low = 0
            for number, count in zip(*np.unique(lists, return_counts=True), strict=True):
                entries = faiss.swig_ptr(ids[low : low + count]), faiss.swig_ptr(ordered[low : low + count])
                inverted.update_entries(int(number), int(ends[number]), int(count), *entries)
                ends[number] += count
                low += count
            release(codes_WC)
        filled.ntotal = int(sizes.sum())
        self.faiss_index = faiss.IndexIVFPQFastScan(filled)
        filled.reset()  # the fast index copied its lists, and holds a reference to it
        self.faiss_index.nprobe = NUM_PROBES

    def search(self, query_D: np.ndarray) -> CodedSearch:
        """Search for a query's candidates."""
        return CodedSearch(self, query_D)


class CodedSearch:
    """Candidates for a query, found by codes."""

    biases = None
    """There are too many windows for NCL's biases."""

    def __init__(self, coded: CodedIndex, query_D: np.ndarray) -> None:
        self.coded, self.query_D = coded, query_D
        self._sorted = np.sort(half_products(coded.quantizer.sample, query_D))

    def best(self, count: int, videos: Collection[str] | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the windows with the highest scores among the candidates, the best first, and the scores.

        Args:
            count: Most rows to return.
            videos: Ids of the videos to search: all their windows are compared. None: all videos, by their codes.
        """
        coded, index = self.coded, self.coded.index
        if videos is not None:
            of_videos = [index.rows_of(video_id) for video_id in sorted(set(videos))]
            rows = np.concatenate([np.zeros(0, np.int64), *of_videos])
        else:
            query = coded.quantizer.padded(self.query_D[None])
            found = coded.faiss_index.search(query, max(count, MIN_CANDIDATES))[1][0]
            rows = np.concatenate([found[found >= 0], coded.uncoded_rows])
        rows.sort()
        return best_of(rows, exact_scores(index, rows, self.query_D), count)

    def scores_of(self, vectors: np.ndarray) -> np.ndarray:
        """Return the scores [N] of vectors [N, D] that are no windows."""
        return vectors @ self.query_D

    def percentiles(self, scores: np.ndarray) -> np.ndarray:
        """Return for each score the percentage of all windows with a lower one, estimated from a sample."""
        return percentiles(self._sorted, scores)


CandidateSearch = ExactSearch | CodedSearch
"""The two ways to find a query's candidates: among all windows, or by codes."""


def read_coded_index(index: WindowIndex, index_folder: Path) -> CodedIndex | None:
    """Open the codes of an index; None if all windows are compared: few windows, too few codes, or no FAISS.

    Raises:
        UserError: A file is damaged.
    """
    if not needs_codes(index) or not has_faiss():
        return None
    folder = CodeFolder(index_folder)
    quantizer = folder.quantizer()
    if quantizer is None or quantizer.sample.shape[1] != index.dim:
        return None
    coded = [folder.read(shard, quantizer) for shard in index.shards]
    without = sum(len(shard.vectors) for shard, in_shard in zip(index.shards, coded, strict=True) if in_shard is None)
    if without > EXACT_WINDOWS:
        return None
    return CodedIndex(index, quantizer, coded)
