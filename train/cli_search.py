"""The command vlalign-search."""

import argparse

from ..storage.common.command import command_parser, run_command
from ..storage.common.exits import EXIT_DONE
from ..storage.common.terminal import show
from .search.search import search_clips


def _search(args: argparse.Namespace) -> int:
    result = search_clips(
        args.run,
        args.query,
        root=args.root,
        dataset=args.dataset,
        num_results=args.num_results,
        rerank=args.rerank,
        device=args.device,
    )
    searched = result.dataset.name
    if result.dataset is not result.trained_on:
        searched += f" ({result.dataset.path}), with the run {result.run_folder.name} of {result.trained_on.name}"
    show(f"{args.query!r} among {result.num_clips:,} clips of {searched}")
    if not result.has_captions:
        show(f"note: {result.dataset.name} has no captions, which say where clips begin and end: searched whole videos")
    show(f"{'score':>8}  {'seconds':>15}  video")
    for hit in result.hits:
        show(f"{hit.score:>8.2f}  {hit.start_seconds:>6.2f} - {hit.end_seconds:>6.2f}  {hit.video_id}")
    if result.note:
        show(f"note: {result.note}")
    return EXIT_DONE


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = command_parser(
        "vlalign-search",
        "Find the clips that fit a text best, with the model of a run: in the run's data set, or in another one "
        "(--dataset) that has the run's features, made in the same way.",
        'vlalign-search taco-s3d-seed0 "a red circle falls"',
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder or name")
    parser.add_argument("query", metavar="TEXT", help="what to look for")
    parser.add_argument("--num-results", type=int, default=5, help="number of clips to show (default: 5)")
    parser.add_argument(
        "--rerank", type=int, default=50, metavar="K", help="the fusion layers score the K best clips (default: 50)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    return run_command(_search, parser, argv)
