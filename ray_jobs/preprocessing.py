"""Tagging and counting on a Ray cluster: ``python ray_jobs/preprocess.py --dataset howto100m``, with all that
vlalign-preprocess takes. A part of the captions that is on disk is not made again, whatever ended the call before."""

import argparse
from functools import partial

from ..preprocess.cli import preprocess, preprocess_parser
from ..preprocess.prepare import make_part
from ..storage.common.command import run_command
from .cluster import add_address, connect, spread


def main(argv: list[str] | None = None) -> int:
    parser = preprocess_parser(
        "preprocess",
        "Does on a Ray cluster what vlalign-preprocess does on one machine. --root is a folder that all machines see.",
        "ray submit ray_jobs/extract_howto100m.yaml ray_jobs/preprocess.py --root /mnt/vlalign --dataset howto100m",
    )
    add_address(parser)

    def on_cluster(args: argparse.Namespace) -> int:
        connect(args)
        return preprocess(args, partial(spread, make_part, doing="tagging"))

    return run_command(on_cluster, parser, argv)
