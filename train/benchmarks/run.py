"""Measuring search by a public protocol, and writing the metrics. ``vlalign-benchmark`` wraps ``measure``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError
from ...storage.common.files import sha256_of, write_json, write_jsonl
from ...storage.common.problems import Problems
from ...storage.common.terminal import number_of
from ...storage.common.writing import check_folders
from ..search.index import IndexFolder, index_folder
from ..search.search import Search
from ..search.search_source import SearchSource
from ..search.window_biases import MAX_WINDOWS_BY_SEARCH, open_window_biases
from ..search.window_encoding import open_coded_index, open_index
from . import BENCHMARKS
from .composed import measure_composed, read_composed
from .copies import measure_copies, read_copies
from .moments import measure_moments, read_queries
from .result import MIN_COMPARABLE, Measured, metric_table

FOLDER = "benchmarks"
"""Folder of the results, in the data set's folder."""


@dataclass(frozen=True, kw_only=True)
class MeasureSettings:
    """The settings of a measurement. Settings of another benchmark are refused."""

    split: str | None = None
    """Moments: the split whose captions are the queries; None for "test"."""
    protocol: str | None = None
    """Moments: the captions' protocol; None for the default one."""
    ground_truth: Sequence[Path] = field(default_factory=tuple)
    """Copies: the CSV file of right pairs. Composed: one or several JSON files of queries."""
    like_weight: float | None = None
    """Composed: weight of the example beside the text, 0 to 1; None for 0.5."""


@dataclass(frozen=True)
class Measurement:
    """The result of a measurement."""

    metrics: dict[str, Any]
    """Contents of ``metrics.json``."""
    folder: Path
    """Folder of ``metrics.json`` and ``queries.jsonl``."""
    summary: list[str]
    """Lines for people."""
    num_skipped: int
    """Queries or pairs that were skipped."""


LIKE_WEIGHT = 0.5
USES: dict[str, tuple[str, ...]] = {
    "moments": ("split", "protocol"),
    "copies": ("ground_truth",),
    "composed": ("ground_truth", "like_weight"),
}
"""{benchmark: settings that it reads}"""


def measure(benchmark: str, source: SearchSource, settings: MeasureSettings | None = None) -> Measurement:
    """Measure search in a data set by a public protocol, and write ``metrics.json`` and ``queries.jsonl``.

    They are written into ``benchmarks/<benchmark>-<features or run>`` in the data set's folder.

    Example::

        measure("moments", SearchSource("vlalign_data/charades_sta", features="clip_vit_b32")).metrics

    Args:
        benchmark: A key of ``BENCHMARKS``.
        source: The data set, and the features or the run that search uses.
        settings: What to measure, and how. None: the defaults.

    Raises:
        UserError: A file cannot be read, or there is nothing to measure.
    """
    settings = settings or MeasureSettings()
    _check(benchmark, settings)
    search = _open(source)
    encoder = search.encoder
    with Problems(file=encoder.dataset.problems("benchmark")) as problems:
        measured = _RUNS[benchmark](search, settings, problems)
    named = index_folder(encoder.dataset, encoder.name).name
    folder = encoder.dataset.path / FOLDER / "-".join([benchmark, named, *_of_name(settings)])
    check_folders(folder)
    notes = list(_notes(measured, encoder.note, problems.count))
    metrics = {
        "benchmark": benchmark,
        "dataset": encoder.dataset.name,
        "encoder": encoder.name,
        "identity": encoder.identity,
        "settings": {name: getattr(settings, name) for name in USES[benchmark] if name != "ground_truth"},
        "ground_truth": {path.name: sha256_of(path) for path in settings.ground_truth},
        "measured": measured.what,
        "metrics": measured.metrics,
        "left_out": problems.count,
        "notes": notes,
    }
    write_jsonl(folder / "queries.jsonl", measured.rows)
    write_json(folder / "metrics.json", metrics)
    summary = [f"{encoder.name}: {benchmark} of {encoder.dataset.name}, {measured.what}"]
    summary += [*metric_table(measured.metrics), *(f"note: {note}" for note in notes)]
    return Measurement(metrics, folder, summary, problems.count)


def _check(benchmark: str, settings: MeasureSettings) -> None:
    if benchmark not in BENCHMARKS:
        raise SettingError("benchmark", benchmark, f"expected one of {', '.join(BENCHMARKS)}")
    for name, value in vars(settings).items():
        if name not in USES[benchmark] and value not in (None, ()) and value != []:
            users = ", ".join(other for other, used in USES.items() if name in used)
            raise SettingError(name, value, f"applies only to {users}; omit it")
    if "ground_truth" in USES[benchmark] and not settings.ground_truth:
        raise SettingError("ground_truth", "is missing", f"expected the published file of {benchmark}")
    if benchmark == "copies" and len(settings.ground_truth) > 1:
        raise SettingError("ground_truth", str(settings.ground_truth[1]), "is a second file; copies takes one; omit it")
    if settings.like_weight is not None and not 0 <= settings.like_weight <= 1:
        raise SettingError("like_weight", settings.like_weight, "expected 0 to 1")
    for path in settings.ground_truth:
        if not path.is_file():
            raise SettingError("ground_truth", path, f"no such file; expected the published file of {benchmark}")


def _of_name(settings: MeasureSettings) -> Iterator[str]:
    """Yield the parts of the folder's name that tell results of different settings apart."""
    if settings.protocol:
        yield settings.protocol
    if settings.split and settings.split != "test":
        yield settings.split
    if settings.like_weight is not None and settings.like_weight != LIKE_WEIGHT:
        yield f"like={settings.like_weight:g}"


def _open(source: SearchSource) -> Search:
    """Open search without captions, since they are the queries."""
    encoder = source.open_encoder()
    folder = IndexFolder.of(encoder)
    index = open_index(folder)
    biases = open_window_biases(folder, index, MAX_WINDOWS_BY_SEARCH)
    return Search(encoder, index, None, open_coded_index(folder, index), biases)


def _moments(search: Search, settings: MeasureSettings, problems: Problems) -> Measured:
    queries = read_queries(search.encoder.dataset, settings.protocol or "", settings.split or "test")
    return measure_moments(search, queries, problems)


def _copies(search: Search, settings: MeasureSettings, problems: Problems) -> Measured:
    return measure_copies(search.index, read_copies(settings.ground_truth[0]), problems)


def _composed(search: Search, settings: MeasureSettings, problems: Problems) -> Measured:
    queries = [query for path in settings.ground_truth for query in read_composed(path)]
    weight = LIKE_WEIGHT if settings.like_weight is None else settings.like_weight
    return measure_composed(search, queries, weight, problems)


_RUNS: dict[str, Callable[[Search, MeasureSettings, Problems], Measured]] = {
    "moments": _moments,
    "copies": _copies,
    "composed": _composed,
}


def _notes(measured: Measured, note: str | None, num_skipped: int) -> Iterator[str]:
    """Yield notes on the metrics; reasons why they are not comparable with published ones come first."""
    if num_skipped:
        yield f"skipped entries of the ground truth: {num_skipped:,} (see above); not comparable with published numbers"
    if measured.num_items < MIN_COMPARABLE:
        count = number_of(measured.num_items, "queries")
        yield f"only {count}, fewer than {MIN_COMPARABLE}: too few to compare with published numbers"
    yield from measured.notes
    if note:
        yield note
