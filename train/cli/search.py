"""The command vlalign-search."""

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ...storage.cli.command import run_command
from ...storage.cli.parser import DEVICE_HELP, Parser, add_stores, add_trust, command_parser
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, SettingError, UserError
from ...storage.common.terminal import number_of, say, show, warn
from ...storage.dataset.folder import DatasetFolder, find_dataset
from ...storage.dataset.media_types import IMAGE_SUFFIXES
from ...storage.records import SPLITS
from ..search.moments import moment_table, moment_values
from ..search.query_checks import (
    NUM_RESULTS,
    RERANK,
    SearchBy,
    SearchGroup,
    UnknownVideo,
    check_count,
    check_lengths,
    check_offset,
    check_query,
    check_split,
    check_text,
    parse_example,
    read_days,
)

if TYPE_CHECKING:
    from ..search.moments import Moment
    from ..search.search import Search
    from ..search.search_source import SearchSource
    from ..search.video_filters import VideoFilters

LIKE_WEIGHT = 0.5
"""Default of --like-weight."""
EXAMPLES = """vlalign-search words-s3d-seed0 "a blue cross grows"
  vlalign-search "a dog catches a frisbee" --dataset mine --features clip_vit_b32
  vlalign-search --like video7@12.5-18 --dataset mine --features clip_vit_b32
  vlalign-search "a beach" --without people --since 2026-06-01 --group video
  vlalign-search "a beach" --features clip_vit_b32 --export beach.edl --clips beach --exact"""

MAX_SHOWN_CHARACTERS = 200
"""Maximum length of a text in the call that a message suggests."""


def add_encoder(parser: Parser) -> None:
    """Add the options that choose the encoder of windows and queries."""
    parser.add_argument(
        "--features",
        metavar="NAME",
        help="search without a run: features whose encoder also reads texts (such as clip_vit_b32)",
    )
    parser.add_argument(
        "--weights", type=Path, metavar="PATH", help="file or folder of the weights that made these features"
    )
    parser.add_argument("--device", default="auto", help=f"device of the run: {DEVICE_HELP}")
    add_normalize(parser)
    add_stores(parser)


def add_normalize(parser: Parser) -> None:
    """Add the option that switches off the biases of an NCL run."""
    parser.add_argument(
        "--normalize",
        choices=("ncl", "none"),
        help="with or without NCL's biases of the windows (default: ncl for a run of objective ncl with "
        "--normalized-loss, else none)",
    )


def source_of(args: argparse.Namespace) -> "SearchSource":
    """Return the data set and the model of the options; ``args.run`` is the result of ``run_of``."""
    from ..search.search_source import SearchSource  # numpy and torch take their time

    if args.run is None:
        named = None if args.dataset is None else DatasetFolder(args.root, args.dataset).path
        dataset = named or find_dataset(args.root, None, having="features", hint="vlalign-extract").path
        return SearchSource(
            dataset, args.features, None, args.weights, args.device, args.stores, normalize=args.normalize
        )
    from ..runs.folder import find_run, named_dataset

    run = find_run(args.root, args.dataset, str(args.run))
    dataset = named_dataset(args.root, args.dataset, run, having="features")
    trust = tuple(args.trust)
    return SearchSource(dataset, args.features, run, args.weights, args.device, args.stores, trust, args.normalize)


def run_of(args: argparse.Namespace) -> Path | str | None:
    """Return the named run. If no run is named, return None if features are named, or else the run finished last.

    Raises:
        SettingError: An option has no effect with a run, or without one.
        UserError: A run and features are named, or there is no run.
    """
    if args.features is None and args.weights is not None:
        problem = "applies only to --features: a run reads features that are already extracted; omit it"
        raise SettingError("weights", args.weights, problem)
    if args.features is not None and args.device not in ("auto", "cpu"):
        problem = f"applies only to a run: --features {args.features} alone is searched on the CPU; omit it"
        raise SettingError("device", args.device, problem)
    if args.run is not None and args.features is not None:
        raise UserError(
            f"--features {args.features}: run {args.run} has its own features; pass either the run or --features"
        )
    if args.run is not None or args.features is not None:
        return args.run
    from ..runs.folder import find_run

    dataset = None if args.dataset is None or "," in args.dataset else args.dataset
    try:
        folder = find_run(args.root, dataset, None)
    except UserError as error:
        raise UserError(f"{error}, or pass --features NAME to search features without a run") from None
    say(f"note: using run {folder.name}, the latest finished one; for another, name it first, or pass --features")
    return folder


def _run_and_text(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Return the run and the text that the call names.

    Raises:
        UserError: The run comes last, or a text of several words has no quotes.
    """
    words = [word for word in (args.run, args.query, *args.more_words) if word is not None]
    if not words or (len(words) == 1 and args.features is not None):
        return None, words[0] if words else None
    if len(words) == 2:
        check_query(words[1])
    from ..runs.folder import find_run, finished_runs

    def is_run(word: str) -> bool:
        return bool(finished_runs(args.root, args.dataset, word))

    first, *others = words
    if is_run(first):
        if len(others) <= 1:
            return first, others[0] if others else None
        raise UserError(f"a text of several words needs quotes: {_suggested_call(first, others)}")
    if not others:
        return None, first
    if is_run(others[-1]):
        raise UserError(f"the run {others[-1]} must come before the text: {_suggested_call(others[-1], words[:-1])}")
    problem = "a text of several words needs quotes"
    if len(words) == 2 and args.features is None:
        try:
            find_run(args.root, args.dataset, first)
        except UserError as error:
            problem = f"{error}; if the text has several words, quote it"
    raise UserError(f"{problem}: {_suggested_call(None, words)}")


def _suggested_call(run: str | None, text: list[str]) -> str:
    """Return the call that was probably meant."""
    shown = " ".join(text)
    return shlex.join(
        ["vlalign-search", *([run] if run else []), shown if len(shown) <= MAX_SHOWN_CHARACTERS else "TEXT"]
    )


def _check_query(args: argparse.Namespace, query: str) -> None:
    """Raise ``UserError`` for a query that cannot be searched for, or an option that has no effect on it."""
    if args.without.strip() and not args.like and not query.strip():
        raise SettingError("without", args.without, "needs a text or --like; pass one of them, or omit it")
    if not args.like or query.strip():
        check_query(query)
    check_text("without", args.without)
    if args.all and args.num_results is not None:
        raise SettingError("num_results", args.num_results, "conflicts with --all; pass only one of them")
    if args.num_results is not None:
        check_count("num_results", args.num_results)
    if args.rerank is not None:
        check_count("rerank", args.rerank)
        if args.without.strip():
            raise SettingError("rerank", args.rerank, "has no effect with --without; omit it")
    check_offset("skip", args.skip)
    check_split(args.split)
    check_lengths(args.min_seconds, args.max_seconds)
    read_days(args.since, args.until)
    check_text("caption", args.caption or "")
    if args.like_weight is not None and (not args.like or not query.strip()):
        problem = "needs both a text and --like; pass both, or omit it"
        raise SettingError("like_weight", args.like_weight, problem)


def _check_rerank(args: argparse.Namespace) -> None:
    """Raise ``SettingError`` if ``--rerank`` is given and no fusion layers score this query."""
    if args.rerank is None:
        return
    from ..runs.folder import find_run
    from ..runs.run_json import read_config, read_run

    what = "--like compares only vectors" if args.like else ""
    what = what or ("--by text compares only captions" if args.by == "text" else "")
    what = what or (f"--features {args.features} compares only vectors" if args.run is None else "")
    if not what:
        folder = find_run(args.root, args.dataset, str(args.run))
        config = read_config(read_run(folder))
        if not config.has_fusion:
            what = f"run {folder.name} (objective {config.objective.name}) has no fusion layers"
    if what:
        raise SettingError("rerank", args.rerank, f"has no effect: {what}; omit it")


def _search(args: argparse.Namespace) -> int:
    args.run, args.query = _run_and_text(args)
    query = args.query or ""
    _check_query(args, query)
    args.run = run_of(args)
    _check_rerank(args)
    _check_exports(args)
    from ..search.search import Search
    from ..search.video_filters import VideoFacts

    filters = _filters(args)
    search = Search.open(source_of(args))
    facts = VideoFacts(search)
    videos = filters.videos(facts)
    moments = _moments(args, search, query, videos)
    is_text = not args.like and not args.without.strip() and not args.skip
    reason = search.why_nothing_fits(query, moments, videos) if is_text else None
    warnings = [*filters.warnings(facts), *search.warnings(query, args.by, args.without, bool(args.like))]
    num_videos = search.index.state.num_current if videos is None else len(videos)
    exit_code = _export(args, search, query, moments)
    if args.json:
        show(json.dumps(_as_json(args, search, query, num_videos, moments, reason, warnings)))
        return exit_code
    show(f"{_what(args, query)} among {number_of(num_videos, 'videos')} of {search.encoder.description}")
    if reason is not None or (not moments and not args.skip):
        show("nothing fits" + (f": {reason}" if reason else "") + ("; the nearest moments are" if moments else ""))
    elif not moments:
        show(f"--skip {args.skip:,}: no moments are left; pass a smaller number")
    if moments:
        show("\n".join(moment_table(moments)))
    for note in (*warnings, search.encoder.note):
        if note:
            show(f"note: {note}")
    return exit_code


def _check_exports(args: argparse.Namespace) -> None:
    """Raise ``UserError`` for a file that cannot be exported to, before the search."""
    if args.exact and args.clips is None:
        raise SettingError("exact", args.exact, "needs --clips; pass --clips FOLDER, or omit it")
    if not args.export:
        return
    from ..export.clips import refuse_existing
    from ..export.export import form_of

    for path in args.export:
        form_of(path)
        refuse_existing(path)


def _export(args: argparse.Namespace, search: "Search", query: str, moments: "list[Moment]") -> int:
    """Write the requested files; return the exit code, which shows whether all moments are in them."""
    from ..export.export import export_clips, export_moments

    problems: list[str] = []
    for path in args.export:
        exported = export_moments(search, moments, path, query=query)
        for written in exported.paths:
            say(f"wrote {written}")
        for note in exported.notes:
            say(f"note: {note}")
        problems += [f"{path}: {problem}" for problem in exported.problems]
    if args.clips is not None:
        cut = export_clips(search, moments, args.clips, exact=args.exact, query=query)
        for clip in cut.clips:
            say(f"wrote {clip.line()}")
        problems += [f"{args.clips}: {problem}" for problem in cut.problems]
    for problem in problems:
        warn(f"not exported: {problem}")
    return EXIT_INCOMPLETE if problems else EXIT_DONE


def _moments(args: argparse.Namespace, search: "Search", query: str, videos: set[str] | None) -> "list[Moment]":
    try:
        return search(
            query,
            like=[parse_example(text, search.has_video) for text in args.like],
            like_weight=LIKE_WEIGHT if args.like_weight is None else args.like_weight,
            without=args.without,
            num_results=None if args.all else NUM_RESULTS if args.num_results is None else args.num_results,
            offset=args.skip,
            rerank=RERANK if args.rerank is None else args.rerank,
            videos=videos,
            by=args.by,
            group=args.group,
            fold=args.fold,
        )
    except UnknownVideo as error:
        suffixes = f"{', '.join(IMAGE_SUFFIXES[:-1])} or {IMAGE_SUFFIXES[-1]}"
        raise UserError(f"{error}, or the path of an image file ({suffixes})") from None


def _filters(args: argparse.Namespace) -> "VideoFilters":
    from ..search.video_filters import VideoFilters

    return VideoFilters(**{field.name: getattr(args, field.name) for field in fields(VideoFilters)})


def _what(args: argparse.Namespace, query: str) -> str:
    """Return the query for the first line of output."""
    like = ", ".join(args.like)
    found = " and ".join(filter(None, (query and repr(query), like and f"like {like}")))
    return found + (f" without {args.without!r}" if args.without.strip() else "")


def _as_json(
    args: argparse.Namespace,
    search: "Search",
    query: str,
    num_videos: int,
    moments: Sequence["Moment"],
    reason: str | None,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return a search's results as one JSON object."""
    return {
        "query": query,
        "like": args.like,
        "without": args.without,
        "dataset": search.encoder.dataset.name,
        "model": search.encoder.name,
        "num_videos": num_videos,
        "nothing_fits": reason,
        "warnings": list(warnings),
        "note": search.encoder.note,
        "moments": [moment_values(moment) for moment in moments],
    }


def make_parser() -> Parser:
    """Return the parser of vlalign-search."""
    parser = command_parser(
        "vlalign-search",
        "Find the moments of a data set's videos that match a text best. --features searches without training, with "
        "the encoder of the features. A run searches its data set, or another one (--dataset) with the same features.",
        EXAMPLES,
    )
    parser.intermixed = True
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="a run's folder or name, or hf:ORG/NAME (default: the last one finished; none with --features)",
    )
    parser.add_argument("query", metavar="TEXT", nargs="?", help="text query")
    parser.add_argument("more_words", nargs="*", help=argparse.SUPPRESS)  # of a text without quotes
    add_encoder(parser)
    parser.add_argument(
        "--like",
        metavar="WHAT",
        action="append",
        default=[],
        help="search by example: VIDEO@START-END, VIDEO, or an image file; may be repeated",
    )
    parser.add_argument(
        "--like-weight", type=float, help=f"with a text: weight of --like, 0 to 1 (default: {LIKE_WEIGHT})"
    )
    parser.add_argument(
        "--without", metavar="TEXT", default="", help="rank moments lower that show what this text names"
    )
    parser.add_argument("--num-results", type=int, help=f"number of moments to show (default: {NUM_RESULTS})")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="skip the N best moments (default: 0)")
    parser.add_argument("--all", action="store_true", help="show all moments that fit")
    parser.add_argument(
        "--group",
        choices=get_args(SearchGroup),
        help="show each video once, with its other moments that fit; --num-results and --skip then count videos",
    )
    parser.add_argument(
        "--fold",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="count moments that look nearly the same as a better one of another video, instead of showing them "
        "(default: yes)",
    )
    parser.add_argument(
        "--by",
        choices=get_args(SearchBy),
        default="both",
        help="compare a text with the videos, with the text of captions and subtitles, or with both (default: both)",
    )
    parser.add_argument(
        "--rerank",
        type=int,
        metavar="K",
        help=f"a run's fusion layers score the K best search windows (default: {RERANK})",
    )
    filters = parser.add_argument_group("filters of videos")
    filters.add_argument("--split", help=f"only videos whose captions are in this split: {', '.join(SPLITS)}")
    filters.add_argument(
        "--has-caption",
        action=argparse.BooleanOptionalAction,
        help="only videos with, or (--no-has-caption) without a known caption",
    )
    filters.add_argument(
        "--min-seconds", type=float, default=0.0, metavar="S", help="only videos that last at least this long"
    )
    filters.add_argument(
        "--max-seconds", type=float, default=float("inf"), metavar="S", help="only videos that last at most this long"
    )
    filters.add_argument("--folder", metavar="FOLDER", help="only videos whose files are in this folder, or below it")
    filters.add_argument("--since", metavar="DAY", help="only videos whose files were changed on this day or later")
    filters.add_argument("--until", metavar="DAY", help="only videos whose files were changed on this day or before")
    filters.add_argument("--caption", metavar="TEXT", help="only videos with a caption that has all words of this text")
    filters.add_argument("--caption-language", metavar="CODE", help="only videos with captions in this language")
    exports = parser.add_argument_group("export of the moments that are shown")
    exports.add_argument(
        "--export",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="write them to a file; its suffix sets the form: .json, .csv, .m3u8 (playlist), .vtt (chapters), .srt, "
        ".edl, .fcpxml, .otio (editors), .jpg or .png (contact sheet); may be repeated",
    )
    exports.add_argument(
        "--clips",
        type=Path,
        metavar="FOLDER",
        help="cut them out into a folder: copied from the key frame before each (the file name has its second)",
    )
    exports.add_argument(
        "--exact", action="store_true", help="with --clips: encode again, for exact first and last frames"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: the moments, and whether they fit")
    add_trust(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_search, make_parser(), argv)
