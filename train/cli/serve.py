"""The command vlalign-serve."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...storage.cli.command import run_command
from ...storage.cli.parser import DEVICE_HELP, Parser, add_stores, add_trust, command_parser
from ...storage.common.errors import EXIT_DONE, SettingError, UserError
from ...storage.common.terminal import say, show, warn
from ...storage.dataset.folder import DatasetFolder, find_dataset
from ..sync.settings import SyncSettings
from .search import add_normalize, run_of
from .sync import add_every, dataset_of, every_seconds

if TYPE_CHECKING:
    from ..page.folder_sync import FolderSync
    from ..search.search import Search


def _serve(args: argparse.Namespace) -> int:
    every = every_seconds(args, "videos")
    if args.mcp:
        from ..page import mcp_server  # noqa: F401 (a missing package is reported before torch is imported)
    if args.videos is not None:
        return _serve_folders(args, every)
    _run_server(open_searches(args), None, args)
    return EXIT_DONE


def open_searches(args: argparse.Namespace) -> "list[Search]":
    """Return a search for each data set that the options name."""
    args.run = run_of(args)
    names = [None] if args.dataset is None else list(dict.fromkeys(args.dataset.split(",")))
    datasets = [find_dataset(args.root, name, having="features", hint="vlalign-extract") for name in names]

    from ..search.search import Search  # torch takes seconds to import
    from ..search.search_source import SearchSource

    chosen = args.features, args.run, args.weights, args.device, args.stores
    return [Search.open(SearchSource(d.path, *chosen, normalize=args.normalize)) for d in datasets]


def _serve_folders(args: argparse.Namespace, every: float) -> int:
    """Serve a data set while updating it from folders of videos."""
    if args.run is not None and args.features is not None:
        raise UserError(
            f"--features {args.features}: run {args.run} has its own features; pass either the run or --features"
        )
    if args.stores is not None:
        raise SettingError("stores", args.stores, "--videos does not write stores of your own; pass only one of them")
    if args.dataset is not None and "," in args.dataset:
        raise SettingError("dataset", args.dataset, "expected one data set, to which the videos are added")

    from ..page.folder_sync import FolderSync  # torch takes seconds to import
    from ..search.search_source import SearchSource
    from ..sync.sync import features_of_run, followed_folders, search_source, searched_features

    weights = [] if args.weights is None else [str(args.weights)]
    more = {"folders": args.videos, "weights": weights, "trust": args.trust, "device": args.device}
    if args.run is None:
        dataset = DatasetFolder(args.root, dataset_of(args))
        settings = SyncSettings(dataset=dataset.path, features=args.features, **more)
        extraction = settings.extraction()
        name, note = searched_features(extraction)
        source, needed = replace(search_source(extraction, name), normalize=args.normalize), [name]
    else:
        run, dataset, needed = _run_features(args)
        settings = features_of_run(SyncSettings(dataset=dataset.path, **more), needed, run.name)
        source = SearchSource(dataset.path, None, run, None, args.device, None, tuple(args.trust), args.normalize)
        name, note = run.name, ""
    folders = followed_folders(settings)
    below = [folder for folder in args.videos if not folder.is_absolute() and ".." not in folder.parts]
    typed = {os.path.realpath(folder): str(folder) for folder in below}
    say(f"note: {dataset.path} follows {', '.join(folders)}")
    if note:
        say(f"note: {note}")

    shown = {folder: typed.get(folder, Path(folder).name or folder) for folder in folders}
    sync = FolderSync(settings, shown, source, needed, name, every)
    searches: list[Search] = []
    try:
        searches += filter(None, [sync.first_search()])
    except UserError as error:  # such as an index that the sync is about to make
        warn(f"warning: {error}")
    _run_server(searches, sync, args)
    return EXIT_DONE


def _run_features(args: argparse.Namespace) -> tuple[Path, DatasetFolder, list[str]]:
    """Return the named run, the data set to search, and the features that the run reads."""
    from ..runs.folder import find_run, own_dataset
    from ..runs.run_json import read_config, read_run
    from ..settings import FeatureRows

    run = find_run(args.root, args.dataset, str(args.run))
    about = read_run(run)
    config, own = read_config(about), own_dataset(run, about)
    dataset = own if own is not None and args.dataset is None else DatasetFolder(args.root, dataset_of(args))
    extra = [inputs.features for inputs in config.extra.values() if isinstance(inputs, FeatureRows)]
    return run, dataset, list(dict.fromkeys([*config.data.features.split("+"), *extra]))


def _run_server(searches: "Sequence[Search]", sync: "FolderSync | None", args: argparse.Namespace) -> None:
    """Print the notes on startup, and serve the page until a signal."""
    from ..page.browser_clips import sandbox_lacks
    from ..page.serve import serve

    if lacking := sandbox_lacks():
        say(f"note: the sandbox of the decoders is weaker on this system: {'; '.join(lacking)}")
    if searches and searches[0].encoder.note:
        say(f"note: {searches[0].encoder.note}")
    where = {"host": args.host, "port": args.port, "no_token": args.no_token, "mcp": args.mcp}
    serve(searches, **where, sync=sync, on_ready=lambda address: show(f"{address} (Ctrl-C stops the server)"))


def make_parser() -> Parser:
    """Return the parser of vlalign-serve."""
    parser = command_parser(
        "vlalign-serve",
        "Serve a web page that searches data sets by text or by example: open the address that it prints. By default, "
        "only this machine can reach it (see --host), and only with the token in the address.",
        "vlalign-serve words-s3d-seed0\n  vlalign-serve --dataset mine --features clip_vit_b32\n"
        "  vlalign-serve --dataset mine,msrvtt --features clip_vit_b32\n"
        "  vlalign-serve --videos FOLDER --features clip_vit_b32",
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="a run's folder or name, or hf:ORG/NAME (default: the last one finished; none with --features)",
    )
    parser.add_argument(
        "--features", help="search without a run: features whose encoder also reads texts (such as clip_vit_b32)"
    )
    parser.add_argument("--weights", type=Path, help="with --features: file or folder of the model's weights")
    parser.add_argument(
        "--videos",
        type=Path,
        nargs="+",
        action="extend",
        metavar="FOLDER",
        help="folders of your own videos: serve at once, and meanwhile update the data set from them, as "
        "vlalign-sync --watch does; the data set follows them from now on",
    )
    add_every(parser, "--videos")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="IP address to listen on; 0.0.0.0 for all of this machine (default: 127.0.0.1)",
    )
    parser.add_argument("--port", type=int, default=8377, help="port; 0 for any free one (default: 8377)")
    parser.add_argument(
        "--no-token",
        action="store_true",
        help="no authentication: every user of this machine has access; not with another --host",
    )
    parser.add_argument(
        "--mcp", action="store_true", help="also let language models search: answer MCP clients at /mcp, with the token"
    )
    parser.add_argument("--device", default="auto", help=DEVICE_HELP)
    add_normalize(parser)
    add_stores(parser)
    add_trust(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_serve, make_parser(), argv)
