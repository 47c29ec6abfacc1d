"""Making a search index on a Ray cluster: ``python ray_jobs/index.py --dataset howto100m --features clip_vit_b32``,
with the options of vlalign-index.

Each shard of the index is made on one core. Shards that are on disk are not made again, however an earlier call ended.

``ray submit`` copies this one file to the head machine, where it runs with the vlalign that the cluster file installs;
so its imports are absolute.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial

from vlalign.ray_jobs.cluster import add_address, connect, spread
from vlalign.storage.cli.command import run_command
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.progress import Listener
from vlalign.train.cli.index import index_parser, run_index
from vlalign.train.search.build import BuiltIndex, build_index
from vlalign.train.search.search_source import SearchSource
from vlalign.train.search.shot_windows import WindowKind


def build_index_on_cluster(
    source: SearchSource,
    *,
    language: str | None = None,
    windows: WindowKind | None = None,
    address: str | None = None,
    on_progress: Listener | None = None,
) -> BuiltIndex:
    """Do what ``build_index`` does, with one core of a Ray cluster for each shard of the index.

    Args:
        source: The data set and the model, in files that all machines see; its device is "auto" or "cpu", since windows
            are encoded on CPUs.
        language: Language of the captions, as for ``build_index``.
        windows: Which windows, as for ``build_index``.
        address: Address of the cluster, as for ``connect``.
        on_progress: Called with the progress.

    Returns:
        The index, as ``build_index`` returns it.

    Raises:
        UserError: As for ``build_index``; or no cluster answers, or it could not do the work.

    Example:
        >>> from vlalign.ray_jobs import build_index_on_cluster
        >>> from vlalign.train import SearchSource
        >>> source = SearchSource("vlalign_data/demo", run="words-s3d-seed0")
        >>> build_index_on_cluster(source).num_videos  # doctest: +SKIP
        24
    """
    if source.device not in ("auto", "cpu"):
        raise SettingError("device", source.device, "a cluster encodes windows on its cores; expected cpu")
    connect(address)
    on_cpus = replace(source, device="cpu")
    spread_shards = partial(spread, doing="indexing")
    return build_index(on_cpus, language=language, windows=windows, parallel_map=spread_shards, on_progress=on_progress)


def index(args: argparse.Namespace) -> int:
    """Run the command."""
    return run_index(args, partial(build_index_on_cluster, address=args.address))


def main(argv: list[str] | None = None) -> int:
    """Run the command ``index.py`` and return its exit code."""
    parser = index_parser(
        "index",
        "Do on a Ray cluster what vlalign-index does on one machine. --root is a folder that all machines see.",
        "ray submit ray_jobs/extract_howto100m.yaml ray_jobs/index.py --root /mnt/vlalign --dataset howto100m "
        "--features clip_vit_b32",
    )
    add_address(parser)
    return run_command(index, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
