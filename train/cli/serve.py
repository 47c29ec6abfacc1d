"""The command vlalign-serve."""

import argparse
from pathlib import Path

from ...storage.cli.command import run_command
from ...storage.cli.parser import DEVICE_HELP, Parser, add_stores, add_trust, command_parser
from ...storage.common.errors import EXIT_DONE
from ...storage.common.terminal import say, show
from ...storage.dataset.folder import find_dataset
from .search import add_normalize, run_of


def _serve(args: argparse.Namespace) -> int:
    args.run = run_of(args)
    names = [None] if args.dataset is None else list(dict.fromkeys(args.dataset.split(",")))
    datasets = [find_dataset(args.root, name, having="features", hint="vlalign-extract") for name in names]

    from ..page.browser_clips import sandbox_lacks
    from ..page.serve import serve  # torch takes seconds to import
    from ..search.search import Search
    from ..search.search_source import SearchSource

    chosen = args.features, args.run, args.weights, args.device, args.stores
    searches = [Search.open(SearchSource(d.path, *chosen, normalize=args.normalize)) for d in datasets]
    if lacking := sandbox_lacks():
        say(f"note: decoders are confined less than they could be: this system has {'; '.join(lacking)}")
    if searches[0].encoder.note:
        say(f"note: {searches[0].encoder.note}")
    where = {"host": args.host, "port": args.port, "no_token": args.no_token}
    serve(searches, **where, on_ready=lambda address: show(f"{address} (Ctrl-C ends it)"))
    return EXIT_DONE


def make_parser() -> Parser:
    """Return the parser of vlalign-serve."""
    parser = command_parser(
        "vlalign-serve",
        "Serve a web page that searches data sets by text or by example: open the address that it prints. By default, "
        "only this machine can reach it (see --host), and only with the token in the address.",
        "vlalign-serve words-s3d-seed0\n  vlalign-serve --dataset mine --features clip_vit_b32\n"
        "  vlalign-serve --dataset mine,msrvtt --features clip_vit_b32",
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="a run's folder or name (default: the last one finished; none with --features)",
    )
    parser.add_argument(
        "--features", help="search without a run: features whose encoder also reads texts (such as clip_vit_b32)"
    )
    parser.add_argument("--weights", type=Path, help="with --features: file or folder of the model's weights")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1)",
    )
    parser.add_argument("--port", type=int, default=8377, help="port; 0 for any free one (default: 8377)")
    parser.add_argument(
        "--no-token",
        action="store_true",
        help="no authentication: every user of this machine has access; not with another --host",
    )
    parser.add_argument("--device", default="auto", help=DEVICE_HELP)
    add_normalize(parser)
    add_stores(parser)
    add_trust(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_serve, make_parser(), argv)
