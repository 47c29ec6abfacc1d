"""vlalign-search: free text -> the best clips."""

import argparse

from ..storage.captions import read_captions_about
from ..storage.common.command import command_parser, run_command
from ..storage.common.errors import UserError
from ..storage.common.exits import EXIT_DONE
from ..storage.common.terminal import show
from .config import HEADS
from .run_files import read_config
from .runs import asked_dataset, dataset_of, find_run, read_run


def search_command(args: argparse.Namespace) -> int:
    if not args.query.strip():
        raise UserError("the query is empty; expected some words, such as 'a red circle falls'")
    for name in ("num_results", "rerank"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: expected 1 or more")
    folder = find_run(args.root, args.dataset, args.run)
    own = dataset_of(folder, read_config(read_run(folder)))
    on = asked_dataset(args.root, args.dataset, own, having="features")

    from .checkpoint import load_run
    from .search.search import search, searchable_clips

    run = load_run(folder, on, args.device)
    if run.config.objective in HEADS:
        raise UserError(
            f"run {folder.name}: was trained with --objective {run.config.objective}, and finds no videos by text"
        )
    if run.config.encoder == "spoken":
        raise UserError(f"run {folder.name}: hears recordings, and finds no videos by text")
    clips = searchable_clips(run)
    hits = search(run, args.query, clips, args.num_results, args.rerank)
    of = on.name if on is own else f"{on.name} ({on.path}), with the run {folder.name} of {own.name}"
    show(f"{args.query!r} among {len(clips):,} clips of {of}")
    if read_captions_about(on.captions) is None:
        show(f"note: {on.name} has no captions, which say where clips begin and end: whole videos were searched")
    show(f"{'score':>8}  {'seconds':>15}  video")
    for hit in hits:
        show(f"{hit.score:>8.2f}  {hit.start_seconds:>6.2f} - {hit.end_seconds:>6.2f}  {hit.video_id}")
    if run.note:
        show(f"note: {run.note}")
    return EXIT_DONE


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(
        "vlalign-search",
        "Finds the clips that fit a text best, with the model of a run: of --dataset, which needs the run's features made in the same way, "
        "or else of the run's own data set.",
        'vlalign-search taco-s3d-seed0 "a red circle falls"',
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder or name")
    parser.add_argument("query", metavar="TEXT", help="what to look for")
    parser.add_argument("--num-results", type=int, default=5, help="(default: 5)")
    parser.add_argument(
        "--rerank", type=int, default=50, metavar="K", help="the fusion layers look at the K best clips (default: 50)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    return run_command(search_command, parser, argv)
