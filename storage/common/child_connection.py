"""A connection with a child process.

On Linux the child inherits one end of a pair of sockets. Elsewhere it connects over the loopback interface and sends a
secret from its environment, since other users of the machine can also reach the port.
"""

import contextlib
import hmac
import os
import secrets
import socket
import subprocess
from collections.abc import Mapping
from multiprocessing.connection import Connection

from .system import IS_LINUX

PARENT_ENV_VAR = "VLALIGN_PARENT"
"""Environment variable that gives a child the descriptor, or the port and the secret, of its connection."""
LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.2
SECRET_SECONDS = 5.0


class ConnectionServer:
    """The parent's side: a port at which its children connect."""

    def __init__(self) -> None:
        self._server = socket.create_server((LOOPBACK, 0))
        self._server.settimeout(POLL_SECONDS)
        self._secret = secrets.token_hex(16)

    def environment(self) -> dict[str, str]:
        """Return the environment variable that allows a child to connect."""
        return {PARENT_ENV_VAR: f"{self._server.getsockname()[1]} {self._secret}"}

    def wait_for(self, child: subprocess.Popen[bytes]) -> socket.socket:
        """Return the next connection from a child; if the child ends first, one that is closed at the other end."""
        while child.poll() is None:
            try:
                found, _ = self._server.accept()
            except TimeoutError:
                continue
            found.settimeout(SECRET_SECONDS)
            try:
                if hmac.compare_digest(_receive(found, len(self._secret)), self._secret.encode()):
                    found.settimeout(None)
                    return found
            except OSError:
                pass
            found.close()
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()


def start_connected(command: list[str], environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that calls ``parent_socket``; return it and its connection.

    Its standard input is a pipe that closes when this process ends, for whatever reason.
    """
    if IS_LINUX:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            variables = {**environment, PARENT_ENV_VAR: str(descriptor)}
            child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor], env=variables)
        return child, Connection(ours.detach())
    with contextlib.closing(ConnectionServer()) as entrance:
        variables = {**environment, **entrance.environment()}
        child = subprocess.Popen(command, stdin=subprocess.PIPE, env=variables)
        return child, Connection(entrance.wait_for(child).detach())


def parent_socket() -> socket.socket:
    """Return the socket to the process that started this one with ``start_connected``."""
    if not IS_LINUX:
        return connect()
    ours = socket.socket(fileno=int(os.environ.pop(PARENT_ENV_VAR)))
    ours.set_inheritable(False)  # otherwise it would stay open in processes that outlive this one
    return ours


def connect(*, last: bool = True) -> socket.socket:
    """Connect this process to the ``ConnectionServer`` of the process that started it.

    Args:
        last: Delete the secret afterwards, so that children of this process do not get it.
    """
    port, secret = os.environ[PARENT_ENV_VAR].split()
    if last:
        del os.environ[PARENT_ENV_VAR]
    connection = socket.create_connection((LOOPBACK, int(port)))
    connection.sendall(secret.encode())
    return connection


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes and (part := connection.recv(num_bytes - len(received))):
        received += part
    return received
