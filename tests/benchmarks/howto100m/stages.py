"""The stages of the benchmark: what each one calls, and how it is killed and continued."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlalign.storage.common.errors import UserError
from vlalign.storage.common.programs import python_command
from vlalign.storage.common.terminal import say

from .local_ray import LocalRay, Usage, disk_bytes

POLL_SECONDS = 0.05
LOG_TAIL = 1500
MOST_CONTINUED = 3
"""How often a call is repeated that ended by itself after a worker was killed."""


@dataclass(frozen=True)
class Stage:
    """A step of the benchmark: a command whose repetition continues it."""

    name: str
    module: str
    """Module whose ``main`` is the command."""
    options: Sequence[str]
    count: int
    unit: str
    """What the rate counts."""
    expected_seconds: float
    """About how long it takes, to choose when to kill."""
    on_ray: bool = True

    def command(self, ray: LocalRay) -> list[str]:
        """Return the command line."""
        program = f"import sys; from vlalign.{self.module} import main; sys.exit(main())"
        address = ["--address", ray.address] if self.on_ray else []
        return [*python_command(program), *address, *self.options]


@dataclass(frozen=True)
class Measured:
    """Time, memory and disk that a stage took, kills and repetitions included."""

    stage: Stage
    seconds: float
    processor_seconds: float
    """Of all processes together; on a busy machine it says more than the time."""
    memory_bytes: int
    """Of all processes together, those of Ray included."""
    disk_bytes: int
    """What it added."""
    kills: list[str]
    """What was killed: "driver" or "worker"."""

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.stage.count / self.seconds


class Killer:
    """SIGKILLs that are left, at random moments of random stages."""

    def __init__(self, num_kills: int, stages: Sequence[Stage], rng: random.Random) -> None:
        """Choose the stages, long ones more often."""
        self._rng = rng
        weights = [stage.expected_seconds for stage in stages]
        chosen = rng.choices(range(len(stages)), weights, k=num_kills)
        self._planned = {stage.name: chosen.count(number) for number, stage in enumerate(stages)}
        self.num_left_over = 0
        """Kills that stages which ended early left to the next ones."""

    def moments(self, stage: Stage) -> list[float]:
        """Return when to kill in a stage, in seconds after it began."""
        count, self.num_left_over = self._planned[stage.name] + self.num_left_over, 0
        return sorted(self._rng.uniform(0, stage.expected_seconds) for _ in range(count))

    def kill(self, driver: subprocess.Popen[bytes], ray: LocalRay) -> str:
        """Kill the driver, or a worker, if there is one. Return which."""
        workers = ray.workers()
        if workers and self._rng.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rng.choice(workers), signal.SIGKILL)
            return "worker"
        driver.kill()
        driver.wait()
        return "driver"


def run_stage(stage: Stage, ray: LocalRay, killer: Killer, folder: Path, log: Path) -> Measured:
    """Run a stage to its end, with kills in between.

    Args:
        stage: The stage.
        ray: Where it runs.
        killer: Says when to kill.
        folder: Folder of all data sets, whose growth is measured.
        log: Receives what the commands print.

    Raises:
        UserError: The command failed.
    """
    say(f"howto100m: {stage.name}, {stage.count:,} {stage.unit}")
    moments, kills, num_continued = killer.moments(stage), [], 0
    usage, disk_before, began = Usage(ray), disk_bytes(folder), time.monotonic()
    with usage.watched(), log.open("ab") as output:
        while True:
            driver = subprocess.Popen(
                stage.command(ray), env=ray.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
            try:
                code = _wait(driver, stage, ray, killer, (began, moments, kills))
            finally:
                driver.kill()
                driver.wait()
            if code == 0:
                break
            if code is not None:
                num_continued += 1
                if not kills or num_continued > MOST_CONTINUED:
                    raise UserError(f"howto100m: {stage.name} ended with code {code}; {log} ends with: {_tail(log)}")
    killer.num_left_over = len(moments)
    seconds = time.monotonic() - began
    took = f"{seconds:,.0f} s, {usage.processor_seconds:,.0f} s of the processor"
    say(f"howto100m: {stage.name} took {took}, killed: {', '.join(kills) or 'nothing'}")
    added = max(disk_bytes(folder) - disk_before, 0)
    return Measured(stage, seconds, usage.processor_seconds, usage.memory_bytes, added, kills)


def _wait(
    driver: subprocess.Popen[bytes],
    stage: Stage,
    ray: LocalRay,
    killer: Killer,
    plan: tuple[float, list[float], list[str]],
) -> int | None:
    """Wait for the end of a driver. Return its exit code; None if it was killed here."""
    began, moments, kills = plan
    while driver.poll() is None:
        if moments and time.monotonic() - began >= moments[0]:
            moments.pop(0)
            kills.append(killer.kill(driver, ray))
            say(f"howto100m: killed a {kills[-1]} of {stage.name} after {time.monotonic() - began:,.0f} s")
            if kills[-1] == "driver":
                return None
        time.sleep(POLL_SECONDS)
    return driver.returncode


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-LOG_TAIL:]
