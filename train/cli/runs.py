"""The command vlalign-runs."""

import argparse
import shlex
import sys

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, add_trust, command_parser
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, SettingError, UserError
from ...storage.common.terminal import say, show
from ...storage.dataset.folder import DatasetFolder, find_dataset
from ..comparison.claims import list_claims
from ..comparison.groups import list_evaluations, list_runs
from ..comparison.manage import check_run_folder, delete_run, rename_run
from ..comparison.paired_runs import compare_runs, pair_table
from ..comparison.paper_figures import FIGURES, draw_paper_figure
from ..comparison.table import FORMATS
from ..runs.files import CARD_FILE
from ..runs.folder import find_run

EXAMPLES = """vlalign-runs --dataset demo
  vlalign-runs --dataset demo --filter objective=taco --filter "R@1>30" --sort "median rank" --format markdown
  vlalign-runs --dataset demo --compare words-s3d-seed0 ncl-s3d-seed0
  vlalign-runs --dataset demo --delete words-s3d-seed0 --yes
  vlalign-runs --claims
  vlalign-runs --figure "SSML, Figure 2"
  vlalign-runs export words-s3d-seed0 words-on-demo"""


RUN, SENTENCE_TRANSFORMERS = "run", "sentence-transformers"


def _runs(args: argparse.Namespace) -> int:
    if args.export:
        return _export(args)
    if args.form != RUN:
        raise SettingError("form", args.form, "applies only to export RUN FOLDER; omit it")
    if args.claims:
        return _claims(args)
    if args.figure:
        numbers, files = draw_paper_figure(args.figure, args.root, args.dataset)
        *drawn, written = files
        show("\n".join(numbers.notes) if drawn else FORMATS[args.format](numbers))
        show(f"figure: {drawn[0]}; its numbers: {written}" if drawn else f"table: {written}")
        return EXIT_DONE
    dataset = find_dataset(args.root, args.dataset, having="runs", hint="vlalign-train")
    write = FORMATS[args.format]
    if args.compare:
        pair, page = compare_runs(dataset, *args.compare)
        show(write(pair_table(pair)))
        show(f"page: {page}")
        return EXIT_DONE
    if args.evaluations is not None:
        evaluations = list_evaluations(dataset, args.evaluations or None)
        show(write(evaluations.table))
        return EXIT_INCOMPLETE if evaluations.num_unreadable else EXIT_DONE
    if args.rename:
        show(f"renamed to {rename_run(dataset, *args.rename)}")
        say("note: report.html shows the old name until the run is evaluated again")
        return EXIT_DONE
    if args.delete:
        return _delete(dataset, args.delete, is_sure=args.yes)
    overview = list_runs(dataset, sort=args.sort, conditions=args.filter)
    show(write(overview.table))
    return EXIT_INCOMPLETE if overview.num_unreadable else EXIT_DONE


def _export(args: argparse.Namespace) -> int:
    if len(args.export) != 3 or args.export[0] != "export":
        raise UserError(f"{shlex.join(args.export)}: expected options only, or: export RUN FOLDER")
    _, run, target = args.export
    if args.form == SENTENCE_TRANSFORMERS:
        from ..comparison.sentence_transformer import export_sentence_transformer  # torch takes seconds to import

        folder = export_sentence_transformer(find_run(args.root, args.dataset, run), target)
        show(f"exported {folder}: the text encoder alone; SentenceTransformer({str(folder)!r}) loads it")
        return EXIT_DONE
    from ..comparison.export import export_run  # torch takes seconds to import

    folder = export_run(find_run(args.root, args.dataset, run), target)
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    show(f"exported {folder}: {num_bytes / 1e6:,.1f} MB; its card: {folder / CARD_FILE}")
    say("note: the card states no licence; add one before you share the folder")
    return EXIT_DONE


def _claims(args: argparse.Namespace) -> int:
    claims = list_claims(args.root)
    show(FORMATS[args.format](claims.table))
    return EXIT_INCOMPLETE if claims.num_unreadable else EXIT_DONE


def _delete(dataset: DatasetFolder, names: list[str], *, is_sure: bool) -> int:
    folders = [check_run_folder(dataset, name) for name in names]
    if not is_sure:
        if not sys.stdin.isatty():
            raise UserError(f"{', '.join(names)}: not deleted: no terminal to ask for confirmation on; pass --yes")
        say(f"delete {', '.join(map(str, folders))}? [y/N]")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            say("nothing was deleted")
            return EXIT_INCOMPLETE
    for name, folder in zip(names, folders, strict=True):
        delete_run(dataset, name)
        show(f"deleted {folder}")
    return EXIT_DONE


def make_parser() -> Parser:
    """Return the parser of vlalign-runs."""
    parser = command_parser(
        "vlalign-runs",
        "Show all runs of a data set in a table: the settings that differ from the recipe, the metrics with their "
        "standard deviation over seeds, the test set, and a paper's result for the same settings. Compare two runs "
        "query by query; delete, rename and export runs. Draw the papers' figures from your runs.",
        EXAMPLES,
    )
    parser.intermixed = True
    parser.add_argument(
        "export",
        nargs="*",
        metavar="export RUN FOLDER",
        help="write a run and its card into a folder, from which it can be loaded without its data set",
    )
    parser.add_argument(
        "--form",
        choices=(RUN, SENTENCE_TRANSFORMERS),
        default=RUN,
        help="with export: the whole run, or its text encoder as a model of sentence-transformers (default: run)",
    )
    parser.add_argument(
        "--sort", metavar="NAME", help="sort by a metric, a setting or another column, best first (default: R@1)"
    )
    parser.add_argument(
        "--filter",
        metavar="CONDITION",
        action="append",
        default=[],
        help='show only runs with NAME=VALUE (* is a wildcard), NAME!=VALUE or NAME>NUMBER, such as "R@1>30"; '
        "if repeated, all must hold",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="(default: text)")
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="compare two runs query by query, with a confidence interval for the difference, and write an HTML page",
    )
    action.add_argument(
        "--evaluations",
        nargs="?",
        const="",
        metavar="RUN",
        help="show each evaluation of a run, or of all runs, in a row of its own: splits, protocols and settings",
    )
    action.add_argument("--delete", nargs="+", metavar="RUN", help="delete runs; asks first")
    action.add_argument(
        "--figure",
        metavar="NAME",
        help=f"draw a figure of a paper, or write a table that needs no training: {'; '.join(FIGURES)}",
    )
    action.add_argument("--rename", nargs=2, metavar=("RUN", "NAME"), help="rename a run")
    action.add_argument(
        "--claims",
        action="store_true",
        help="list every table, figure and theorem of the five papers, with its state here and its command",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before deleting")
    add_trust(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_runs, make_parser(), argv)
