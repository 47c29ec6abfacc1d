"""vlalign-extract: videos -> feature stores."""

import argparse
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, command_parser, next_call
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, SettingError, UserError
from ...storage.common.terminal import say, show
from ...storage.dataset.folder import DatasetFolder
from ...storage.hub.names import is_hub_name
from ...storage.profiles import ALIASES, LOGMEL, PROFILES
from ...storage.records import EXACT, NVDEC
from ..encoders.custom import is_custom_encoder
from ..pipeline.dataset import extract_dataset
from ..pipeline.runner import Runner
from ..settings import PRETRAINED, ExtractionSettings, known_encoders

if TYPE_CHECKING:
    from ..pipeline.plan import ExtractionPlan
    from ..verification.verify import VideoVerdict


def parse_weights(values: Sequence[str], features: Sequence[str]) -> dict[str, str]:
    """Return {features: weights} from ``--weights`` values: VALUE for all features with weights, NAME=VALUE for one.

    Raises:
        UserError: A value is ambiguous, or names other features.
    """
    chosen = dict.fromkeys(features, PRETRAINED)
    with_weights = [name for name in features if name != LOGMEL] or list(features)
    if values and not features:
        raise UserError(f"--weights {values[0]}: encoders of a library bring their own; leave it out")
    for value in values:
        name, weights = match.groups() if (match := re.fullmatch(r"(\w+)=(.*)", value)) else ("", value)
        if not name and len(with_weights) > 1 and weights not in ("random", PRETRAINED):
            raise UserError(
                f"--weights {value}: which features are they for? Pass --weights NAME={value}, NAME being "
                f"{' or '.join(with_weights)}"
            )
        name = ALIASES.get(name, name)
        if name and name not in with_weights:
            raise UserError(f"--weights {value}: {name!r} is not among --features {','.join(with_weights)}")
        chosen |= dict.fromkeys([name] if name else with_weights, weights)
    return chosen


def settings_of(args: argparse.Namespace) -> ExtractionSettings:
    """Return the settings that the command line asks for.

    Raises:
        UserError: The data set is missing, or an option has a value that cannot be used.
    """
    if args.dataset is None:
        raise UserError(
            f"--dataset is missing: the name of a data set under {args.root}, or a new one with --videos FOLDER"
        )
    encoders = known_encoders(args.features, args.fps, trusted=args.trust)
    if args.trust and not any(map(is_custom_encoder, encoders.values())):
        problem = f"changes nothing: no profile of your own is among --features {args.features}; leave it out"
        raise SettingError("trust", args.trust[0], problem)
    names = [name for name, encoder in encoders.items() if not is_hub_name(encoder)]
    return ExtractionSettings(
        dataset=DatasetFolder(args.root, args.dataset),
        features=args.features,
        fps=args.fps,
        trusted_modules=args.trust,
        videos=args.videos,
        weights=parse_weights(args.weights or [], names),
        device=args.device,
        precision=args.precision,
        decoding=args.decoding,
        tf32=args.tf32,
        stores=args.stores,
        allowed_hosts=args.allow_host,
        retry_failed=args.retry_failed,
        verify_against=args.verify_against,
    )


def run(args: argparse.Namespace, runner: Runner | None = None) -> int:
    """Extract, plan or verify, as the options say; return the exit code."""
    settings = settings_of(args)
    if args.plan:
        from ..pipeline.plan import plan_extraction

        plan = plan_extraction(settings, runner=runner)
        show_plan(settings, plan)
        return EXIT_INCOMPLETE if plan.num_problems else EXIT_DONE
    if settings.verify_against is not None:
        from ..verification.verify import verify_dataset

        verification = verify_dataset(settings, runner=runner, on_verdict=VerdictTable().show)
        show("distance: between rows that belong together; 1 is that of rows of different videos")
        show(f"{verification.num_same:,} of {len(verification.verdicts):,} videos have the same rows")
        return EXIT_DONE if verification.same else EXIT_INCOMPLETE
    return EXIT_DONE if extract_dataset(settings, runner=runner).complete else EXIT_INCOMPLETE


def show_plan(settings: ExtractionSettings, plan: "ExtractionPlan") -> None:
    """Print what an extraction would do."""
    if not plan.num_probed:
        show(f"{settings.dataset.path}: nothing is left to extract of {','.join(settings.names)}")
        return
    width = max([16, *(len(row.name) for row in plan.features)])
    show(f"{'features':<{width}}{'videos':>10}{'hours':>10}{'rows':>14}{'MB':>12}")
    for row in plan.features:
        show(f"{row.name:<{width}}{row.num_videos:>10,}{row.hours:>10,.2f}{row.num_rows:>14,}{row.megabytes:>12,.1f}")
    show(f"{plan.num_unreadable:,} of {plan.num_probed:,} videos cannot be read")
    if plan.speed is not None:
        rate = plan.speed.video_seconds_per_second
        duration = timedelta(seconds=round(3600 * plan.hours / rate))
        show(
            f"{plan.hours:,.2f} hours of video, {rate:.2f} times as fast as they play on {plan.speed.where}: "
            f"{duration} (h:mm:ss)"
        )


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
            f"{result.largest:>9.4f}  {result.verdict}{': ' if result.remarks else ''}{'; '.join(result.remarks)}"
        )


def extract_parser(prog: str, description: str, example: str) -> Parser:
    """Return the parser of ``vlalign-extract`` and of the cluster job that does the same."""
    parser = command_parser(prog, description, example)
    _add_features(parser)
    _add_videos(parser)
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda, cuda:N, mps, or several, separated by commas; auto: all GPUs, or the CPU (default: auto)",
    )
    parser.add_argument(
        "--precision", default="fp32", choices=("fp32", "bf16", "fp16"), help="what networks compute in (default: fp32)"
    )
    parser.add_argument(
        "--decoding",
        default=EXACT,
        choices=(EXACT, NVDEC),
        help="what decodes videos: exact, or NVIDIA's video engine, whose pictures are only nearly the same, without a "
        "sandbox; makes another profile (default: exact)",
    )
    parser.add_argument(
        "--tf32",
        default="convolutions",
        choices=("none", "convolutions", "all"),
        help="where NVIDIA GPUs round fp32 to TF32, which is faster (default: convolutions)",
    )
    parser.add_argument("--retry-failed", action="store_true", help="extract only the videos that failed before")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="say what would be done, how long it takes and what cannot be read; change nothing",
    )
    parser.add_argument(
        "--verify-against",
        type=Path,
        metavar="FOLDER",
        help="compare with features made by others (.npy, .npz or .h5 files, named by video id), row by row",
    )
    parser.add_argument(
        "--stores",
        metavar="ADDRESS",
        help="where the feature stores lie, each in a folder of its own, if not under --root: s3://bucket/folder, "
        "gs://...; needed only once",
    )
    return parser


def _add_features(parser: Parser) -> None:
    group = parser.add_argument_group("features")
    known = ", ".join([*PROFILES, *(f"{alias} (= {name})" for alias, name in ALIASES.items())])
    known += "; or a model of transformers or timm: hf:ORG/MODEL[@REVISION], timm:NAME or hf:/path/to/folder; "
    known += "or the file of a profile of your own, with --trust"
    group.add_argument(
        "--features", default="s3d", help=f"features to extract, separated by commas or +: {known} (default: s3d)"
    )
    group.add_argument(
        "--weights",
        action="append",
        metavar="[NAME=]WEIGHTS",
        help="a checkpoint file, 'pretrained' (default: from the cache or the authors) or 'random'; with NAME=, for "
        "one of several features",
    )
    group.add_argument(
        "--fps",
        type=float,
        help="frames a second for hf: encoders (default: 1 for those of images; those of videos need it, or :whole at "
        "the end of their names)",
    )
    group.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="Python module that a profile of your own may run",
    )


def _add_videos(parser: Parser) -> None:
    group = parser.add_argument_group("videos")
    group.add_argument(
        "--videos",
        type=Path,
        metavar="FOLDER",
        help="folder with your own video files, or images; their names become the video ids",
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="HOST",
        help="host on this machine or in a private network that addresses of videos may name; others there are refused",
    )


def make_parser() -> Parser:
    """Return the parser of ``vlalign-extract``."""
    return extract_parser(
        "vlalign-extract",
        "Run feature extractors over the videos of a data set, decoding each video once for all of them.",
        "vlalign-extract --dataset demo --features resnet152,s3d\n"
        "  vlalign-extract --dataset mine --videos FOLDER --features s3d",
    )


def extract(args: argparse.Namespace) -> int:
    """Run the command on this machine, and say what to call next; return the exit code."""
    code = run(args)
    if code == EXIT_DONE and not args.plan and args.verify_against is None:
        has_captions = DatasetFolder(args.root, args.dataset).captions.is_dir()
        say(next_call("vlalign-train" if has_captions else "vlalign-preprocess", args.root, args.dataset))
    return code


def main(argv: list[str] | None = None) -> int:
    """Run ``vlalign-extract``; return its exit code."""
    return run_command(extract, make_parser(), argv)
