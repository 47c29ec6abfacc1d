"""Settings of an extraction. Imports nothing heavy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..storage.common.errors import SettingError
from ..storage.layout import DatasetFolder
from ..storage.profiles import ALIASES, PROFILES, split_features
from ..storage.remote.addresses import host_named

PRETRAINED = "pretrained"


def known_features(text: str) -> list[str]:
    """Split a text such as "s3d,i3d" into names of profiles, with aliases resolved.

    Raises:
        SettingError: Some features are unknown.
    """
    names = split_features(text)
    if unknown := [name for name in names if name not in PROFILES]:
        quoted = " and ".join(map(repr, unknown))
        expected = f"{', '.join(PROFILES)} or {', '.join(ALIASES)}"
        raise SettingError("features", text, f"features {quoted}: not known; expected {expected}")
    return names


@dataclass(frozen=True, kw_only=True)
class ExtractionSettings:
    """The settings of ``extract_dataset``, ``plan_extraction`` and ``verify_dataset``.

    Raises:
        SettingError: Some features are unknown.
    """

    dataset: DatasetFolder
    features: str | Sequence[str] = ("s3d",)
    """Names of profiles, or a text such as "s3d,resnet152". Becomes a list of names, with aliases resolved."""
    videos: Path | None = None
    """Folder of video files, or images, which are added to the data set's list. None: all videos of the list."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """{features: a checkpoint file, "pretrained" or "random"}; "pretrained" for features that are not named."""
    device: str = "cpu"
    """"cpu", "cuda" or "cuda:N"."""
    precision: str = "fp32"
    """The number format of the networks: "fp32", "bf16" or, on a GPU, "fp16"."""
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

    def __post_init__(self) -> None:
        text = self.features if isinstance(self.features, str) else ",".join(self.features)
        object.__setattr__(self, "features", known_features(text))
        object.__setattr__(self, "allowed_hosts", [host_named(host) for host in self.allowed_hosts])

    @property
    def names(self) -> list[str]:
        """The names of the profiles."""
        return list(self.features)

    def weights_of(self, name: str) -> str:
        """Return which weights the features ``name`` are computed with."""
        return self.weights.get(name, PRETRAINED)
