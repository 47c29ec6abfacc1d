"""Preparing captions on a Ray cluster: ``python ray_jobs/preprocess.py --dataset howto100m``, with the options of
vlalign-preprocess.

Parts of the captions that are on disk are not made again, however an earlier call ended.

``ray submit`` copies this one file to the head machine, where it runs with the vlalign that the cluster file installs;
so its imports are absolute.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from vlalign.preprocess.cli import preprocess_parser, run_preprocess
from vlalign.preprocess.prepare import SPACY_MODEL, PreparedCaptions, prepare_captions
from vlalign.ray_jobs.cluster import add_address, connect, spread
from vlalign.storage.cli.command import run_command
from vlalign.storage.common.progress import Listener


def prepare_captions_on_cluster(
    name: str,
    *,
    root: Path | str = "vlalign_data",
    annotations: Path | str | None = None,
    protocol: str | None = None,
    spacy_model: str = SPACY_MODEL,
    language: str | None = None,
    word_vectors: Path | str | None = None,
    seed: int = 0,
    strict: bool = False,
    address: str | None = None,
    on_progress: Listener | None = None,
) -> PreparedCaptions:
    """Do what ``prepare_captions`` does; all cores of a Ray cluster read and tag the captions.

    Args:
        name: Name of a data set, as for ``prepare_captions``.
        root: Folder of all data sets; all machines must see it.
        annotations: Folder with the official files, or the file with your own captions.
        protocol: Choice of splits and captions.
        spacy_model: spaCy pipeline that is installed on all machines.
        language: Language of the captions, as for ``prepare_captions``.
        word_vectors: File of word vectors.
        seed: Decides the demo's scenes, and the splits of your own captions if they have none.
        strict: Raise an error at the first row that cannot be used.
        address: Address of the cluster, as for ``connect``.
        on_progress: Called with the progress of each stage.

    Raises:
        UserError: As for ``prepare_captions``; or no cluster answers, or it could not do the work.
    """
    connect(address)
    return prepare_captions(
        name,
        root=Path(root).absolute(),  # workers run in other folders
        annotations=annotations,
        protocol=protocol,
        spacy_model=spacy_model,
        language=language,
        word_vectors=word_vectors,
        seed=seed,
        strict=strict,
        in_order=partial(spread, in_order=True),
        on_progress=on_progress,
    )


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
