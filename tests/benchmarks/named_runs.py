"""Searches by the runs that a benchmark is called with: ``FOLDER --runs SET:RUN,...``."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.search.search import Search, open_search


def searches() -> Iterator[tuple[str, DatasetFolder, Search]]:
    """Yield the name, the data set and the search of each run that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", required=True, help="such as demo:words-s3d-seed0,made-one:default-planted-0")
    args = parser.parse_args()
    for name, run in [of.split(":") for of in args.runs.split(",")]:
        dataset = DatasetFolder(args.folder, name)
        yield f"{name} {run}", dataset, open_search(dataset.path, run=run)
