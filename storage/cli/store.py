"""vlalign-store: show, verify, repair, import and export feature stores."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..common.errors import EXIT_DONE, EXIT_INCOMPLETE, UserError
from ..common.problems import Problems
from ..common.terminal import escape_controls, number_of, say, show
from ..common.writing import check_folders
from ..dataset.folder import DatasetFolder, guard_around
from ..exchange.declared_profile import (
    DeclaredFeatures,
    declare,
    declared_in,
    read_declared,
    read_durations,
    read_times,
)
from ..exchange.exports import FORMS, export_store
from ..exchange.imports import import_features
from ..exchange.published_features import PUBLISHED
from ..profiles import split_features
from ..remote.store import link_store
from ..stores import maintenance
from ..stores.failure_log import FAILURES_NAME, FailureLog
from ..stores.feature_store import current_shards, shard_files, stores_in
from ..stores.opening import open_store
from ..stores.store_info import describe
from .command import run_command
from .parser import Parser, add_dataset, add_messages, formatted, new_parser


def _dataset(args: argparse.Namespace) -> DatasetFolder | None:
    return DatasetFolder(args.root, args.dataset) if args.dataset else None


def _folder(args: argparse.Namespace, name: str) -> Path:
    """Return the folder of one store: ``name`` is the name of its features with --dataset, otherwise its folder."""
    dataset = _dataset(args)
    if dataset is None:
        guard_around(Path(name))
        return Path(name)
    names = split_features(name, stores_in(dataset.path / "features"))
    if len(names) > 1:
        raise UserError(f"{name}: names {len(names)} stores; expected one")
    return dataset.features(names[0])


def _existing(args: argparse.Namespace, name: str) -> Path:
    """Return the folder of a store that has shards."""
    folder, dataset = _folder(args, name), _dataset(args)
    if not current_shards(folder):
        known = stores_in(dataset.path / "features") if dataset else []
        expected = f"one of {', '.join(known)}" if known else "its folder, or --dataset and the name of its features"
        raise UserError(f"{folder}: no feature store (no *.h5); expected {expected}")
    return folder


def _stores(args: argparse.Namespace) -> list[Path]:
    """Return the folders of the stores that were named, or of all stores of the data set."""
    dataset, names = _dataset(args), args.stores
    if dataset is not None:
        known = stores_in(dataset.path / "features")
        names = list(dict.fromkeys(name for text in names or known for name in split_features(text, known)))
        if not names:
            raise UserError(f"{dataset.path / 'features'}: no feature stores; run vlalign-extract first")
    if not names:
        raise UserError(
            "no store given; pass its folder, or --dataset and the name of its features (none: all of the data set)"
        )
    return [_existing(args, name) for name in names]


def _problems(args: argparse.Namespace) -> Problems:
    dataset = _dataset(args)
    return Problems(file=dataset.problems("store") if dataset else None)


def _info(args: argparse.Namespace) -> int:
    infos = [describe(open_store(folder)) for folder in _stores(args)]
    if args.json:
        show(json.dumps([asdict(info) for info in infos], indent=2))
    else:
        show("\n\n".join("\n".join(info.lines()) for info in infos))
    return EXIT_DONE


def _ls(args: argparse.Namespace) -> int:
    show("video_id\trows\tseconds\tdecoder\tpartial")
    for folder in _stores(args):
        store = open_store(folder)
        for video in map(store.about, store.video_ids()):
            values = (video.video_id, video.num_rows, f"{video.duration_seconds:.2f}", video.decoder, video.partial)
            show("\t".join(escape_controls(str(value)) for value in values))
    return EXIT_DONE


def _verify(args: argparse.Namespace) -> int:
    with Problems() as problems:  # without a file: a command that only reads writes nothing
        for folder in _stores(args):
            num_shards = len(current_shards(folder))
            damaged = maintenance.verify(folder, problems=problems)
            if partials := maintenance.unfinished(folder):
                say(
                    f"note: {folder}: {number_of(len(partials), 'unfinished files')} of stopped commands; "
                    "vlalign-store repair removes them"
                )
            found = f"{number_of(num_shards, 'shards')}, all checksums match"
            if damaged:
                found = f"{len(damaged):,} of {num_shards:,} shards are damaged; vlalign-store repair {folder} "
                found += "drops the damage, then run vlalign-extract again"
            show(f"{folder}: {found}")
    return problems.exit_code()


def _repair(args: argparse.Namespace) -> int:
    check_folders(*_stores(args))
    for folder in _stores(args):
        num_shards = len(shard_files(folder))
        repaired = maintenance.repair(folder)
        again = "; now run vlalign-extract again" if repaired else ""
        show(f"{folder}: {len(repaired):,} of {num_shards:,} shards had problems{again}")
    return EXIT_DONE


def _compact(args: argparse.Namespace) -> int:
    check_folders(*_stores(args))
    for folder in _stores(args):
        num_before = len(shard_files(folder))
        maintenance.compact(folder)
        show(f"{folder}: {number_of(num_before, 'shards')} before, {len(shard_files(folder)):,} now")
    return EXIT_DONE


def _link(args: argparse.Namespace) -> int:
    folder = _folder(args, args.store)
    check_folders(folder)
    remote = link_store(folder, args.url)
    uploaded = f"{number_of(len(sent), 'shards')} uploaded; " if (sent := remote.send()) else ""
    show(f"{folder}: linked to {args.url}; {uploaded}{number_of(len(open_store(folder)), 'videos')} there")
    show(f"read back from the remote store: {remote.read_back(sent)}")
    return EXIT_DONE


def _merge(args: argparse.Namespace) -> int:
    into = _folder(args, args.into)
    check_folders(into)
    copied = maintenance.merge(_stores(args), into)
    show(f"{into}: {number_of(len(copied), 'shards')} copied; {number_of(len(open_store(into)), 'videos')} now")
    return EXIT_DONE


def _rm(args: argparse.Namespace) -> int:
    folder, video_ids = _folder(args, args.store), list(dict.fromkeys(args.videos))
    log = FailureLog(folder / FAILURES_NAME)
    if not log.failures:  # a store whose videos all failed has no shards
        _existing(args, args.store)
    check_folders(folder)
    missing = maintenance.remove(folder, video_ids) if current_shards(folder) else video_ids
    failed = log.remove(video_ids)
    with _problems(args) as problems:
        for video_id in (each for each in missing if each not in failed):
            problems.add(f"{folder}: no video {video_id!r} in it")
    show(f"{folder}: {number_of(len(video_ids) - problems.count, 'videos')} removed")
    return problems.exit_code()


def _import(args: argparse.Namespace) -> int:
    dataset = _dataset(args)
    if dataset is None:
        raise UserError(f"--dataset is missing: pass the name of a data set under {args.root}, or of a new one")
    features = _declared(args)
    folder = dataset.features(features.name)
    check_folders(folder)
    durations = read_durations(args.durations) if args.durations else None
    times = read_times(Path(args.times)) if _is_table(args.times) else None
    with _problems(args) as problems:
        count = import_features(
            args.source, folder, features, pattern=args.pattern, durations=durations, times=times, problems=problems
        )
    came = f"{number_of(count, 'videos')} imported, {number_of(problems.count, 'problems')}"
    unknown = open_store(folder).profile.unknown if count else ()
    rest = f"; recorded as unknown: {', '.join(unknown)}" if unknown else ""
    show(f"{folder}: {came}; profile as declared{rest}")
    _report_unlisted(dataset, folder)
    return problems.exit_code()


def _report_unlisted(dataset: DatasetFolder, folder: Path) -> None:
    """Print how many ids in a store are not in the data set's list of videos, if there is one."""
    listed = {video.video_id for video in dataset.read_videos()} if dataset.videos_file.exists() else set()
    stored = open_store(folder).video_ids() if listed and shard_files(folder) else []
    if unlisted := [video_id for video_id in stored if video_id not in listed]:
        say(
            f"note: {len(unlisted):,} of {number_of(len(stored), 'ids')} in {folder} not listed in "
            f"{dataset.videos_file}, such as {unlisted[0]!r}; it lists {number_of(len(listed), 'videos')}, such as "
            f"{min(listed)!r}; training skips ids that are not listed; expected the path under the folder of videos "
            "without suffix: 'sub/rgb' for sub/rgb.mp4, in a file of features sub/rgb.npy"
        )


def _declared(args: argparse.Namespace) -> DeclaredFeatures:
    """Return the features of an import, as the options declare them."""
    if (args.profile is None) == (args.name is None):
        raise UserError(
            "expected --profile if you know how the features were made, or else --name; pass one of the two"
        )
    if args.profile is not None:
        features = read_declared(args.profile, PUBLISHED)
    else:
        features = declared_in({"name": args.name}, "--name")
    features = declare(features, rate=args.rate, spread=args.spread, times=args.times)
    if args.times is not None and not _is_table(args.times):
        features = replace(features, times=args.times)
    return replace(features, key=args.key) if args.key else features


def _is_table(times: str | None) -> bool:
    return times is not None and times.lower().endswith(".csv")


def _export(args: argparse.Namespace) -> int:
    store = open_store(_existing(args, args.store))
    with _problems(args) as problems:
        count = export_store(store, args.folder, args.form, problems)
    show(f"{args.folder}: {count:,} of {len(store):,} videos of {store.folder}")
    return EXIT_INCOMPLETE if count < len(store) else problems.exit_code()


@dataclass(frozen=True)
class _Action:
    run: Callable[[argparse.Namespace], int]
    help: str
    example: str
    arguments: dict[str, dict[str, Any]]
    """{name or flag: keyword arguments of ``add_argument``}"""


_NAMED = "folder of a store; with --dataset the name of its features (none: all)"
_STORES = {"stores": {"nargs": "*", "metavar": "STORE", "help": _NAMED}}
_STORE = {"store": {"metavar": "STORE", "help": "folder of the store; with --dataset the name of its features"}}
_INTO = {"required": True, "metavar": "STORE", "help": "target store; created if missing"}
_URL = {
    "metavar": "ADDRESS",
    "help": "URL of the remote store: anything fsspec reads, such as s3://, gs:// or https://",
}
_VIDEOS = {"nargs": "+", "metavar": "VIDEO", "help": "ids of the videos"}
_IMPORT = {
    "source": {"type": Path, "metavar": "SOURCE", "help": "a folder with a file for each video, or one file with all"},
    "--profile": {
        "help": "declared profile of the features: a name as for vlalign-extract --features, a name of public features "
        f"({', '.join(PUBLISHED)}), or a JSON file with the known fields, named as in vlalign-store info --json",
    },
    "--name": {
        "help": "name for features without a known profile; facts that you do not state are recorded as unknown"
    },
    "--rate": {"type": float, "metavar": "R", "help": "rows (feature vectors) per second"},
    "--spread": {
        "action": "store_true",
        "help": "the rows of a video are spread evenly over it; needs --durations",
    },
    "--times": {
        "metavar": "TIMES",
        "help": "times of the rows: a .csv file of video_id,start_seconds,end_seconds, a line for each row; or the "
        "name of an array [rows, 2] of these seconds beside the features",
    },
    "--key": {
        "help": "name of the array to take, where a video's file, group or dictionary has several, such as features.s3d"
    },
    "--pattern": {
        "help": "pattern of the file names, with {id} for the video id, such as '{id}_rgb.npy' (default: all files)"
    },
    "--durations": {
        "type": Path,
        "metavar": "CSV",
        "help": "file of video_id,seconds: durations of the videos, if they do not follow from the features",
    },
}
_EXPORT = {
    "folder": {"type": Path, "metavar": "FOLDER", "help": "a new folder"},
    "--form": {
        "required": True,
        "choices": FORMS,
        "help": "npy: a file of feature vectors for each video; npz: with times and profile; webdataset: tar files of "
        "both; parquet: a row for each vector, for embedding tools; hub: the same with a dataset card, for hubs",
    },
}
ACTIONS = {
    "info": _Action(
        _info,
        "show the contents and the profile of a store",
        "vlalign-store info --dataset demo",
        _STORES | {"--json": {"action": "store_true", "help": "print JSON"}},
    ),
    "ls": _Action(
        _ls,
        "list the videos: id, rows (feature vectors), seconds, decoder, missing parts",
        "vlalign-store ls --dataset demo s3d",
        _STORES,
    ),
    "verify": _Action(_verify, "verify the checksums of all bytes", "vlalign-store verify --dataset demo", _STORES),
    "repair": _Action(
        _repair,
        "remove damaged videos, so that the next extraction makes them again",
        "vlalign-store repair --dataset demo s3d",
        _STORES,
    ),
    "compact": _Action(
        _compact,
        "merge small shards, and remove replaced videos",
        "vlalign-store compact --dataset demo s3d",
        _STORES,
    ),
    "link": _Action(
        _link,
        "link a folder to a remote store, whose shards are downloaded on demand",
        "vlalign-store link --dataset howto100m s3d s3://bucket/howto100m/s3d",
        _STORE | {"url": _URL},
    ),
    "merge": _Action(
        _merge,
        "copy the shards of several stores of one profile into one",
        "vlalign-store merge machine1/s3d machine2/s3d --into vlalign_data/demo/features/s3d",
        _STORES | {"--into": _INTO},
    ),
    "rm": _Action(
        _rm,
        "remove videos from a store",
        "vlalign-store rm --dataset demo s3d demo0007 demo0011",
        _STORE | {"videos": _VIDEOS},
    ),
    "import": _Action(
        _import,
        "import features of other programs: .npy, .npz, HDF5, pickles and .pth files of arrays, WebDataset tars",
        "vlalign-store import FOLDER --dataset msrvtt --name resnet --rate 1\n"
        "  vlalign-store import experts.pkl --dataset msrvtt --name rgb --key rgb --spread --durations seconds.csv\n"
        "  vlalign-store import vid_feat_files/mult_h5 --dataset msrvtt --profile mmt_s3d\n"
        "  vlalign-store import rgb --dataset mine --profile i3d_rgb.json --pattern '{id}_rgb.npy'",
        _IMPORT,
    ),
    "export": _Action(
        _export,
        "export features for other programs",
        "vlalign-store export --dataset demo s3d FOLDER --form npy",
        _STORE | _EXPORT,
    ),
}


def make_parser() -> Parser:
    """Return the parser of vlalign-store."""
    parser = new_parser(
        "vlalign-store",
        "Inspect, check, repair, import and export feature stores.",
        "vlalign-store info --dataset demo\n  vlalign-store verify vlalign_data/demo/features/s3d",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, action in ACTIONS.items():
        description = f"{action.help[0].upper()}{action.help[1:]}."
        subparser = actions.add_parser(name, help=action.help, description=description, **formatted(action.example))
        for argument, settings in action.arguments.items():
            subparser.add_argument(argument, **settings)
        add_dataset(subparser)
        add_messages(subparser)
        subparser.set_defaults(run=action.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run vlalign-store and return its exit code."""
    return run_command(lambda args: args.run(args), make_parser(), argv)
