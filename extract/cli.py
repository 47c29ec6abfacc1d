"""vlalign-extract: videos -> feature stores."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..storage.console import EXIT_INCOMPLETE, Problems, UserError, command_parser, run_command, say
from ..storage.layout import DatasetFolder
from ..storage.records import VideoRecord
from .profiles import PROFILES
from .work import WorkList, list_folder, render_missing

if TYPE_CHECKING:
    from .extractor import Extractor

PRETRAINED = "pretrained"
DEMO = "demo"
"""The one data set that falls back to random weights where the published ones cannot be had."""


def parse_weights(values: list[str], features: list[str]) -> dict[str, str]:
    """{features: weights} from ``--weights`` values: one for all, or NAME=VALUE for each."""
    chosen = dict.fromkeys(features, PRETRAINED)
    for value in values:
        name, weights = match.groups() if (match := re.fullmatch(r"(\w+)=(.*)", value)) else ("", value)
        if not name and len(features) > 1 and weights not in ("random", PRETRAINED):
            raise UserError(
                f"--weights {value}: which features are they for? Pass --weights NAME={value}, NAME being {' or '.join(features)}"
            )
        if name and name not in features:
            raise UserError(f"--weights {value}: {name!r} is not among --features {','.join(features)}")
        chosen |= dict.fromkeys([name] if name else features, weights)
    return chosen


def choose_videos(args: argparse.Namespace, dataset: DatasetFolder, problems: Problems) -> list[VideoRecord]:
    """Those of ``--videos``, which are added to the data set's list, or else the whole list."""
    listed = dataset.read_videos()
    if args.videos is not None:
        found = list_folder(args.videos, problems)
        merged = {v.video_id: v for v in listed} | {v.video_id: v for v in found}
        if list(merged.values()) != listed:
            dataset.write_videos(list(merged.values()))
        return found
    if not listed:
        raise UserError(
            f"{dataset.videos_file}: not found; run vlalign-preprocess --dataset {dataset.name} first, or pass your own: --videos FOLDER"
        )
    return listed


def extract(args: argparse.Namespace) -> int:
    if args.dataset is None:
        raise UserError(f"--dataset is missing: the name of a data set under {args.root}, or a new one with --videos FOLDER")
    features = list(dict.fromkeys(args.features.split(",")))
    if unknown := [name for name in features if name not in PROFILES]:
        raise UserError(
            f"--features {args.features}: {', '.join(map(repr, unknown))} not known; expected {','.join(PROFILES)} or some of them"
        )
    weights = parse_weights(args.weights or [], features)
    dataset, problems = DatasetFolder(args.root, args.dataset), Problems()
    videos = choose_videos(args, dataset, problems)
    render_missing(dataset, videos)
    work = WorkList(dataset, features)
    todo = [(video, left) for video in videos if (left := work.left(video, retry_failed=args.retry_failed))]
    needed = [name for name in features if any(name in left for _, left in todo)]
    if needed:
        from .run import extract_dataset  # torch, which neither a mistake in the call nor a finished data set need wait for

        extractors = {name: make_extractor(name, weights[name], args, work) for name in needed}
        extract_dataset(dataset, work, todo, extractors, problems)
    failed = {video.video_id for video in videos if any(video.video_id in work.failures[name] for name in features)}
    say(f"{dataset.path}: features {args.features} of {len(videos) - len(failed):,} of {len(videos):,} videos are there")
    if failed:
        say(f"{len(failed):,} videos failed; why stands in {work.failures_file(features[0])}; --retry-failed tries them again")
    return EXIT_INCOMPLETE if failed else problems.exit_code()


def make_extractor(name: str, weights: str, args: argparse.Namespace, work: WorkList) -> "Extractor":
    """The extractor that was asked for; for the demo, with random weights where the published ones are out of reach.

    Raises ``UserError`` where the store so far was made with other weights.
    """
    from .extractor import load_extractor
    from .weights import published_weights

    store = work.stores.get(name)
    if weights == PRETRAINED and args.dataset == DEMO:
        if store and store.weights.is_random:
            weights = "random"
        else:
            try:
                published_weights(PROFILES[name].weights)
            except UserError as error:
                say(f"note: {error}")
                say(f"note: the demo goes on with seeded random weights for {name}; its numbers show that all parts work, no more")
                weights = "random"
    extractor = load_extractor(name, weights=weights, device=args.device)
    if store and (store.profile, store.weights) != (extractor.profile, extractor.weights):
        raise UserError(
            f"{store.folder}: was made with profile {store.profile.hash} and weights {store.weights.name}, now asked for: profile "
            f"{extractor.profile.hash} and {extractor.weights.name}; pass the same --weights, another --root, or remove that folder"
        )
    return extractor


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(
        "vlalign-extract",
        "Runs feature extractors over the videos of a data set, decoding each video once for all of them.",
        "vlalign-extract --dataset demo --features resnet152,s3d\n  vlalign-extract --dataset mine --videos FOLDER --features s3d",
    )
    parser.add_argument("--features", default="s3d", help=f"which, separated by commas: {', '.join(PROFILES)} (default: s3d)")
    parser.add_argument("--videos", type=Path, metavar="FOLDER", help="your own video files; their names become the video ids")
    parser.add_argument(
        "--weights",
        action="append",
        metavar="[NAME=]WEIGHTS",
        help="a checkpoint file, 'pretrained' (default: from the cache or the authors), or 'random'; NAME= for one of several features",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--retry-failed", action="store_true", help="try videos again that failed before")
    return run_command(extract, parser, argv)
