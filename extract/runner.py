"""The place where an extraction runs: this process, or wherever another ``Runner`` takes it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..storage.common.problems import Problems
from ..storage.common.processes import available_cores
from ..storage.records import Profile
from .settings import ExtractionSettings
from .work import Todo, WorkList

if TYPE_CHECKING:
    from .decoding.errors import VideoError
    from .probing import Probed


@dataclass(frozen=True)
class Speed:
    """The speed of an extraction."""

    video_seconds_per_second: float
    where: str
    """The measured device, such as "this machine's cpu"."""


class Runner(Protocol):
    """Carries out an extraction, and finds out what one would cost."""

    def extract(
        self, settings: ExtractionSettings, work: WorkList, todo: Todo, weights: Mapping[str, str], problems: Problems
    ) -> None:
        """Extract each video's missing features into the stores.

        Args:
            settings: What was asked for.
            work: Receives the failures.
            todo: The videos and the features that they need.
            weights: {features: weights} of all features that are needed.
            problems: Receives videos that failed or are damaged.
        """
        ...

    def probe(
        self, videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile]
    ) -> "Iterator[tuple[str, Probed | VideoError]]":
        """Yield (id, what is in it or why it cannot be read) for each video, in the order in which they are done."""
        ...

    def measure_speed(
        self, settings: ExtractionSettings, probed: "Sequence[Probed]", weights: Mapping[str, str]
    ) -> Speed:
        """Measure on the beginnings of a few videos how fast features with ``weights`` are extracted."""
        ...


class LocalRunner:
    """Runs an extraction in this process and its decoders."""

    def extract(
        self, settings: ExtractionSettings, work: WorkList, todo: Todo, weights: Mapping[str, str], problems: Problems
    ) -> None:
        """Extract each video's missing features; see ``Runner``."""
        from .run import run_extraction
        from .store_extractor import make_extractor

        extractors = {
            name: make_extractor(work.dataset, name, chosen, device=settings.device, precision=settings.precision)
            for name, chosen in weights.items()
        }
        run_extraction(work, todo, extractors, problems, allowed_hosts=settings.allowed_hosts)

    def probe(
        self, videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile]
    ) -> "Iterator[tuple[str, Probed | VideoError]]":
        """Probe the videos on all cores; see ``Runner``."""
        from .probing import probe_videos

        return probe_videos(videos, profiles, available_cores())

    def measure_speed(
        self, settings: ExtractionSettings, probed: "Sequence[Probed]", weights: Mapping[str, str]
    ) -> Speed:
        """Measure the speed of this machine; see ``Runner``."""
        from .probing import measure_speed_with

        return Speed(measure_speed_with(settings, probed, weights), f"this machine's {settings.device}")
