"""The place where an extraction runs: this process, or wherever another ``Runner`` takes it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...storage.common.problems import Problems
from ...storage.common.system import available_cores
from ...storage.common.terminal import say
from ...storage.records import Profile
from ..settings import ExtractionSettings
from .work_list import Todo, WorkList

if TYPE_CHECKING:
    from ..decoding.errors import VideoError
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
    """Runs an extraction on this machine: in this process and its decoders, or in a process for each device."""

    def extract(
        self, settings: ExtractionSettings, work: WorkList, todo: Todo, weights: Mapping[str, str], problems: Problems
    ) -> None:
        """Extract each video's missing features; see ``Runner``."""
        from ...storage.common.device import describe_devices, use_tf32  # imports torch
        from .device_workers import extract_on_devices
        from .store_extractor import choose_devices, make_extractors
        from .write import extract_into_stores, job_of, run_extraction

        use_tf32(settings.tf32)
        dataset, precision, hosts = work.dataset, settings.precision, list(settings.allowed_hosts)
        devices = choose_devices(dataset, weights, settings.device, precision)[: len(todo)]
        if len(devices) == 1:
            made = make_extractors(dataset, weights, device=devices[0], precision=precision, decoding=settings.decoding)
            jobs = (job_of(dataset, video, [made[name] for name in left]) for video, left in todo)
            events = extract_into_stores(dataset, jobs, list(made.values()), allowed_hosts=hosts)
        else:
            events = extract_on_devices(settings, todo, weights, devices)
        say(f"{dataset.path}: computes on {describe_devices(devices)}")
        run_extraction(events, work, len(todo), problems)

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
        from ...storage.common.device import describe_devices, use_tf32
        from .probing import measure_speed_with
        from .store_extractor import choose_devices

        use_tf32(settings.tf32)
        devices = choose_devices(settings.dataset, weights, settings.device, settings.precision)
        num_cores = max(available_cores() // len(devices), 1)
        speed = measure_speed_with(settings, probed, weights, device=devices[0], num_cores=num_cores)
        return Speed(len(devices) * speed, f"this machine's {describe_devices(devices)}")
