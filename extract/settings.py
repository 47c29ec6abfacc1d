"""Settings of an extraction. Imports nothing heavy."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..storage.common.errors import SettingError
from ..storage.dataset.folder import DatasetFolder
from ..storage.hub.names import is_hub_name, read_hub_name
from ..storage.profiles import ALIASES, PROFILES, split_encoders
from ..storage.records import EXACT
from ..storage.remote.addresses import host_named
from .encoders.custom import find_custom_encoder, is_custom_encoder

PRETRAINED = "pretrained"


def known_encoders(
    text: str, fps: float | None = None, weights: Mapping[str, str] | None = None, trusted: Collection[str] = ()
) -> dict[str, str]:
    """Split a text such as "s3d,i3d,hf:ORG/MODEL" into encoders: {name of the store: encoder}, with aliases resolved.

    Args:
        text: Names of profiles, names of encoders that a library loads, or files of profiles of one's own, separated by
            commas or +.
        fps: Frames a second, for encoders of a library that do not say it in their names.
        weights: {name: file of weights} for profiles of one's own.
        trusted: Modules that profiles of one's own may run.

    Raises:
        SettingError: Some features are unknown, or two have the same store.
    """
    found: dict[str, str] = {}
    unknown = []
    for encoder in split_encoders(text):
        if is_hub_name(encoder):
            hub = read_hub_name(encoder)
            hub = replace(hub, fps=fps) if hub.fps is None and not hub.is_whole else hub
            if hub.store in found or hub.store in PROFILES:
                problem = f"its store would be called {hub.store!r}, like another one's; extract it by itself"
                raise SettingError("features", encoder, problem)
            found[hub.store] = hub.text
        elif is_custom_encoder(encoder) and encoder not in PROFILES:
            own = find_custom_encoder(encoder, trusted)
            name = own.profile.name
            if name in found or name in PROFILES:
                raise SettingError("features", encoder, f"its name {name!r} is another one's; give it one of its own")
            chosen = (weights or {}).get(name, PRETRAINED)
            found[name] = own.text if chosen == PRETRAINED else replace(own, weights=Path(chosen).absolute()).text
        elif encoder in PROFILES:
            found[encoder] = encoder
        else:
            unknown.append(encoder)
    if unknown:
        quoted = " and ".join(map(repr, unknown))
        expected = f"{', '.join(PROFILES)}, {', '.join(ALIASES)} or hf:ORG/MODEL"
        raise SettingError("features", text, f"features {quoted}: not known; expected {expected}")
    if fps is not None and not any(map(is_hub_name, found.values())):
        raise SettingError("fps", fps, f"the profiles of {', '.join(found)} have their own; leave it out")
    return found


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The settings of one process that extracts on one device. They are sent to other processes and machines."""

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


@dataclass(frozen=True, kw_only=True)
class ExtractionSettings:
    """The settings of ``extract_dataset``, ``plan_extraction`` and ``verify_dataset``.

    Raises:
        SettingError: Some features are unknown.
    """

    dataset: DatasetFolder
    features: str | Sequence[str] = ("s3d",)
    """Names of profiles or of encoders that a library loads, or a text such as "s3d,hf:ORG/MODEL". Becomes a list of
    the stores' names, with aliases resolved."""
    fps: float | None = None
    """Frames a second, for encoders of a library; None: their own, or 1 for images."""
    videos: Path | None = None
    """Folder of video files, or images, which are added to the data set's list. None: all videos of the list."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """{features: a checkpoint file, "pretrained" or "random"}; "pretrained" for features that are not named. Encoders
    of a library bring their own."""
    device: str = "auto"
    """"auto" (all GPUs of this machine, or its CPU), "cpu", "cuda", "cuda:N" or "mps"; or several, with commas between
    them. A process extracts on each."""
    precision: str = "fp32"
    """The number format of the networks: "fp32", "bf16" or, on a GPU, "fp16"."""
    decoding: str = EXACT
    """What decodes videos: "exact" (any decoder, all give the same pictures) or, on a GPU, "nvdec" (NVIDIA's video
    engine, whose pictures are nearly the same; it makes another profile)."""
    tf32: str = "convolutions"
    """Where NVIDIA GPUs compute fp32 in TF32: "none", "convolutions" or "all"."""
    stores: str | None = None
    """Address under which the feature stores lie, each in a folder of its own, if not in the data set's folder."""
    allowed_folders: Sequence[Path] = ()
    """Folders outside the root in which listed videos may lie. They are remembered for later calls."""
    allowed_hosts: Sequence[str] = ()
    """Hosts on this machine or in a private network that addresses of videos may name; other such hosts are refused."""
    retry_failed: bool = False
    """Extract only the videos that failed before."""
    verify_against: Path | None = None
    """Folder with features made by others. If given, only videos that it has features of are extracted."""

    trusted_modules: Sequence[str] = ()
    """Python modules that profiles of one's own (files) may run."""
    encoders: Mapping[str, str] = field(init=False, default_factory=dict)
    """{name of the store: encoder, such as "s3d" or "hf:ORG/MODEL"}."""

    def __post_init__(self) -> None:
        text = self.features if isinstance(self.features, str) else ",".join(self.features)
        object.__setattr__(self, "encoders", known_encoders(text, self.fps, self.weights, self.trusted_modules))
        object.__setattr__(self, "features", list(self.encoders))
        for name in ("videos", "verify_against"):  # callers from Python may pass a text
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        object.__setattr__(self, "allowed_folders", [Path(folder) for folder in self.allowed_folders])
        object.__setattr__(self, "allowed_hosts", [host_named(host) for host in self.allowed_hosts])

    @property
    def names(self) -> list[str]:
        """The names of the profiles."""
        return list(self.features)

    def for_worker(self, weights: Mapping[str, str], device: str, num_cores: int | None = None) -> WorkerSettings:
        """Return the settings of a process that extracts features with ``weights``, {features: weights}."""
        return WorkerSettings(
            dataset=self.dataset,
            weights=dict(weights),
            device=device,
            precision=self.precision,
            decoding=self.decoding,
            tf32=self.tf32,
            num_cores=num_cores,
            allowed_hosts=list(self.allowed_hosts),
        )

    def weights_of(self, name: str) -> str:
        """Return which weights the features ``name`` are computed with: those of an encoder of a library are its own,
        and named like it, with the revision that the hub has now.

        Raises:
            UserError: The files of such an encoder are missing.
        """
        encoder = self.encoders[name]
        if is_custom_encoder(encoder):
            return encoder
        if not is_hub_name(encoder):
            return self.weights.get(name, PRETRAINED)
        from ..storage.hub.files import pin_revision  # asks the hub

        return pin_revision(encoder)
