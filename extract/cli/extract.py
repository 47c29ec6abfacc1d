"""vlalign-extract: videos -> feature stores."""

import argparse
from datetime import timedelta
from typing import TYPE_CHECKING

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, add_setting, command_parser, given_settings, next_call
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, UserError
from ...storage.common.settings import names_of_options
from ...storage.common.terminal import number_of, say, show
from ...storage.dataset.folder import DatasetFolder
from ..pipeline.dataset import extract_dataset
from ..pipeline.runner import Runner
from ..settings import ExtractionSettings
from ..videos.captioned import unlisted_problem

if TYPE_CHECKING:
    from ..pipeline.plan import ExtractionPlan, PlannedAddresses
    from ..verification.verify import VideoVerdict


GROUPS = {"features": ("features", "weights", "fps", "trust"), "videos": ("videos", "allow_host")}
"""{title of a group of options: its settings}. Other settings belong to no group."""


def named_dataset(args: argparse.Namespace) -> DatasetFolder:
    """Return the data set that the command line names. Raises ``UserError`` if it names none."""
    if args.dataset is None:
        raise UserError(
            f"--dataset is missing: pass the name of a data set under {args.root}, or a new name with --videos FOLDER"
        )
    return DatasetFolder(args.root, args.dataset)


def settings_of(args: argparse.Namespace) -> ExtractionSettings:
    """Return the settings that the command line asks for.

    Raises:
        UserError: The data set is missing, or an option has a value that cannot be used.
    """
    return ExtractionSettings(dataset=named_dataset(args).path, **given_settings(args, ExtractionSettings))


def run(args: argparse.Namespace, runner: Runner | None = None) -> int:
    """Extract, plan, verify or show the state, depending on the options; return the exit code."""
    if args.status:
        from ..pipeline.run_state import status_lines

        for line in status_lines(named_dataset(args)):
            show(line)
        return EXIT_DONE
    settings = settings_of(args)
    if args.plan:
        from ..pipeline.plan import plan_extraction

        plan = plan_extraction(settings, runner=runner)
        show_plan(settings, plan)
        return EXIT_INCOMPLETE if plan.num_problems else EXIT_DONE
    if settings.verify_against is not None:
        from ..verification.verify import verify_dataset

        verification = verify_dataset(settings, runner=runner, on_verdict=VerdictTable().show)
        show("distance: between matching rows; 1 is the distance of rows of different videos")
        show(f"{verification.num_same:,} of {len(verification.verdicts):,} videos have the same rows")
        return EXIT_DONE if verification.same else EXIT_INCOMPLETE
    return EXIT_DONE if extract_dataset(settings, runner=runner).complete else EXIT_INCOMPLETE


def show_plan(settings: ExtractionSettings, plan: "ExtractionPlan") -> None:
    """Print what an extraction would do."""
    if not plan.num_left:
        show(f"{settings.folder.path}: nothing left to extract of {','.join(settings.store_names)}")
        return
    if plan.num_probed:
        width = max([16, *(len(row.name) for row in plan.features)])
        show(f"{'features':<{width}}{'videos':>10}{'hours':>10}{'rows':>14}{'MB':>12}")
        for row in plan.features:
            show(
                f"{row.name:<{width}}{row.num_videos:>10,}{row.hours:>10,.2f}{row.num_rows:>14,}{row.megabytes:>12,.1f}"
            )
        show(f"{plan.num_unreadable:,} of {plan.num_probed:,} videos cannot be read")
    for row in plan.features:
        if row.note:
            show(row.note)
    hours = plan.hours
    if plan.addresses is not None:
        show(describe_addresses(plan.addresses))
        hours += plan.addresses.hours or 0.0
    if plan.speed is not None:
        rate = plan.speed.video_seconds_per_second
        duration = timedelta(seconds=round(3600 * hours / rate))
        show(
            f"{hours:,.2f} hours of video, at {rate:.2f} times playback speed on {plan.speed.where}: "
            f"{duration} (h:mm:ss)"
        )


def describe_addresses(addresses: "PlannedAddresses") -> str:
    """Return a line about the videos on servers."""
    unsized = f", without {addresses.num_unsized:,} of unknown size" if addresses.num_unsized else ""
    line = f"{number_of(addresses.num_videos, 'videos')} to download: {addresses.num_bytes / 1e9:,.2f} GB{unsized}"
    if addresses.hours is None:
        return f"{line}; their duration is not known, since none could be probed"
    fetched = f"{number_of(addresses.num_fetched, 'videos')} downloaded now"
    source = fetched if addresses.num_fetched else "the videos on this machine"
    return f"{line}; about {addresses.hours:,.2f} hours, extrapolated from {source}"


class VerdictTable:
    """Prints a line for each video that was verified, below a header."""

    def __init__(self) -> None:
        self._has_header = False

    def show(self, verdict: "VideoVerdict") -> None:
        """Print the verdict on a video."""
        if not self._has_header:
            show(f"{'video':<28}{'rows':>8}{'theirs':>8}{'distance':>10}{'largest':>9}  verdict")
            self._has_header = True
        result = verdict.comparison
        if result is None:
            show(f"{verdict.video_id:<28}  {verdict.failure}")
            return
        show(
            f"{verdict.video_id:<28}{result.num_rows:>8,}{result.num_their_rows:>8,}{result.distance:>10.4f}"
            f"{result.largest:>9.4f}  {result.verdict}{': ' if result.notes else ''}{'; '.join(result.notes)}"
        )


def extract_parser(prog: str, description: str, example: str) -> Parser:
    """Return the parser of ``vlalign-extract`` and of the cluster job that does the same."""
    parser = command_parser(prog, description, example)
    group_of: dict[str, argparse._ActionsContainer] = {}
    for title, names in GROUPS.items():
        group_of |= dict.fromkeys(names, parser.add_argument_group(title))
    for name in names_of_options(ExtractionSettings):
        add_setting(group_of.get(name, parser), ExtractionSettings, name)
    parser.add_argument(
        "--plan",
        action="store_true",
        help="dry run: estimate time and size, and report unreadable videos; write nothing",
    )
    parser.add_argument(
        "--status",
        action="store_true",
        help="show progress, machines and failures of the last extraction on a cluster, from the data set's folder",
    )
    return parser


def make_parser() -> Parser:
    """Return the parser of ``vlalign-extract``."""
    return extract_parser(
        "vlalign-extract",
        "Run feature extractors over the videos of a data set, decoding each video once for all of them.",
        "vlalign-extract --dataset demo --features resnet152,s3d\n"
        "  vlalign-extract --dataset mine --videos FOLDER --features s3d",
    )


def extract(args: argparse.Namespace) -> int:
    """Run the command on this machine and print the next command; return the exit code."""
    code = run(args)
    if code == EXIT_DONE and not args.plan and not args.status and args.verify_against is None:
        can_train = _has_fitting_captions(DatasetFolder(args.root, args.dataset))
        command, stores = ("vlalign-train", args.stores) if can_train else ("vlalign-preprocess", None)
        say(next_call(command, args.root, args.dataset, stores))
    return code


def _has_fitting_captions(dataset: DatasetFolder) -> bool:
    """Return whether there are captions, and not hardly any of listed videos."""
    try:
        return dataset.captions.is_dir() and not unlisted_problem(dataset)
    except UserError:  # damaged captions, which the next command reports
        return False


def main(argv: list[str] | None = None) -> int:
    """Run ``vlalign-extract``; return its exit code."""
    return run_command(extract, make_parser(), argv)
