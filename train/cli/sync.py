"""The command vlalign-sync."""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, add_setting, command_parser, given_settings
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, SettingError, UserError
from ...storage.common.settings import SettingInfo, names_of_options
from ...storage.common.terminal import show, warn
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.synced import is_synced
from ..sync.settings import EVERY_SECONDS, SyncSettings

if TYPE_CHECKING:
    from ..sync.sync import SyncResult

DEFAULT_DATASET = "mine"
"""Name of the data set if none follows folders yet."""
EVERY = SettingInfo(ge=1, le=7 * 86400)
"""Seconds between two syncs."""


def make_parser() -> Parser:
    """Return the parser of vlalign-sync."""
    parser = command_parser(
        "vlalign-sync",
        "Update a data set from folders of your own videos: extract new and changed videos, keep the features of "
        "renamed ones, remove deleted ones, read subtitles beside the videos, and build the search index.",
        "vlalign-sync FOLDER --features clip_vit_b32\n  vlalign-sync OTHER_FOLDER\n  vlalign-sync --watch",
    )
    parser.intermixed = True
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=Path,
        help="folder of videos, which the data set follows from now on (default: the folders that it follows)",
    )
    for name in names_of_options(SyncSettings):
        add_setting(parser, SyncSettings, name)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument("--watch", action="store_true", help="repeat until Ctrl-C or SIGTERM")
    add_every(parser, "--watch")
    return parser


def add_every(parser: Parser, having: str) -> None:
    """Add the option for the interval between checks of folders; ``having`` is the option that it belongs to."""
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help=f"with {having}: time from the end of a sync to the next one (default: {EVERY_SECONDS:g})",
    )


def every_seconds(args: argparse.Namespace, having: str) -> float:
    """Return the seconds from the end of a sync to the next one.

    Raises:
        SettingError: They are out of range, or the option ``having`` is missing.
    """
    if args.every is None:
        return EVERY_SECONDS
    if not getattr(args, having):
        raise SettingError("every", args.every, f"needs --{having}; pass --{having} also, or omit it")
    if (problem := EVERY.problem(args.every)) is not None:
        raise SettingError("every", args.every, problem)
    return args.every


def dataset_of(args: argparse.Namespace) -> str:
    """Return the name of the data set: the requested one, the only one with synchronised folders, or a new one."""
    if args.dataset is not None:
        return args.dataset
    followers = sorted(folder.name for folder in args.root.glob("*") if is_synced(folder))
    if len(followers) > 1:
        raise UserError(
            f"{len(followers)} data sets follow folders ({', '.join(followers)}); choose one with --dataset"
        )
    return followers[0] if followers else DEFAULT_DATASET


def sync(args: argparse.Namespace) -> int:
    """Run the command, once or repeatedly; return the exit code."""
    from ..sync.sync import SyncResult
    from ..sync.watch import show_messages, sync_again_and_again, why_failed

    every = every_seconds(args, "watch")
    folder = DatasetFolder(args.root, dataset_of(args)).path
    settings = SyncSettings(dataset=folder, folders=args.folders, **given_settings(args, SyncSettings))
    syncs = sync_again_and_again(settings, lambda: time.sleep(every))
    result = next(syncs)
    if not isinstance(result, SyncResult):
        raise result
    show_messages(result, None)
    _show_result(folder, result, as_json=args.json)
    if not args.watch:
        return EXIT_DONE if result.complete else EXIT_INCOMPLETE
    for new in syncs:
        if not isinstance(new, SyncResult):
            warn(f"warning: {why_failed(new)}; next attempt in {every:g} s")
            continue
        show_messages(new, result)
        if new.changed or new.warnings != result.warnings:
            _show_result(folder, new, as_json=args.json)
        result = new
    return EXIT_DONE


def _show_result(folder: Path, result: "SyncResult", *, as_json: bool) -> None:
    from ..sync.watch import summary

    show(json.dumps(result.to_json()) if as_json else f"{folder}: {summary(result)}")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(sync, make_parser(), argv)
