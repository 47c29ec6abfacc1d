"""Run an extraction on this machine, or elsewhere with another ``Runner``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...storage.common.system import available_cores
from ...storage.common.terminal import say
from ...storage.records import Profile
from .pending_work import Extraction

if TYPE_CHECKING:
    from ..decoding.errors import VideoError
    from .probing import ProbedVideo


@dataclass(frozen=True)
class Speed:
    """The speed of an extraction."""

    video_seconds_per_second: float
    where: str
    """The measured device, such as "this machine's cpu"."""


class Runner(Protocol):
    """Runs an extraction and probes videos."""

    def extract(self, extraction: Extraction) -> None:
        """Extract each video's missing features into the stores, and record failures."""
        ...

    def probe(
        self, videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile]
    ) -> "Iterator[tuple[str, ProbedVideo | VideoError]]":
        """Yield (id, facts or failure) for each video, in order of completion."""
        ...

    def measure_speed(self, extraction: Extraction, probed: "Sequence[ProbedVideo]") -> Speed:
        """Measure on the beginnings of a few videos how fast features are extracted."""
        ...


class LocalRunner:
    """Runs an extraction on this machine: in this process and its decoders, or in a process for each device."""

    def extract(self, extraction: Extraction) -> None:
        """Extract each video's missing features; see ``Runner``."""
        from ...storage.common.device import describe_devices, use_tf32  # imports torch
        from .device_workers import extract_on_devices
        from .local_tasks import LocalTasks, record_outcomes
        from .shard_writing import extract_into_stores
        from .store_extractor import choose_devices, make_extractors

        settings = extraction.settings
        use_tf32(settings.tf32)
        devices = choose_devices(settings, extraction.weights)[: len(extraction.tasks)]
        if len(devices) > 1 and settings.stores and not isinstance(settings.stores, str):
            say(f"note: your own stores are objects of this process, so it extracts alone, on {devices[0]}")
            devices = devices[:1]
        worker = settings.for_worker(extraction.weights, devices[0])
        tasks = LocalTasks(extraction, worker)
        if len(devices) == 1:
            events = extract_into_stores(worker, make_extractors(worker), tasks)
        else:
            events = extract_on_devices(extraction, devices, tasks)
        say(f"{settings.folder.path}: computes on {describe_devices(devices)}")
        record_outcomes(events, extraction, tasks)
        tasks.dispatch.raise_if_left()

    def probe(
        self, videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile]
    ) -> "Iterator[tuple[str, ProbedVideo | VideoError]]":
        """Probe the videos on all cores; see ``Runner``."""
        from .probing import probe_videos

        return probe_videos(videos, profiles, available_cores())

    def measure_speed(self, extraction: Extraction, probed: "Sequence[ProbedVideo]") -> Speed:
        """Measure the speed of this machine; see ``Runner``."""
        from ...storage.common.device import describe_devices, use_tf32
        from .speed import measure_worker_speed
        from .store_extractor import choose_devices

        settings = extraction.settings
        use_tf32(settings.tf32)
        devices = choose_devices(settings, extraction.weights)
        num_cores = max(available_cores() // len(devices), 1)
        speed = measure_worker_speed(settings.for_worker(extraction.weights, devices[0], num_cores), probed)
        return Speed(len(devices) * speed, f"this machine's {describe_devices(devices)}")
