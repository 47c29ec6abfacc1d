"""vlalign-store: what feature stores hold, whether they are whole, and their way in and out."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import care
from .common.command import Parser, add_dataset, run_command
from .common.errors import UserError
from .common.exits import EXIT_DONE, EXIT_INCOMPLETE
from .common.problems import Problems
from .common.progress import progress
from .common.terminal import harmless, say, show
from .exchange.exports import FORMS, export_store
from .exchange.imports import import_features
from .exchange.stated import read_durations, read_profile
from .feature_store import FeatureStore, current_shards, shard_files, stores_in
from .layout import DatasetFolder
from .profiles import split_features
from .records import Weights
from .remote.store import link_store


def find_store(args: argparse.Namespace, name: str) -> Path:
    """With --dataset the name of its features, without it a folder. Raises ``UserError`` where no shard is in it."""
    folder = folder_of(args, name)
    if not current_shards(folder):
        there = known_stores(args) if args.dataset else []
        raise UserError(
            f"{folder}: no feature store there (no *.h5); expected "
            + (f"one of {', '.join(there)}" if there else "its folder, or --dataset and the name of its features")
        )
    return folder


def folder_of(args: argparse.Namespace, name: str) -> Path:
    """Of one store, as it was asked for."""
    if not args.dataset:
        return Path(name)
    names = names_in(args, name)
    if len(names) > 1:
        raise UserError(f"{name}: names {len(names)} stores; expected one")
    return DatasetFolder(args.root, args.dataset).features(names[0])


def problems_of(args: argparse.Namespace) -> Problems:
    """Listed in the data set's folder, where one is given."""
    return Problems(file=DatasetFolder(args.root, args.dataset).problems("store") if args.dataset else None)


def known_stores(args: argparse.Namespace) -> list[str]:
    return stores_in(DatasetFolder(args.root, args.dataset).path / "features")


def names_in(args: argparse.Namespace, text: str) -> list[str]:
    """Of features, written as for vlalign-extract --features; a store's own name is no alias."""
    return split_features(text, known_stores(args))


def stores_of(args: argparse.Namespace) -> list[Path]:
    """Those that were asked for, or all of the data set."""
    if not args.stores and not args.dataset:
        raise UserError(
            "which store? Pass its folder, or --dataset and the name of its features (none: all of the data set)"
        )
    names = args.stores or known_stores(args)
    if args.dataset:
        names = list(dict.fromkeys(name for text in names for name in names_in(args, text)))
    if not names:
        raise UserError(
            f"{DatasetFolder(args.root, args.dataset).path / 'features'}: no feature stores there; run vlalign-extract first"
        )
    return [find_store(args, name) for name in names]


def info(args: argparse.Namespace) -> int:
    found = [care.describe(FeatureStore(folder)) for folder in stores_of(args)]
    if args.json:
        show(json.dumps(found, indent=2))
    else:
        show("\n\n".join("\n".join(info_lines(about)) for about in found))
    return EXIT_DONE


def info_lines(about: dict[str, Any]) -> list[str]:
    def several(values: dict[str, Any]) -> str:
        return ", ".join(f"{name} {value}" for name, value in values.items())

    replaced = f", {about['replaced_videos']:,} replaced ones beside them" if about["replaced_videos"] else ""
    lines = {
        "videos": f"{about['videos']:,} ({about['partial_videos']:,} partial or damaged{replaced}), {about['hours']:,.2f} hours",
        "rows": f"{about['rows']:,} of {about['profile']['dimension']:,} values, {' and '.join(about['types'])}",
        "on disk": f"{about['shards']:,} shards, {about['bytes'] / 1e6:,.1f} MB, schema {about['schema']}",
        "origin": about["origin"],
        "weights": f"{about['weights']} (sha256 {about['weights_sha256'] or 'not known'})"
        if about["weights"] != "none"
        else "none",
        "made with": several({name: " and ".join(values) for name, values in about["made_with"].items()}),
        "decoders": several({name or "none": f"({count:,} videos)" for name, count in about["decoders"].items()}),
        "profile": about["profile_hash"],
    } | {f"  {name}": value for name, value in about["profile"].items()}
    return [about["folder"], *(f"  {name:<20}{value}" for name, value in lines.items())]


def ls(args: argparse.Namespace) -> int:
    show("video_id\trows\tseconds\tdecoder\tpartial")
    for folder in stores_of(args):
        store = FeatureStore(folder)
        for video_id in store.video_ids():
            _, video = store.place(video_id)
            about = (
                video_id,
                video["num_rows"],
                f"{video['duration_seconds']:.2f}",
                video["decoder"].decode(),
                video["partial"].decode(),
            )
            show("\t".join(harmless(str(value)).replace("\t", "\\t").replace("\n", "\\n") for value in about))
    return EXIT_DONE


def verify(args: argparse.Namespace) -> int:
    with problems_of(args) as problems:
        verify_stores(stores_of(args), problems)
    return problems.exit_code()


def verify_stores(folders: list[Path], problems: Problems) -> None:
    for folder in folders:
        total, bad = len(current_shards(folder)), 0
        for _, finding in progress(care.verify(folder), total=total, what="verifying", unit="shards"):
            if finding:
                bad += 1
                problems.add(finding.message)
        if left := care.unfinished(folder):
            say(
                f"note: {len(left):,} unfinished files in {folder}, of writers that were stopped; vlalign-store repair removes them"
            )
        show(
            f"{folder}: {bad:,} of {total:,} shards are damaged; vlalign-store repair {folder} drops that, then run vlalign-extract again"
            if bad
            else f"{folder}: {total:,} shards, every byte as it was written"
        )


def repair(args: argparse.Namespace) -> int:
    for folder in stores_of(args):
        total, mended = len(shard_files(folder)), 0
        for _, done in progress(care.repair(folder), total=total, what="repairing", unit="shards"):
            if done:
                mended += 1
                say(done)
        show(
            f"{folder}: {mended:,} of {total:,} shards were not whole"
            + ("; now run vlalign-extract again" if mended else "")
        )
    return EXIT_DONE


def compact(args: argparse.Namespace) -> int:
    for folder in stores_of(args):
        before = len(shard_files(folder))
        for read, written in care.compact(folder):
            say(f"{folder}: {read:,} shards put into {written:,}")
        show(f"{folder}: {before:,} shards before, {len(shard_files(folder)):,} now")
    return EXIT_DONE


def link_(args: argparse.Namespace) -> int:
    folder = folder_of(args, args.store)
    sent = link_store(folder, args.url).send()
    brought = f"{sent:,} shards were brought there; " if sent else ""
    show(f"{folder}: stands for {args.url}; {brought}{len(FeatureStore(folder)):,} videos there")
    return EXIT_DONE


def merge(args: argparse.Namespace) -> int:
    sources = stores_of(args)
    into = folder_of(args, args.into)
    total = sum(len(current_shards(source)) for source in sources)
    copied = len(list(progress(care.merge(sources, into), total=total, what="merging", unit="shards")))
    show(f"{into}: {copied:,} shards came in; {len(FeatureStore(into)):,} videos now")
    return EXIT_DONE


def rm(args: argparse.Namespace) -> int:
    folder, video_ids = find_store(args, args.store), list(dict.fromkeys(args.videos))
    with problems_of(args) as problems:
        for video_id in care.remove(folder, video_ids):
            problems.add(f"{folder}: no video {video_id!r} in it")
    show(f"{folder}: {len(video_ids) - problems.count:,} videos removed")
    return problems.exit_code()


def import_(args: argparse.Namespace) -> int:
    if not args.dataset:
        raise UserError(
            f"--dataset is missing: the name of a data set under {args.root}, or a new one, that the features are for"
        )
    profile = read_profile(args.profile)
    folder = DatasetFolder(args.root, args.dataset).features(profile.name)
    durations = read_durations(args.durations) if args.durations else None
    weights = Weights(name=profile.weights, sha256="")
    with problems_of(args) as problems:
        count = import_features(
            args.source, folder, profile, weights, pattern=args.pattern, durations=durations, problems=problems
        )
    show(f"{folder}: {count:,} videos came in, {problems.count:,} problems; their profile is as you stated it")
    return problems.exit_code()


def export(args: argparse.Namespace) -> int:
    store = FeatureStore(find_store(args, args.store))
    with problems_of(args) as problems:
        count = export_store(store, args.folder, args.form, problems)
    show(f"{args.folder}: {count:,} of {len(store):,} videos of {store.folder}")
    return EXIT_INCOMPLETE if count < len(store) else problems.exit_code()


STORES = (
    "stores",
    {"nargs": "*", "metavar": "STORE", "help": "a store's folder; with --dataset the name of its features (none: all)"},
)
STORE = ("store", {"metavar": "STORE", "help": "the store's folder; with --dataset the name of its features"})
ACTIONS: dict[str, tuple[Callable[[argparse.Namespace], int], str, str, list[tuple[str, dict]]]] = {
    "info": (
        info,
        "says what a store holds and how it was made",
        "vlalign-store info --dataset demo",
        [STORES, ("--json", {"action": "store_true", "help": "as JSON, for programs"})],
    ),
    "ls": (
        ls,
        "lists the videos: id, rows, seconds, decoder, what is missing",
        "vlalign-store ls --dataset demo s3d",
        [STORES],
    ),
    "verify": (verify, "compares every byte with its checksum", "vlalign-store verify --dataset demo", [STORES]),
    "repair": (
        repair,
        "drops what is damaged, so that the next run makes it again",
        "vlalign-store repair --dataset demo s3d",
        [STORES],
    ),
    "compact": (
        compact,
        "puts small shards together, and drops what was replaced",
        "vlalign-store compact --dataset demo s3d",
        [STORES],
    ),
    "link": (
        link_,
        "has a folder stand for a store elsewhere; its rows are fetched when they are asked for",
        "vlalign-store link --dataset howto100m s3d s3://bucket/howto100m/s3d",
        [
            STORE,
            (
                "url",
                {
                    "metavar": "ADDRESS",
                    "help": "of the store's folder: what fsspec reads, such as s3://, gs:// or https://",
                },
            ),
        ],
    ),
    "merge": (
        merge,
        "copies the shards of several stores of one profile into one",
        "vlalign-store merge machine1/s3d machine2/s3d --into vlalign_data/demo/features/s3d",
        [
            STORES,
            (
                "--into",
                {"required": True, "metavar": "STORE", "help": "the store that takes them; made where there is none"},
            ),
        ],
    ),
    "rm": (
        rm,
        "removes videos from a store",
        "vlalign-store rm --dataset demo s3d demo0007 demo0011",
        [STORE, ("videos", {"nargs": "+", "metavar": "VIDEO", "help": "ids of the videos"})],
    ),
    "import": (
        import_,
        "takes features that others made: .npy, .npz, HDF5, pickles of arrays, WebDataset tars",
        "vlalign-store import FOLDER --dataset msrvtt --profile s3d\n"
        "  vlalign-store import rgb --dataset mine --profile i3d_rgb.json --pattern '{id}_rgb.npy'",
        [
            (
                "source",
                {"type": Path, "metavar": "SOURCE", "help": "a folder with a file a video, or one file with all"},
            ),
            (
                "--profile",
                {
                    "required": True,
                    "help": "how the features were made, as far as you know: a name as for vlalign-extract --features, or a JSON file with "
                    "the fields that vlalign-store info --json shows",
                },
            ),
            (
                "--pattern",
                {
                    "help": "which files, and where in their names the id is, such as '{id}_rgb.npy' (default: all files)"
                },
            ),
            (
                "--durations",
                {
                    "type": Path,
                    "metavar": "CSV",
                    "help": "video_id,seconds: how long the videos are, where the rows do not say",
                },
            ),
        ],
    ),
    "export": (
        export,
        "writes a store's features for other programs",
        "vlalign-store export --dataset demo s3d FOLDER --form npy",
        [
            STORE,
            ("folder", {"type": Path, "metavar": "FOLDER", "help": "a new folder"}),
            (
                "--form",
                {
                    "required": True,
                    "choices": FORMS,
                    "help": "npy: rows only, a file a video; npz: with times and profile; webdataset: tar files of both",
                },
            ),
        ],
    ),
}


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        prog="vlalign-store",
        description="Looks after feature stores.",
        epilog="example:\n  vlalign-store info --dataset demo\n  vlalign-store verify vlalign_data/demo/features/s3d",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (act, what, example, arguments) in ACTIONS.items():
        action = actions.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for flag, options in arguments:
            action.add_argument(flag, **options)
        add_dataset(action)
        action.set_defaults(act=act)
    return run_command(lambda args: args.act(args), parser, argv)
