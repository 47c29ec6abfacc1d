"""Hand back the work of a machine that will be gone soon: run ``python -m vlalign.ray_jobs.drain`` on it.

Ray starts nothing more on a machine that is drained. Its extraction workers notice it, write the videos that they have
finished, hand back the others and end; then Ray also ends there. No driver is needed.
"""

import argparse
import socket
import sys
import time
from collections.abc import Collection

from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # pyright: ignore[reportAttributeAccessIssue]
from ray.core.generated.gcs_pb2 import GcsNodeInfo  # pyright: ignore[reportAttributeAccessIssue]
from ray.exceptions import RayError

from ..storage.cli.command import run_command
from ..storage.cli.parser import new_parser
from ..storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, SettingError, UserError
from ..storage.common.terminal import say, warn
from .cluster import add_address, running_cluster

SECONDS = 60.0
POLL_SECONDS = 0.5
ANSWER_SECONDS = 10.0
"""Longest time that the cluster may take for an answer."""


class _Machines:
    """The machines of a cluster, as its head knows them."""

    def __init__(self, address: str) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
            self._client = GcsClient(address=address)
        except (OSError, ValueError, RayError) as error:
            raise self._no_answer(error) from None

    def up(self) -> dict[str, str]:
        """Return the IP address of each machine that is up, by its id."""
        try:
            nodes = self._client.get_all_node_info(timeout=ANSWER_SECONDS, state_filter=GcsNodeInfo.GcsNodeState.ALIVE)
        except RayError as error:
            raise self._no_answer(error) from None
        return {node.hex(): about.node_manager_address for node, about in nodes.items()}

    def drain(self, node: str, seconds: float) -> None:
        """Let Ray start nothing more on a machine, which will be gone after some seconds."""
        reason, until_ms = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION, int((time.time() + seconds) * 1000)
        try:
            self._client.drain_node(node, reason, "vlalign.ray_jobs.drain", until_ms, timeout=ANSWER_SECONDS)
        except RayError as error:
            raise self._no_answer(error) from None

    def _no_answer(self, error: Exception) -> UserError:
        reason = " ".join(str(error).split())[:300]
        return UserError(f"{self._address}: no Ray cluster answers ({reason}); expected HOST:PORT of its head")


def drain(address: str, *, all_machines: bool = False, seconds: float = SECONDS) -> bool:
    """Make the extraction workers of this machine write finished videos, hand back the rest, and end.

    Args:
        address: Address of the cluster, HOST:PORT.
        all_machines: Drain all machines of the cluster instead of this one.
        seconds: Time until they are gone, at most.

    Returns:
        True if nothing runs on them any more.

    Raises:
        UserError: No cluster answers.
    """
    started, machines = time.monotonic(), _Machines(address)
    up = machines.up()
    drained = {node for node in up if all_machines or _is_here(up[node])}
    for node in drained:
        machines.drain(node, seconds)
    while (left := drained & up.keys()) and time.monotonic() - started < seconds:
        time.sleep(POLL_SECONDS)
        up = machines.up()
    _report(drained - left, {up[node] for node in left}, time.monotonic() - started)
    return not left


def _is_here(ip: str) -> bool:
    """Return whether an IP address is one of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as listener:
        try:
            listener.bind((ip, 0))
        except OSError:
            return False
    return True


def _report(ended: Collection[str], left: Collection[str], seconds: float) -> None:
    if left:
        warn(
            f"{', '.join(sorted(left))}: still working after {seconds:.0f} s; videos that are not written in time "
            "are extracted again; pass a larger --seconds"
        )
    else:
        say(f"drained in {seconds:.0f} s: {len(ended)} machines; finished videos are on disk; others will do the rest")


def drain_command(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.seconds <= 0:
        raise SettingError("seconds", args.seconds, "expected more than 0")
    address = running_cluster(args.address)
    if address is None:
        raise UserError("you have no Ray cluster on this machine; pass --address HOST:PORT of its head")
    return EXIT_DONE if drain(address, all_machines=args.all, seconds=args.seconds) else EXIT_INCOMPLETE


def main(argv: list[str] | None = None) -> int:
    """Run the command ``python -m vlalign.ray_jobs.drain`` and return its exit code."""
    parser = new_parser(
        "python -m vlalign.ray_jobs.drain",
        "Hand back the work of this machine of a Ray cluster before the machine goes away.",
        "python -m vlalign.ray_jobs.drain --seconds 90",
    )
    add_address(parser)
    parser.add_argument("--all", action="store_true", help="drain all machines of the cluster")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="longest time to wait for the end (default: %(default)g)"
    )
    return run_command(drain_command, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
