"""Import features of other programs into stores."""

import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import UserError
from ..common.files import file_identity
from ..common.packages import package_version
from ..common.problems import Problems
from ..common.progress import Listener, progress, report_progress_to
from ..common.terminal import one_line
from ..records import Profile, VideoFeatures, Weights
from ..remote.store import refuse_remote
from ..shards.format import UNKNOWN_FACTS, Provenance
from ..shards.write import check_storable
from ..stores.checked_store import CheckedWriter, checked_store
from ..stores.opening import open_store, open_writer
from ..stores.store import Store, StoreWriter, WritableStore, refuse_mixed
from .declared_profile import DeclaredFeatures, known_profile
from .feature_files import SourceFeatures
from .readers import SourceVideo, source_videos

IMPORTED = "imported; its profile is as stated by the user"
"""``origin`` of features that this package did not make: the user declared their profile."""
BATCH_VIDEOS = 64
BATCH_BYTES = 256 << 20


class ProfileMismatch(UserError):
    """An export whose profile or weights differ from the declared ones.

    The import stops: the whole source is in doubt.
    """


@dataclass(frozen=True)
class _RowTimes:
    """The times of a video's feature vectors; fields as in ``VideoFeatures``."""

    start_seconds: np.ndarray
    end_seconds: np.ndarray
    valid_frames: np.ndarray
    duration_seconds: float
    partial: str = ""


@dataclass(frozen=True)
class _Clock:
    """The user's statements about times, by video id."""

    durations: Mapping[str, float]
    times: Mapping[str, np.ndarray]


def import_features(
    source: Path,
    into: Path | str | WritableStore,
    profile: Profile | DeclaredFeatures,
    weights: Weights | None = None,
    *,
    pattern: str | None = None,
    durations: Mapping[str, float] | None = None,
    times: Mapping[str, np.ndarray] | None = None,
    problems: Problems,
    on_progress: Listener | None = None,
) -> int:
    """Write the videos of a source into a store.

    Videos that the store already has from the same source are skipped, so a stopped import can be continued. Rows of
    float16 stay float16, others become float32. Exports of vlalign provide the times, and also the weights if
    ``weights`` has no SHA-256.

    Args:
        source: Folder or file of features (``source_videos``).
        into: Folder of the store, created if missing; or a custom store.
        profile: How the features were made, as far as the user knows. Facts that are not declared are recorded as
            unknown.
        weights: The model's weights; by default the weights in the profile, without a SHA-256.
        pattern: Pattern of the names to read, with ``{id}`` for the video's id (``source_videos``).
        durations: Seconds by video id. A video without a duration ends with its last row.
        times: The first and last second of each row, [T, 2] by video id, if they do not follow from the profile.
        problems: Receives the videos that cannot be imported.
        on_progress: Called after each video.

    Returns:
        The number of new videos.

    Raises:
        UserError: The store or an export of vlalign has another profile or other weights, or there are no videos.
    """
    is_folder = isinstance(into, str | Path)
    if is_folder:
        refuse_remote(Path(into))
    writer = open_writer(into) if is_folder else CheckedWriter(into)
    batches: dict[str, list[VideoFeatures]] = {"float16": [], "float32": []}
    num_new = 0
    features = profile if isinstance(profile, DeclaredFeatures) else known_profile(profile)
    with (
        report_progress_to(on_progress),
        source_videos(source, pattern or features.pattern, key=features.key, times=features.times) as videos,
    ):
        profile = features.profile(features.facts.get("dimension") or _dimension(videos))
        if profile.is_frames:
            raise UserError(f"profile {profile.name!r}: frames are not imported; extract them with vlalign-extract")
        declared = Provenance(
            profile=profile,
            weights=_weights_of(videos, weights or Weights(name=profile.weights, sha256="")),
            origin=IMPORTED + (UNKNOWN_FACTS + ", ".join(profile.unknown) if profile.unknown else ""),
            made_with={"vlalign": package_version(), "imported_from": one_line(source.name)},
        )
        refuse_mixed(writer, declared)
        stored = checked_store(into) if not is_folder else open_store(into) if writer.provenance() else None
        for video in _new_features(videos, stored, declared, _Clock(durations or {}, times or {}), problems):
            batch = batches[video.features.dtype.name]
            num_bytes = sum(one.features.nbytes for one in (*batch, video))
            if batch and (len(batch) == BATCH_VIDEOS or num_bytes > BATCH_BYTES):
                _write(writer, declared, batch)
                batch.clear()
            batch.append(video)
            num_new += 1
    for batch in batches.values():
        if batch:
            _write(writer, declared, batch)
    writer.flush()
    return num_new


def _write(writer: StoreWriter, declared: Provenance, batch: Sequence[VideoFeatures]) -> None:
    writer.write(batch, declared, dtype=batch[0].features.dtype.name)


def _new_features(
    videos: Sequence[SourceVideo],
    stored: Store | None,
    declared: Provenance,
    clock: _Clock,
    problems: Problems,
) -> Iterator[VideoFeatures]:
    """Yield the videos that ``stored`` does not have from the same source."""
    identity = cache(file_identity)
    taken: set[str] = set()
    for video in progress(videos, total=len(videos), what="importing", unit="videos"):
        source = identity(video.path) + (f":{video.name}" if video.name else "")
        try:
            _check_id(video, taken)
            if stored is None or video.video_id not in stored or stored.source(video.video_id) != source:
                found = video.read()
                if found.exported is not None:
                    _check_exported(found.exported, declared, video.where)
                yield _with_times(video, found, source, declared.profile, clock, problems)
            taken.add(video.video_id)
        except ProfileMismatch:
            raise
        except UserError as error:
            problems.add(str(error))


def _check_id(video: SourceVideo, taken: set[str]) -> None:
    if not video.video_id or any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in video.video_id):
        raise UserError(
            f"{video.where}: its id {video.video_id!r} is empty, not printable or not valid Unicode; rename it"
        )
    if video.video_id in taken:
        raise UserError(f"{video.where}: a second video {video.video_id!r}; skipped, since the first one was imported")


def _weights_of(videos: Sequence[SourceVideo], declared: Weights) -> Weights:
    """Return the declared weights, or the weights of an export of vlalign if the declared ones have no checksum."""
    for video in videos:
        try:
            exported = video.read().exported
            return declared if declared.sha256 or exported is None else _provenance_in(exported, video.where).weights
        except UserError:  # reported when the video is imported
            continue
    return declared


def _dimension(videos: Sequence[SourceVideo]) -> int:
    """Return the dimension of the feature vectors of the first readable video.

    Raises ``UserError`` with the first video's reason if none is readable.
    """
    reasons: list[UserError] = []
    for video in videos:
        try:
            return video.read().rows.shape[1]
        except UserError as error:
            reasons.append(error)
    raise reasons[0]


def _provenance_in(exported: Mapping[str, Any], where: str) -> Provenance:
    try:
        weights = json.loads(str(exported["weights"]))
        return Provenance(
            profile=Profile.from_json(str(exported["profile"])),
            weights=Weights(name=str(weights["name"]), sha256=str(weights["sha256"])),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{where}: an export whose profile or weights cannot be read ({error}); export it again"
        ) from None


def _check_exported(exported: Mapping[str, Any], declared: Provenance, where: str) -> None:
    actual = _provenance_in(exported, where)
    if actual.profile.hash != declared.profile.hash:
        fields = asdict(declared.profile)
        differences = ", ".join(
            f"{name} {value} against {fields[name]}"
            for name, value in asdict(actual.profile).items()
            if value != fields[name]
        )
        raise ProfileMismatch(
            f"{where}: has profile {actual.profile.hash}, not {declared.profile.hash}: {differences}; declare the "
            "profile of the export"
        )
    if actual.weights != declared.weights:
        raise ProfileMismatch(
            f"{where}: has {actual.weights}, not {declared.weights}; import features of the same weights, or "
            "declare the weights of the export"
        )


def _with_times(
    video: SourceVideo,
    found: SourceFeatures,
    source: str,
    profile: Profile,
    clock: _Clock,
    problems: Problems,
) -> VideoFeatures:
    """Add the times of the feature vectors.

    Raises ``UserError`` for vectors that do not fit the profile, or whose times are unknown.
    """
    num_rows, exported, duration = len(found.rows), found.exported, clock.durations.get(video.video_id)
    stated = found.times if found.times is not None else clock.times.get(video.video_id)
    try:
        if exported is not None:
            times = _exported_times(exported)
        elif stated is not None:
            times = _stated_times(stated, num_rows, duration, profile)
        else:
            times = _row_times(profile, num_rows, duration)
        features = VideoFeatures(video_id=video.video_id, features=found.rows, source=source, **vars(times))
        check_storable(features, profile, found.rows.dtype)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{video.where}: {one_line(str(error))}") from None
    if exported is None and stated is None and profile.fps is not None and duration is not None:
        num_late = int((np.arange(num_rows) * profile.stride / profile.fps > duration).sum())
        if num_late:
            problems.add(
                f"{video.where}: {num_late} of {num_rows} rows would start after the video's {duration:g} seconds; "
                "they are moved to its end"
            )
    return features


def _row_times(profile: Profile, num_rows: int, duration: float | None) -> _RowTimes:
    """Compute the times of feature vectors from the profile.

    Vector i covers [i * stride / fps, (i * stride + window) / fps) seconds, cut at the duration. Without fps, all
    vectors cover equal parts of the video.

    Example: 10 seconds, 3 rows at 0.25 fps -> [0, 4), [4, 8), [8, 10); 5 rows -> also [10, 10), [10, 10).
    """
    rows = np.arange(num_rows)
    if profile.fps is not None:
        starts, ends = rows * profile.stride / profile.fps, (rows * profile.stride + profile.window) / profile.fps
    elif duration is not None:
        starts, ends = duration * rows / num_rows, duration * (rows + 1) / num_rows
    elif "fps" in profile.unknown:
        raise ValueError("the times of its rows are not known; list them in a file and pass it as --times")
    else:
        raise ValueError("its profile has no fps and its duration is not known; list it in a file for --durations")
    duration = float(ends[-1]) if duration is None else duration
    return _RowTimes(
        np.minimum(starts, duration), np.minimum(ends, duration), np.full(num_rows, profile.window), duration
    )


def _stated_times(times: np.ndarray, num_rows: int, duration: float | None, profile: Profile) -> _RowTimes:
    """Return the times of feature vectors that are stated individually."""
    if times.shape != (num_rows, 2):
        raise ValueError(
            f"its times have shape {list(times.shape)}; expected [{num_rows}, 2], start and end of each row"
        )
    starts, ends = times.astype("f8").T
    if not (
        np.isfinite(times).all() and (starts >= 0).all() and (starts <= ends).all() and (np.diff(starts) >= 0).all()
    ):
        raise ValueError("its rows have impossible times; expected 0 <= start <= end in seconds, in order")
    duration = float(ends[-1]) if duration is None else duration
    return _RowTimes(
        np.minimum(starts, duration), np.minimum(ends, duration), np.full(num_rows, profile.window), duration
    )


def _exported_times(exported: Mapping[str, Any]) -> _RowTimes:
    starts, ends = (np.asarray(exported[name], "f8") for name in ("start_seconds", "end_seconds"))
    duration = float(exported["duration_seconds"])
    are_valid = np.isfinite(starts).all() and np.isfinite(ends).all() and (starts <= ends).all()
    if not are_valid or not math.isfinite(duration):
        raise ValueError("its rows have impossible times; export it again")
    return _RowTimes(
        starts, ends, np.asarray(exported["valid_frames"]).astype("i4"), duration, str(exported["partial"])
    )
