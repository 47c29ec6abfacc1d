"""Runs that tests change, and the error that a search with one reports."""

import signal
from pathlib import Path

from vlalign.storage.common.files import read_json, write_json
from vlalign.train.cli.search import main as search_main

MOST_SECONDS = 60


def search(run: Path) -> int:
    return search_main(["--root", str(run.parents[2]), str(run), "cut the onion"])


def newest_figures(run: Path) -> dict:
    """The figures of the run's evaluation that was written last, whatever was asked."""
    return read_json(max(run.rglob("metrics.json"), key=lambda path: path.stat().st_mtime_ns))


def change(path: Path, **values) -> None:
    write_json(path, read_json(path) | values)


def refused(run: Path, capsys) -> str:
    """The line that a search with it says."""
    signal.alarm(MOST_SECONDS)
    code = search(run)
    signal.alarm(0)
    said = capsys.readouterr().err.strip()
    assert code == 2 and "\n" not in said and said.isprintable(), said
    return said.removeprefix("vlalign-search: error: ")
