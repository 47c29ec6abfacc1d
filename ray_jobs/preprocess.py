"""Preparing captions on a Ray cluster: ``python ray_jobs/preprocess.py --dataset howto100m``, with the options of
vlalign-preprocess.

Parts of the captions that are on disk are not made again, however an earlier call ended.

``ray submit`` copies this one file to the head machine, where it runs with the vlalign that the cluster file installs;
so its imports are absolute.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from vlalign.preprocess.cli import preprocess_parser, run_preprocess
from vlalign.preprocess.prepare import PreparedCaptions, prepare_captions
from vlalign.preprocess.settings import PreprocessingSettings
from vlalign.ray_jobs.cluster import add_address, connect, spread
from vlalign.storage.cli.command import run_command
from vlalign.storage.common.progress import Listener


def prepare_captions_on_cluster(
    settings: PreprocessingSettings, *, address: str | None = None, on_progress: Listener | None = None
) -> PreparedCaptions:
    """Do what ``prepare_captions`` does; all cores of a Ray cluster read, tag and encode the captions.

    Args:
        settings: The captions, and how to prepare them. All machines must see the data set's folder and have the spaCy
            pipeline.
        address: Address of the cluster, as for ``connect``.
        on_progress: Called with the progress of each stage.

    Returns:
        The captions, as ``prepare_captions`` returns them.

    Raises:
        UserError: As for ``prepare_captions``; or no cluster answers, or it could not do the work.

    Example:
        >>> from vlalign.preprocess import PreprocessingSettings
        >>> from vlalign.ray_jobs import prepare_captions_on_cluster
        >>> settings = PreprocessingSettings("vlalign_data/mine", annotations="captions.csv")
        >>> prepare_captions_on_cluster(settings).statistics.num_captions  # doctest: +SKIP
        2
    """
    connect(address)
    settings = replace(settings, dataset=Path(settings.dataset).absolute())  # workers run in other folders
    return prepare_captions(settings, parallel_map=partial(spread, preserve_order=True), on_progress=on_progress)


def preprocess(args: argparse.Namespace) -> int:
    """Run the command."""
    return run_preprocess(args, partial(prepare_captions_on_cluster, address=args.address))


def main(argv: list[str] | None = None) -> int:
    """Run the command ``preprocess.py`` and return its exit code."""
    parser = preprocess_parser(
        "preprocess",
        "Do on a Ray cluster what vlalign-preprocess does on one machine. --root is a folder that all machines see.",
        "ray submit ray_jobs/extract_howto100m.yaml ray_jobs/preprocess.py --root /mnt/vlalign --dataset howto100m",
    )
    add_address(parser)
    return run_command(preprocess, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
