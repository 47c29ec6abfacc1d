"""vlalign-extract: videos -> feature stores."""

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ..storage.allowed import allow_folder, refuse_other_folders
from ..storage.common.command import command_parser, run_command
from ..storage.common.errors import UserError
from ..storage.common.exits import EXIT_INCOMPLETE
from ..storage.common.problems import Problems
from ..storage.common.processes import available_cores
from ..storage.common.progress import progress
from ..storage.common.terminal import say, show
from ..storage.exchange.foreign import feature_files
from ..storage.feature_store import shard_files
from ..storage.files import IMAGE_SUFFIXES, SOUND_SUFFIXES, VIDEO_SUFFIXES
from ..storage.layout import DatasetFolder
from ..storage.profiles import ALIASES, LOGMEL, PROFILES, split_features
from ..storage.records import VideoRecord
from ..storage.remote.addresses import host_named
from ..storage.remote.store import link_store, remote_store
from ..storage.shards import Shard, read_shard
from .decoding import sandbox
from .work import WorkList, list_folder, render_missing

if TYPE_CHECKING:
    from .decoding.probe import VideoError
    from .extractor import Extractor
    from .plan import Probed

PRETRAINED = "pretrained"
DEMO = "demo"
"""The one data set that falls back to random weights where the published ones cannot be had."""


def parse_weights(values: list[str], features: list[str]) -> dict[str, str]:
    """{features: weights} from ``--weights`` values: one for all that have some, or NAME=VALUE for each."""
    chosen = dict.fromkeys(features, PRETRAINED)
    features = [name for name in features if name != LOGMEL] or features
    for value in values:
        name, weights = match.groups() if (match := re.fullmatch(r"(\w+)=(.*)", value)) else ("", value)
        if not name and len(features) > 1 and weights not in ("random", PRETRAINED):
            raise UserError(
                f"--weights {value}: which features are they for? Pass --weights NAME={value}, NAME being {' or '.join(features)}"
            )
        name = ALIASES.get(name, name)
        if name and name not in features:
            raise UserError(f"--weights {value}: {name!r} is not among --features {','.join(features)}")
        chosen |= dict.fromkeys([name] if name else features, weights)
    return chosen


def choose_videos(
    args: argparse.Namespace, dataset: DatasetFolder, features: list[str], problems: Problems
) -> list[VideoRecord]:
    """Those of ``--videos``, which are added to the data set's list, or else the whole list. Recordings without pictures are among
    them where nothing but sound is asked for; images are, where a folder has no videos: beside videos they are posters and the like."""
    listed = dataset.read_videos()
    for folder in (*args.allow_folder, *([args.videos] if args.videos is not None else [])):
        allow_folder(dataset, folder)
    if args.videos is not None:
        if features == [LOGMEL]:
            found = list_folder(args.videos, problems, suffixes=VIDEO_SUFFIXES + SOUND_SUFFIXES)
        else:
            found = list_folder(args.videos, problems, instead=IMAGE_SUFFIXES)
        merged = {v.video_id: v for v in listed} | {v.video_id: v for v in found}
        if list(merged.values()) != listed and not args.plan:
            dataset.write_videos(list(merged.values()))
        return found
    if not listed:
        raise UserError(
            f"{dataset.videos_file}: not found; run vlalign-preprocess --dataset {dataset.name} first, or pass your own: --videos FOLDER"
        )
    refuse_other_folders(dataset, listed)
    return listed


class Here:
    """Where an extraction is carried out, and its plan is made: in this process and on this machine."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    def run(
        self, work: WorkList, todo: Sequence[tuple[VideoRecord, list[str]]], weights: dict[str, str], problems: Problems
    ) -> None:
        """Extracts ``todo``, each video with the features that it needs. ``weights``: of all that are needed."""
        from .run import extract_dataset

        extractors = {
            name: make_extractor(name, wanted, self.args, first_shard(work.dataset, name))
            for name, wanted in weights.items()
        }
        extract_dataset(work, todo, extractors, problems, allowed_hosts=self.args.allow_host)

    def probe(
        self, videos: Sequence[tuple[str, Path]], features: Sequence[str]
    ) -> "Iterator[tuple[str, Probed | VideoError]]":
        from .plan import probe_videos

        return probe_videos(videos, [PROFILES[name] for name in features], available_cores())

    def measure(self, work: WorkList, probed: "Sequence[Probed]", weights: dict[str, str]) -> tuple[float, str]:
        """Seconds of video that are done in a second, and where."""
        return measure_speed_of(self.args, work.dataset, probed, weights), f"this machine's {self.args.device}"


def extract(args: argparse.Namespace, make_place: Callable[[argparse.Namespace], Here] = Here) -> int:
    if args.dataset is None:
        raise UserError(
            f"--dataset is missing: the name of a data set under {args.root}, or a new one with --videos FOLDER"
        )
    args.allow_host = [host_named(text) for text in args.allow_host]
    features = split_features(args.features)
    if unknown := [name for name in features if name not in PROFILES]:
        names = " and ".join(map(repr, unknown))
        raise UserError(
            f"--features {args.features}: features {names}: not known; expected {', '.join(PROFILES)} or {', '.join(ALIASES)}"
        )
    weights = parse_weights(args.weights or [], features)
    dataset = DatasetFolder(args.root, args.dataset)
    with Problems(file=dataset.problems("extract")) as problems:
        return extract_features(args, dataset, features, weights, problems, make_place)


def extract_features(
    args: argparse.Namespace,
    dataset: DatasetFolder,
    features: list[str],
    weights: dict[str, str],
    problems: Problems,
    make_place: Callable[[argparse.Namespace], Here],
) -> int:
    for name in features if args.stores else []:
        folder, url = dataset.features(name), f"{args.stores}/{name}"
        if not args.plan:
            link_store(folder, url)
        elif remote_store(folder) is None:  # a plan changes nothing
            say(
                f"note: {folder} does not stand for {url} yet; what may lie there already is planned again (vlalign-store link)"
            )
    for name in features if not args.plan else []:
        if there := remote_store(dataset.features(name)):
            there.send()
    videos = choose_videos(args, dataset, features, problems)
    if args.verify_against is not None:
        their_files = feature_files(args.verify_against)
        videos = videos_to_verify(args, videos, their_files, features)
    if not args.plan:
        render_missing(dataset, videos)
    work = WorkList(dataset, features)
    todo = [(video, left) for video in videos if (left := work.left(video, only_failed=args.retry_failed))]
    needed = [name for name in features if any(name in left for _, left in todo)]
    if args.plan:
        return plan(make_place(args), work, todo, {name: weights[name] for name in needed}, problems)
    if todo:
        for lacking in sandbox.lacks():
            say(f"note: decoders are held less than they could be: this system has {lacking}")
        make_place(args).run(work, todo, {name: weights[name] for name in needed}, problems)
        say(f"{dataset.path}: {len(todo):,} videos tried, {problems.count:,} problems")
    failed = {video.video_id for video in videos if any(video.video_id in work.failures[name] for name in features)}
    say(
        f"{dataset.path}: features {','.join(features)} of {len(videos) - len(failed):,} of {len(videos):,} videos are there"
    )
    stores = WorkList(dataset, features).stores.values() if todo else work.stores.values()
    partial = {
        video.video_id
        for video in videos
        for store in stores
        if video.video_id in store and store.partial(video.video_id)
    }
    if partial:
        say(f"{len(partial):,} videos are partial or damaged; the stores say what is missing of them")
    if failed:
        where = next(work.failures_file(name) for name in features if failed & work.failures[name].keys())
        say(f"{len(failed):,} videos failed; why stands in {where}; --retry-failed tries them again")
    if args.verify_against is not None:
        from .verification.verify import verify

        extractor = make_extractor(features[0], weights[features[0]], args, first_shard(dataset, features[0]))
        return verify(dataset, videos, extractor, their_files)
    return EXIT_INCOMPLETE if failed or partial else problems.exit_code()


def first_shard(dataset: DatasetFolder, features: str) -> Shard | None:
    """One of a store, which says how all of it was made."""
    return next(map(read_shard, shard_files(dataset.features(features))), None)


def videos_to_verify(
    args: argparse.Namespace, videos: list[VideoRecord], their_files: dict[str, Path], features: list[str]
) -> list[VideoRecord]:
    """The videos that somebody else's folder has features of."""
    if len(features) > 1:
        raise UserError(
            f"--verify-against {args.verify_against}: which features are these? Pass one of --features {' or '.join(features)}"
        )
    found = [video for video in videos if video.video_id in their_files]
    if not found:
        some = ", ".join(list(their_files)[:3])
        raise UserError(
            f"--verify-against {args.verify_against}: none of its files ({some}, ...) is named like a video of {args.dataset}"
        )
    if missing := len(their_files) - len(found):
        say(f"note: {missing:,} of its {len(their_files):,} files are named like no video of {args.dataset}")
    return found


def plan(
    place: Here,
    work: WorkList,
    todo: Sequence[tuple[VideoRecord, list[str]]],
    weights: dict[str, str],
    problems: Problems,
) -> int:
    """``--plan``: prints what the call would do."""
    to_render = [video for video, _ in todo if video.scene and not work.dataset.video_path(video).exists()]
    if to_render:
        say(f"note: {len(to_render):,} videos are drawn only when they are extracted, and not counted here")
    if num_elsewhere := sum(bool(video.url) for video, _ in todo):
        say(
            f"note: {num_elsewhere:,} videos lie elsewhere; they are fetched only when they are extracted, and not counted here"
        )
    paths = [
        (video.video_id, work.dataset.video_path(video))
        for video, _ in todo
        if video not in to_render and not video.url
    ]
    if not paths:
        show(f"{work.dataset.path}: nothing is left to extract of {','.join(work.features)}")
        return problems.exit_code()
    from .decoding.probe import VideoError
    from .plan import planned_table

    answers = list(progress(place.probe(paths, list(weights)), total=len(paths), what="probing", unit="videos"))
    path_of = dict(paths)
    for video_id, error in answers:
        if isinstance(error, VideoError):
            problems.add(f"video {video_id!r}, {path_of[video_id]}: {error.kind}: {error}")
            continue
        for name, missing in error.failures.items():
            problems.add(f"video {video_id!r}, {path_of[video_id]}: {name}: {missing.kind}: {missing}")
        if error.missing:
            problems.add(f"video {video_id!r}, {error.path}: partial: {error.missing}")
    probed = [video for _, video in answers if not isinstance(video, VideoError)]
    left_of = {name: {video.video_id for video, left in todo if name in left} for name in weights}
    for line in planned_table(probed, [PROFILES[name] for name in weights], left_of):
        show(line)
    show(f"{len(paths) - len(probed):,} of {len(paths):,} videos cannot be read")
    if probed:
        speed, where = place.measure(work, probed, weights)
        hours = sum(video.duration_seconds for video in probed) / 3600
        takes = timedelta(seconds=round(3600 * hours / speed))
        show(f"{hours:,.2f} hours of video, {speed:.2f} times as fast as they play on {where}: {takes} (h:mm:ss)")
    return problems.exit_code()


def measure_speed_of(
    args: argparse.Namespace, dataset: DatasetFolder, probed: "Sequence[Probed]", weights: dict[str, str]
) -> float:
    """As ``measure_speed``, with random weights where the wanted ones are not to be had."""
    from .extractor import load_extractor
    from .plan import measure_speed

    extractors = []
    for name, wanted in weights.items():
        try:
            extractors.append(make_extractor(name, wanted, args, first_shard(dataset, name)))
        except UserError as error:
            say(f"note: {error}")
            say(f"note: the speed of {name} is measured with random weights")
            extractors.append(load_extractor(name, weights="random", device=args.device, precision=args.precision))
    return measure_speed(probed, extractors)


def make_extractor(name: str, weights: str, args: argparse.Namespace, made: Shard | None) -> "Extractor":
    """The extractor that was asked for; for the demo, with random weights where the published ones are out of reach. ``made``: a
    shard of the store so far. Raises ``UserError`` where that was made with other weights.
    """
    from .extractor import load_extractor
    from .weights import published_weights

    if weights == PRETRAINED and args.dataset == DEMO and name != LOGMEL:
        if made and made.weights.is_random:
            weights = "random"
        else:
            try:
                published_weights(PROFILES[name].weights)
            except UserError as error:
                say(f"note: {error}")
                say(
                    f"note: the demo goes on with seeded random weights for {name}; its numbers show that all parts work, no more"
                )
                weights = "random"
    extractor = load_extractor(name, weights=weights, device=args.device, precision=args.precision)
    if made and (made.profile, made.weights) != (extractor.profile, extractor.weights):
        raise UserError(
            f"{made.path.parent}: was made with profile {made.profile.hash} and weights {made.weights.name}, now asked for: profile "
            f"{extractor.profile.hash} and {extractor.weights.name}; pass the same --weights, another --root, or remove that folder"
        )
    return extractor


def extract_parser(prog: str, description: str, example: str) -> argparse.ArgumentParser:
    parser = command_parser(prog, description, example)
    known = ", ".join([*PROFILES, *(f"{alias} (= {name})" for alias, name in ALIASES.items())])
    parser.add_argument("--features", default="s3d", help=f"which, separated by commas or +: {known} (default: s3d)")
    parser.add_argument(
        "--videos",
        type=Path,
        metavar="FOLDER",
        help="your own video files, or images; their names become the video ids",
    )
    parser.add_argument(
        "--weights",
        action="append",
        metavar="[NAME=]WEIGHTS",
        help="a checkpoint file, 'pretrained' (default: from the cache or the authors), or 'random'; NAME= for one of several features",
    )
    parser.add_argument(
        "--stores",
        metavar="ADDRESS",
        help="where features are to lie, each in a folder of its own, if not under --root: s3://bucket/folder, gs://...; once is enough",
    )
    parser.add_argument(
        "--allow-folder",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="outside of --root, where videos that videos.jsonl lists may lie; once is enough, and --videos says it, too",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="HOST",
        help="on this machine or in a private network, which addresses of videos may name; others there are refused",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--precision", default="fp32", choices=("fp32", "bf16", "fp16"), help="what networks compute in (default: fp32)"
    )
    parser.add_argument("--retry-failed", action="store_true", help="try just those videos that failed before")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="say what would be done, how long it takes and what cannot be read; do nothing",
    )
    parser.add_argument(
        "--verify-against",
        type=Path,
        metavar="FOLDER",
        help="compare with somebody else's features there (.npy, .npz or .h5 files, named by video id), row by row",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = extract_parser(
        "vlalign-extract",
        "Runs feature extractors over the videos of a data set, decoding each video once for all of them.",
        "vlalign-extract --dataset demo --features resnet152,s3d\n  vlalign-extract --dataset mine --videos FOLDER --features s3d",
    )
    return run_command(extract, parser, argv)
