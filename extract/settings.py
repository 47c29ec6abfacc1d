"""Settings of an extraction. Heavy imports are deferred."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..storage.common.errors import SettingError
from ..storage.common.plugins import is_plugin_name, trusted_modules
from ..storage.common.settings import Settings, setting
from ..storage.dataset.folder import DatasetFolder, dataset_at
from ..storage.hub.names import FRAMES, is_hub_name, read_hub_name
from ..storage.profiles import ALIASES, BUILT_IN, PROFILES, WITHOUT_NETWORK, split_encoders
from ..storage.records import EXACT, NVDEC
from ..storage.remote.addresses import host_named
from .decoding.errors import FAILURE_KINDS
from .encoders.custom import find_custom_encoder, is_custom_encoder
from .encoders.profile_checks import PRECISIONS

PRETRAINED = "pretrained"
MAX_SECONDS_BETWEEN_THUMBNAILS = 12 * 3600
"""The maximum length of a video."""
KNOWN_FEATURES = ", ".join([*PROFILES, *(f"{alias} (= {name})" for alias, name in ALIASES.items())])


def known_encoders(
    text: str, fps: float | None = None, weights: Mapping[str, str] | None = None, trusted: Collection[str] = ()
) -> dict[str, str]:
    """Split a text such as "s3d,i3d,hf:ORG/MODEL" into encoders: {name of the store: encoder}, with aliases resolved.

    Args:
        text: Names of profiles, names of encoders that a library loads, or files of custom profiles, separated by
            commas or +.
        fps: Frames a second for library encoders whose names do not include a rate.
        weights: {name: file of weights} for custom profiles.
        trusted: Modules that custom profiles may run.

    Raises:
        SettingError: Some features are unknown, or two have the same store.
    """
    found: dict[str, str] = {}
    unknown = []
    for encoder in split_encoders(text):
        if is_hub_name(encoder):
            hub = read_hub_name(encoder)
            hub = replace(hub, fps=fps) if hub.fps is None and not hub.is_whole else hub
            if hub.store in BUILT_IN:
                raise SettingError(
                    "features", encoder, f"{hub.store!r} is the name of a built-in profile; rename the folder"
                )
            if hub.store in found:
                problem = f"the store name {hub.store!r} is already used; omit one of the two"
                raise SettingError("features", encoder, problem)
            found[hub.store] = hub.text
        elif is_custom_encoder(encoder) and encoder not in BUILT_IN:
            own = find_custom_encoder(encoder, trusted)
            name = own.profile.name
            if name in BUILT_IN:
                raise SettingError("features", encoder, f"{name!r} is the name of a built-in profile; rename yours")
            if name in found:
                raise SettingError("features", encoder, f"the profile name {name!r} is already used; rename it")
            chosen = (weights or {}).get(name, PRETRAINED)
            found[name] = own.text if chosen == PRETRAINED else replace(own, weights=Path(chosen).absolute()).text
        elif encoder in BUILT_IN:
            found[encoder] = encoder
        else:
            unknown.append(encoder)
    if unknown:
        quoted = " and ".join(map(repr, unknown))
        expected = f"{', '.join(PROFILES)}, {', '.join(ALIASES)}, NAME_{FRAMES} or hf:ORG/MODEL"
        raise SettingError("features", text, f"{quoted}: not known; expected {expected}")
    if fps is not None and not any(map(is_hub_name, found.values())):
        raise SettingError("fps", fps, f"the profiles of {', '.join(found)} have their own; omit --fps")
    return found


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The settings of one process that extracts on one device. They can be sent to other processes and machines."""

    dataset: DatasetFolder
    weights: Mapping[str, str]
    """{features: weights} of all features that it extracts."""
    device: str = "cpu"
    precision: str = "fp32"
    decoding: str = EXACT
    tf32: str = "convolutions"
    num_cores: int | None = None
    """Cores for decoders and, on a CPU, networks. None: all of the machine."""
    allowed_hosts: Sequence[str] = ()
    """Hosts in private networks that videos may be fetched from."""
    thumbnails_every: float | None = None
    """Seconds between thumbnails; None: three of each video."""


PARTIAL, ALL = "partial", "all"
"""Values of ``accept_failures`` besides the kinds of failures."""
NOT_RETRIED = "since they never failed; run the command without --retry-failed"
"""Why videos were not tried with ``retry_failed``, for messages."""


def parse_max_failures(text: str) -> tuple[float, int | None]:
    """Return (maximum share, maximum number) of videos that may fail; the text sets only one of the two limits.

    >>> parse_max_failures("2%"), parse_max_failures("100")
    ((0.02, None), (1.0, 100))

    Raises:
        SettingError: The text is neither a number nor a percentage.
    """
    number, percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        value = float(number) if percent else int(number)
    except ValueError:
        value = -1
    if not 0 <= value <= (100 if percent else float("inf")):
        raise SettingError("max_failures", text, "expected a percentage such as 2%, or a number such as 100")
    return (value / 100, None) if percent else (1.0, int(value))


def parse_weights(values: Sequence[str], features: Sequence[str]) -> dict[str, str]:
    """Parse options to {features: weights}: VALUE sets all features that have weights, NAME=VALUE sets one.

    Raises:
        SettingError: A value is ambiguous, or names other features.
    """
    chosen = dict.fromkeys(features, PRETRAINED)
    with_weights = [name for name in features if name not in WITHOUT_NETWORK] or list(features)
    if values and not features:
        raise SettingError("weights", values[0], "hf: and timm: encoders have their own weights; omit --weights")
    for value in values:
        name, weights = match.groups() if (match := re.fullmatch(r"(\w+)=(.*)", value)) else ("", value)
        if not name and len(with_weights) > 1 and weights not in ("random", PRETRAINED):
            names = " or ".join(with_weights)
            raise SettingError("weights", value, f"expected NAME={value}, where NAME is {names}")
        name = ALIASES.get(name, name)
        if name and name not in with_weights:
            raise SettingError("weights", value, f"{name!r} is not extracted; expected one of {','.join(with_weights)}")
        chosen |= dict.fromkeys([name] if name else with_weights, weights)
    return chosen


@dataclass(frozen=True, kw_only=True)
class ExtractionSettings(Settings):
    """The settings of ``extract_dataset``, ``plan_extraction`` and ``verify_dataset``.

    Fields declared with ``setting`` are options of ``vlalign-extract`` and of the cluster job.

    Raises:
        SettingError: A value cannot be used, such as unknown features.

    Example:
        >>> from vlalign.extract import ExtractionSettings
        >>> settings = ExtractionSettings(dataset="vlalign_data/mine", features="s3d,clip_vit_b32", device="cpu")
        >>> settings.store_names
        ['s3d', 'clip_vit_b32']
    """

    dataset: Path | str
    """The data set's folder, ``<root>/<data set>``; it is created if it does not exist."""
    features: str | Sequence[str] = setting(
        "s3d",
        f"features to extract, separated by commas or +: {KNOWN_FEATURES}; or a model of transformers or timm: "
        "hf:ORG/MODEL[@REVISION], timm:NAME or hf:/path/to/folder; or, for fine-tuning, the input frames of a network: "
        "NAME_frames or hf:ORG/MODEL:frames; or the file of your own profile, with --trust",
    )
    """Becomes a list of encoders, with aliases resolved."""
    weights: Sequence[str] | Mapping[str, str] = setting(
        (),
        "a checkpoint file, 'pretrained' (default: from the cache or the authors) or 'random'; with NAME=, for one of "
        "several features",
        metavar="[NAME=]WEIGHTS",
    )
    """Or {features: weights}; see ``chosen_weights``."""
    fps: float | None = setting(
        None,
        "frames a second for hf: encoders (default: 1 for image models; video models need it, or :whole at the end of "
        "their names)",
    )
    trust: Sequence[str] = setting((), "Python module that your own profile may import and run", metavar="MODULE")
    videos: Path | None = setting(
        None,
        "folder with your own video files, or images; their names become the video ids (default: the videos that the "
        "data set lists)",
        metavar="FOLDER",
    )
    """Its videos are added to the data set's list."""
    allow_host: Sequence[str] = setting(
        (),
        "host on this machine or in a private network that video addresses may name; other such hosts are refused",
        metavar="HOST",
    )
    allow_folder: Sequence[Path] = ()
    """Folders outside the root in which listed videos may lie. They are remembered for later calls. All commands have
    this option."""
    device: str = setting("auto", "cpu, cuda, cuda:N, mps, or several, separated by commas; auto: all GPUs, or the CPU")
    """One process extracts on each device."""
    precision: str = setting(
        "fp32", "precision of the networks; fp16 needs a GPU", choices=dict.fromkeys(PRECISIONS, "")
    )
    decoding: str = setting(
        EXACT,
        "video decoder",
        choices={
            EXACT: "any decoder, all give the same frames",
            NVDEC: "NVIDIA's video engine; slightly different frames, another profile, no sandbox",
        },
    )
    tf32: str = setting(
        "convolutions",
        "where NVIDIA GPUs round fp32 to TF32, which is faster",
        choices=dict.fromkeys(("none", "convolutions", "all"), ""),
    )
    thumbnails_every: float | None = setting(
        None,
        "seconds between the thumbnails that search shows where a video cannot be read, 1 or more (default: three of "
        "each video); with 4, a thumbnail is at most 2 s off, for about 3.5 MB an hour of video; with 2, at most 1 s, "
        "for 7 MB",
        ge=1,
        le=MAX_SECONDS_BETWEEN_THUMBNAILS,
        metavar="SECONDS",
    )
    retry_failed: bool = setting(False, "extract only the videos that failed before")
    max_failures: str = setting(
        "20%",
        "stop once more videos have failed: a percentage of the videos tried (from 50 failures on), or a number; "
        "failures of earlier calls do not count",
        metavar="N|N%",
    )
    accept_failures: Sequence[str] = setting(
        (),
        "kinds of failures that do not change the exit code: a kind listed in failures.jsonl, such as unreadable; "
        "'partial'; or 'all', for every failure that another call would not fix",
        metavar="KIND",
    )
    verify_against: Path | None = setting(
        None,
        "compare with other people's features (.npy, .npz or .h5 files, named by video id), vector by vector",
        metavar="FOLDER",
    )
    """Only videos with features in this folder are extracted."""
    stores: str | Mapping[str, Any] | None = setting(
        None,
        "remote folder of the feature stores, such as s3://bucket/folder or gs://..., needed only once; or "
        "MODULE:NAME, which opens stores of your own (default: under --root)",
        metavar="STORES",
    )
    """Or {features: open ``WritableStore``} (``stores.opening.StoreSource``)."""
    encoders: Mapping[str, str] = field(init=False, default_factory=dict)
    """{name of the store: encoder, such as "s3d" or "hf:ORG/MODEL"}."""
    chosen_weights: Mapping[str, str] = field(init=False, default_factory=dict)
    """{name of the store: weights}; all other stores use pretrained weights."""

    def __post_init__(self) -> None:
        self.check_lists()
        self._set("dataset", self.folder.path)
        for name in ("videos", "verify_against"):  # callers from Python may pass a text
            if getattr(self, name) is not None:
                self._set(name, Path(getattr(self, name)))
        self._set("trust", trusted_modules(self.trust))
        parse_max_failures(self.max_failures)
        kinds = (*FAILURE_KINDS, PARTIAL, ALL)
        for kind in self.accept_failures:
            if kind not in kinds:
                raise SettingError("accept_failures", kind, f"expected one of {', '.join(kinds)}")
        self._set("allow_folder", [Path(folder) for folder in self.allow_folder])
        self._set("allow_host", [host_named(host) for host in self.allow_host])
        text = self.features if isinstance(self.features, str) else ",".join(self.features)
        weights = self.weights
        if not isinstance(weights, Mapping):
            with_weights = known_encoders(text, self.fps, trusted=self.trust).items()
            weights = parse_weights(weights, [name for name, encoder in with_weights if not is_hub_name(encoder)])
        self._set("chosen_weights", dict(weights))
        self._set("encoders", known_encoders(text, self.fps, weights, self.trust))
        self._set("features", list(self.encoders.values()))
        super().__post_init__()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def accepts(self, kind: str, *, transient: bool = False) -> bool:
        """Return whether a failure does not count against the exit code.

        Args:
            kind: Its kind, or ``PARTIAL``.
            transient: True if another call may succeed.
        """
        return kind in self.accept_failures or (ALL in self.accept_failures and not transient)

    def check(self) -> None:
        """Refuse trusted modules if no custom profile is extracted.

        Raises:
            SettingError: ``trust`` names modules, but none of the features is a custom profile.
        """
        if self.trust and not any(map(is_custom_encoder, self.encoders.values())):
            features = ",".join(self.store_names)
            problem = f"changes nothing: no profile of your own is among features {features}; omit --trust"
            raise SettingError("trust", self.trust[0], problem)

    @cached_property
    def folder(self) -> DatasetFolder:
        """The data set's folder and the paths in it."""
        return replace(dataset_at(self.dataset), stores=None if self.address else self.stores)

    @property
    def address(self) -> str | None:
        """The address of remote stores; None if ``stores`` is not an address."""
        return self.stores if isinstance(self.stores, str) and not is_plugin_name(self.stores) else None

    @property
    def store_names(self) -> list[str]:
        """The names of the stores, in the order of ``features``."""
        return list(self.encoders)

    def for_worker(self, weights: Mapping[str, str], device: str, num_cores: int | None = None) -> WorkerSettings:
        """Return the settings of a process that extracts features.

        Args:
            weights: {features: weights} of all features that it extracts.
            device: Name of its device.
            num_cores: Cores for decoders and, on a CPU, networks. None: all of the machine.
        """
        return WorkerSettings(
            dataset=self.folder,
            weights=dict(weights),
            device=device,
            precision=self.precision,
            decoding=self.decoding,
            tf32=self.tf32,
            num_cores=num_cores,
            allowed_hosts=list(self.allow_host),
            thumbnails_every=self.thumbnails_every,
        )

    def weights_of(self, name: str) -> str:
        """Return the weights of a store.

        Args:
            name: Name of the store.

        Returns:
            For a built-in profile, a path, "pretrained" or "random". For a custom encoder, its whole text
            (``CustomEncoder.text``). For a hub encoder, its name with the revision that the hub has now.

        Raises:
            UserError: The files of a hub encoder are missing.
        """
        encoder = self.encoders[name]
        if is_custom_encoder(encoder):
            return encoder
        if not is_hub_name(encoder):
            return self.chosen_weights.get(name, PRETRAINED)
        from ..storage.hub.files import pin_revision  # asks the hub

        return pin_revision(encoder)
