"""Features from elsewhere into stores, and stores into files that other tools read."""

import csv
import errno
import io
import json
import math
import re
import tarfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np

from .common.errors import UserError
from .common.problems import Problems
from .common.progress import progress
from .elsewhere import refuse_elsewhere
from .feature_store import FeatureStore
from .files import file_identity, written_whole
from .foreign import ForeignFeatures, ForeignVideo, foreign_videos, printable
from .profiles import ALIASES, PROFILES, find_profile
from .records import Profile, VideoFeatures, Weights
from .shards import check_storable, describe_key, write_shard

IMPORTED = "imported; its profile is as stated by the user"
"""``origin`` of features that this package did not make."""
BATCH_VIDEOS = 64
BATCH_BYTES = 256 << 20
TAR_BYTES = 1_000_000_000
MOST_NAME_BYTES = 255 - len("..12345678-12345678.partial")
"""Of a file's name: on all usual file systems 255 bytes, less what a file is called while it is written."""


# Import


class OtherFeatures(UserError):
    """An export of ours that says it has other features than those that are stated: all of the source is then in doubt."""


def import_features(
    source: Path,
    folder: Path,
    profile: Profile,
    weights: Weights,
    *,
    pattern: str | None = None,
    durations: Mapping[str, float] | None = None,
    problems: Problems,
) -> int:
    """Writes the videos of ``source`` (``foreign_videos``) into the store ``folder``; returns how many are new.

    Videos that are there from the same source are passed over, so a stopped import goes on. Rows of float16 stay, others become
    float32. ``durations``: seconds by video id; without them a video ends with its last row. Our own exports say their times and,
    where the stated weights have no SHA-256, their weights. Raises ``UserError`` for a folder or a source that says it has other
    features than those that are stated.
    """
    refuse_elsewhere(folder)
    made_with = {"vlalign": version("vlalign"), "imported_from": printable(source.name)}
    batches: dict[str, list[VideoFeatures]] = {"float16": [], "float32": []}
    num_new = 0

    def write(dtype: str) -> None:
        write_shard(folder, profile, weights, batches[dtype], made_with=made_with, origin=IMPORTED, dtype=dtype)
        batches[dtype] = []

    with foreign_videos(source, pattern) as videos:
        weights = _weights_of(videos, weights)
        stored = _stored(folder, profile, weights)
        for features in _new_features(videos, stored, profile, weights, durations or {}, problems):
            dtype = features.features.dtype.name
            batch = batches[dtype]
            if batch and (
                len(batch) == BATCH_VIDEOS or sum(v.features.nbytes for v in (*batch, features)) > BATCH_BYTES
            ):
                write(dtype)
            batches[dtype].append(features)
            num_new += 1
    for dtype in (dtype for dtype, batch in batches.items() if batch):
        write(dtype)
    return num_new


def _new_features(
    videos: Sequence[ForeignVideo],
    stored: FeatureStore | None,
    profile: Profile,
    weights: Weights,
    durations: Mapping[str, float],
    problems: Problems,
) -> Iterator[VideoFeatures]:
    """Those that ``stored`` has not got from the same source."""
    identity = cache(file_identity)
    taken: set[str] = set()
    for video in progress(videos, total=len(videos), what="importing", unit="videos"):
        source = identity(video.path) + (f":{video.name}" if video.name else "")
        try:
            _check_id(video, taken)
            if stored is None or video.video_id not in stored or stored.source(video.video_id) != source:
                found = video.read()
                if found.exported is not None:
                    _check_exported(found.exported, profile, weights, video.place)
                yield _timed(video, found, source, profile, durations.get(video.video_id), problems)
            taken.add(video.video_id)
        except OtherFeatures:
            raise
        except UserError as error:
            problems.add(str(error))


def _stored(folder: Path, profile: Profile, weights: Weights) -> FeatureStore | None:
    if not any(folder.glob("*.h5")):
        return None
    store = FeatureStore(folder)
    there, stated = (store.profile.hash, store.weights, store.origin), (profile.hash, weights, IMPORTED)
    if there != stated:
        raise UserError(
            f"{folder}: a store with {describe_key(there)}; the import states {describe_key(stated)}; pass another folder or state the same"
        )
    return store


def _check_id(video: ForeignVideo, taken: set[str]) -> None:
    if not video.video_id or any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in video.video_id):
        raise UserError(f"{video.place}: its id {video.video_id!r} is empty, no text or more than a line; rename it")
    if video.video_id in taken:
        raise UserError(f"{video.place}: a second video {video.video_id!r}; the first one was taken")


def _weights_of(videos: Sequence[ForeignVideo], stated: Weights) -> Weights:
    """Those that an export of ours says, where nobody knows the checksum of the stated ones."""
    for video in videos:
        try:
            exported = video.read().exported
            return stated if stated.sha256 or exported is None else _said(exported, video.place)[1]
        except UserError:  # said when its turn comes
            continue
    return stated


def _said(exported: Mapping[str, Any], place: str) -> tuple[Profile, Weights]:
    try:
        weights = json.loads(str(exported["weights"]))
        return Profile.from_json(str(exported["profile"])), Weights(
            name=str(weights["name"]), sha256=str(weights["sha256"])
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{place}: an export whose profile or weights cannot be read ({error}); export it again"
        ) from None


def _check_exported(exported: Mapping[str, Any], profile: Profile, weights: Weights, place: str) -> None:
    said, said_weights = _said(exported, place)
    if said.hash != profile.hash:
        stated = asdict(profile)
        differences = ", ".join(
            f"{name} {value} against {stated[name]}" for name, value in asdict(said).items() if value != stated[name]
        )
        raise OtherFeatures(
            f"{place}: says it has profile {said.hash}, not {profile.hash}: {differences}; state the one that it has"
        )
    if said_weights != weights:
        raise OtherFeatures(
            f"{place}: says it has {said_weights}, not {weights}; import what has the same weights, or state those"
        )


def _timed(
    video: ForeignVideo,
    found: ForeignFeatures,
    source: str,
    profile: Profile,
    duration: float | None,
    problems: Problems,
) -> VideoFeatures:
    """Raises ``UserError`` for rows that do not fit the profile, or that have no times."""
    num_rows = len(found.rows)
    try:
        times = _row_times(profile, num_rows, duration) if found.exported is None else _exported_times(found.exported)
        features = VideoFeatures(video_id=video.video_id, features=found.rows, source=source, **times)
        check_storable(features, profile, found.rows.dtype)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{video.place}: {printable(str(error))}") from None
    if found.exported is None and profile.fps is not None and duration is not None:
        late = int((np.arange(num_rows) * profile.stride / profile.fps > duration).sum())
        if late:
            problems.add(
                f"{video.place}: {late} of {num_rows} rows would start after the video's {duration:g} seconds; they lie at its end"
            )
    return features


def _row_times(profile: Profile, num_rows: int, duration: float | None) -> dict[str, Any]:
    """Row i is [i * stride / fps, (i * stride + window) / fps) seconds, cut at the duration; without fps, a part of it like all others.

    10 seconds, 3 rows at 0.25 fps  ->  [0, 4), [4, 8), [8, 10);  5 rows  ->  also [10, 10), [10, 10)
    """
    rows = np.arange(num_rows)
    if profile.fps is not None:
        starts, ends = rows * profile.stride / profile.fps, (rows * profile.stride + profile.window) / profile.fps
    elif duration is not None:
        starts, ends = duration * rows / num_rows, duration * (rows + 1) / num_rows
    else:
        raise ValueError("how long the video is must be known, as the profile has no fps; list it in the durations")
    duration = float(ends[-1]) if duration is None else duration
    return {
        "start_seconds": np.minimum(starts, duration),
        "end_seconds": np.minimum(ends, duration),
        "valid_frames": np.full(num_rows, profile.window),
        "duration_seconds": duration,
    }


def _exported_times(exported: Mapping[str, Any]) -> dict[str, Any]:
    starts, ends = (np.asarray(exported[name], "f8") for name in ("start_seconds", "end_seconds"))
    duration = float(exported["duration_seconds"])
    if not (
        np.isfinite(starts).all() and np.isfinite(ends).all() and (starts <= ends).all() and math.isfinite(duration)
    ):
        raise ValueError("times that are no times; export it again")
    return {
        "start_seconds": starts,
        "end_seconds": ends,
        "valid_frames": np.asarray(exported["valid_frames"]).astype("i4"),
        "duration_seconds": duration,
        "partial": str(exported["partial"]),
    }


# What the user states


def read_profile(text: str) -> Profile:
    """A profile of this package by its name, or all fields of ``Profile`` in a JSON file. Raises ``UserError`` for anything else."""
    if text in PROFILES or text in ALIASES:
        return find_profile(text)
    path = Path(text)
    if not path.is_file():
        raise UserError(
            f"profile {text!r}: neither known nor a file; expected {', '.join((*PROFILES, *ALIASES))}, or a JSON file"
        )
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__}")
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: no JSON object ({error}); expected one with the fields {', '.join(field.name for field in fields(Profile))}"
        ) from None
    if faults := Profile.faults(values):
        raise UserError(f"{path}: {printable('; '.join(faults))}")
    values |= {name: tuple(map(float, values[name])) for name in ("mean", "std")}
    if isinstance(values["fps"], float) and values["fps"].is_integer():
        values["fps"] = int(values["fps"])  # 24.0 and 24 are the same profile, and must have the same hash
    return Profile(**values)


def read_durations(path: Path) -> dict[str, float]:
    """{video id: seconds} from a CSV file with the columns video_id and seconds. Raises ``UserError`` with the lines that are bad."""
    durations: dict[str, float] = {}
    bad = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            if not {"video_id", "seconds"} <= set(rows.fieldnames or ()):
                found = printable(",".join(rows.fieldnames or ())) or "none"
                raise UserError(f"{path}: columns {found}; expected video_id,seconds in the first line")
            for row in rows:
                try:
                    seconds = float(row["seconds"])
                    good = (
                        row["video_id"]
                        and 0 < seconds < math.inf
                        and durations.get(row["video_id"], seconds) == seconds
                    )
                except (TypeError, ValueError):
                    good = False
                if good:
                    durations[row["video_id"]] = seconds
                else:
                    bad.append(f"{rows.line_num} ({printable(','.join(map(str, row.values())))[:60]})")
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: no readable CSV ({error}); expected video_id,seconds in UTF-8") from None
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise UserError(
            f"{path}: line {', '.join(bad[:5])}{more}: expected a video's id, once, and its seconds above 0"
        )
    return durations


# Export


def export_store(store: FeatureStore, target: Path, form: str, problems: Problems) -> int:
    """Writes all videos of ``store`` into the empty or new folder ``target``, in the type they are stored in; returns how many.

    npy: ``ID.npy``, the rows alone. npz: ``ID.npz`` with ``features`` and ``EXPORTED`` (profile and weights are JSON). webdataset:
    tars of at most 1 GB, in which a video is ``KEY.features.npy`` and ``KEY.json``; KEY is the id with dots percent-encoded, as
    WebDataset ends a key at the first. The same store gives the same bytes. Raises ``UserError`` for a folder with something in it.
    """
    if form not in FORMS:
        raise UserError(f"form {form!r}: not known; expected {', '.join(FORMS)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: something is there already; pass a new or empty folder")
    ids = sorted(store.video_ids())
    videos = (
        store.get(video_id, dtype=None) for video_id in progress(ids, total=len(ids), what="exporting", unit="videos")
    )
    return FORMS[form](store, target, videos, problems)


def _export_files(suffix: str, write: Callable[..., None]) -> Callable[..., int]:
    def export(store: FeatureStore, target: Path, videos: Iterable[VideoFeatures], problems: Problems) -> int:
        num_written = 0
        for video in videos:
            try:
                with written_whole(target / _file_name(video.video_id, suffix)) as partial, partial.open("wb") as file:
                    write(file, store, video)
                num_written += 1
            except ValueError as error:
                problems.add(f"video {video.video_id!r}: {error}; left out, export it as webdataset")
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                    raise
                problems.add(
                    f"video {video.video_id!r}: no file can have that name beside the others ({error.strerror}); left out"
                )
        return num_written

    return export


def _file_name(video_id: str, suffix: str) -> str:
    """Raises ``ValueError`` for an id that is no file's path under a folder."""
    name = video_id + suffix
    if any(part == "" or part.startswith(".") for part in video_id.split("/")):
        raise ValueError("its id has an empty part or one that begins with a dot, which no file may have here")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in video_id):
        raise ValueError("its id has a control character in it")
    if any(len(part.encode()) > MOST_NAME_BYTES for part in name.split("/")):
        raise ValueError(f"its id is too long for a file's name, of which {MOST_NAME_BYTES} bytes are taken")
    return name


def _write_npy(file: IO[bytes], store: FeatureStore, video: VideoFeatures) -> None:
    np.lib.format.write_array(file, np.ascontiguousarray(video.features), allow_pickle=False)


def _write_npz(file: IO[bytes], store: FeatureStore, video: VideoFeatures) -> None:
    about = {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in _about(store, video).items()
    }
    np.savez(file, features=video.features, **{name: np.array(value) for name, value in about.items()})


def _about(store: FeatureStore, video: VideoFeatures) -> dict[str, Any]:
    """The values of ``EXPORTED``, as arrays, numbers, texts and dicts."""
    times = {
        name: getattr(video, name) for name in ("start_seconds", "end_seconds", "valid_frames", "duration_seconds")
    }
    return times | {
        "profile": json.loads(store.profile.to_json()),
        "weights": asdict(store.weights),
        "partial": video.partial,
    }


def _export_tars(store: FeatureStore, target: Path, videos: Iterable[VideoFeatures], problems: Problems) -> int:
    samples = (_sample(store, video) for video in videos)
    sample = next(samples, None)
    num_tars = num_written = 0
    while sample is not None:
        with (
            written_whole(target / f"{num_tars:06d}.tar") as partial,
            tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar,
        ):
            num_before = num_written
            while sample is not None and (num_written == num_before or tar.offset + _tar_bytes(sample) <= TAR_BYTES):
                for name, content in sample:
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                num_written += 1
                sample = next(samples, None)
        num_tars += 1
    return num_written


def _sample(store: FeatureStore, video: VideoFeatures) -> list[tuple[str, bytes]]:
    # Dots would end the key; slashes that no path has would be lost; WebDataset passes over names that begin with two underscores.
    key = re.sub(r"[.%\x00-\x1f\x7f]|^/|/$|(?<=/)/|^_(?=_)", lambda found: f"%{ord(found[0]):02X}", video.video_id)
    about = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in _about(store, video).items()
    }
    rows = io.BytesIO()
    _write_npy(rows, store, video)
    text = json.dumps({"video_id": video.video_id} | about, ensure_ascii=False)
    return [(f"{key}.features.npy", rows.getvalue()), (f"{key}.json", text.encode())]


def _tar_bytes(sample: list[tuple[str, bytes]]) -> int:
    """At most: each with its header, one for a long name, and padding; and the end of the tar."""
    return sum(len(content) + 8 * tarfile.BLOCKSIZE for _, content in sample) + tarfile.RECORDSIZE


FORMS = {"npy": _export_files(".npy", _write_npy), "npz": _export_files(".npz", _write_npz), "webdataset": _export_tars}
