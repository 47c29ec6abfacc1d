"""Custom data sets: a ``Dataset`` from a module outside this package, by name."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ...storage.common.errors import UserError
from ...storage.common.plugins import Plugin, errors_of_plugin, load_plugin, names_plugin
from ...storage.common.problems import Problems
from ...storage.records import Caption, VideoRecord
from .sources import Annotations, Chunk, ChunkedReader, Dataset, Record

T = TypeVar("T")


def is_own_dataset(name: str) -> bool:
    """Return whether a name is MODULE:NAME or an entry point in ``vlalign.datasets``. Nothing is imported."""
    return names_plugin("datasets", name)


def load_own_dataset(text: str, taken: Iterable[str]) -> tuple[Dataset, Plugin]:
    """Load a data set that the user named.

    Args:
        text: "MODULE:NAME", or the name of an entry point.
        taken: Names that the data set must not have.

    Returns:
        The data set, and its plugin. Any process can call the data set's functions; their errors become ``UserError``.

    Raises:
        UserError: The module cannot be imported, or has no such data set, or the data set's name is empty or taken.
    """
    plugin = load_plugin("datasets", text)
    dataset = plugin.value
    if not isinstance(dataset, Dataset):
        raise UserError(f"data set {text}: is a {type(dataset).__name__}; expected a vlalign.preprocess.Dataset")
    if not dataset.name:
        raise UserError(f"data set {text}: has no name for its folder; write Dataset(..., name=NAME)")
    if dataset.name in taken:
        raise UserError(f"data set {text}: its name {dataset.name!r} is a data set of vlalign; choose another name")
    own, chunked = _OwnDataset(text, plugin.folder), dataset.chunked_reader
    return (
        replace(
            dataset,
            read=own.read,
            facts=dataset.facts and own.call(dataset.facts),
            steps=dataset.steps and own.call(dataset.steps),
            chunked_reader=chunked and ChunkedReader(own.call(chunked.find), own.split, own.read_chunk),
        ),
        plugin,
    )


@dataclass(frozen=True)
class _OwnDataset:
    """Calls the functions of a custom data set, in any process."""

    text: str
    folder: str
    """Folder of the module, from which other processes load it again."""

    def _load(self) -> tuple[Dataset, Plugin]:
        plugin = load_plugin("datasets", self.text, self.folder)
        return plugin.value, plugin

    def _reader(self) -> tuple[ChunkedReader, Plugin]:
        dataset, plugin = self._load()
        assert dataset.chunked_reader is not None
        return dataset.chunked_reader, plugin

    def call(self, function: Callable[..., T]) -> Callable[..., T]:
        """Wrap a function: its errors name the data set."""

        def call(*args: Any) -> T:
            with errors_of_plugin(self._load()[1]):
                return function(*args)

        return call

    def read(self, annotations: Annotations, protocol: str) -> Iterator[Record]:
        """Check and yield the records."""
        dataset, plugin = self._load()
        with errors_of_plugin(plugin):
            for record in dataset.read(annotations, protocol):
                yield self._checked(record)

    def split(self, path: Path) -> Iterator[Chunk]:
        """Yield the chunks of a file."""
        reader, plugin = self._reader()
        with errors_of_plugin(plugin):
            yield from reader.split(path)

    def read_chunk(self, path: Path, protocol: str, content: Any, problems: Problems) -> Iterator[Record]:
        """Check and yield the records of a chunk."""
        reader, plugin = self._reader()
        with errors_of_plugin(plugin):
            for record in reader.read_chunk(path, protocol, content, problems):
                yield self._checked(record)

    def _checked(self, record: object) -> Record:
        if not isinstance(record, Caption | VideoRecord):
            kind = type(record).__name__
            raise UserError(f"data set {self.text}: its reader yields a {kind}; expected Caption or VideoRecord")
        return record
