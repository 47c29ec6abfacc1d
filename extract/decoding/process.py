"""The parent's side of a decoding child process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing import BufferTooShort
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from . import sandbox
from .decode import Wanted
from .messages import Failed, Message, Nonsense, Request, parse
from .probe import VideoError

SILENCE_SECONDS = 60.0
"""A child that is waited for and says nothing for so long hangs."""
VIDEOS_OF_A_CHILD = 500
"""Then a new one takes its place: libraries that decode for days leak."""
MOST_ANSWER_BYTES = 64 << 20
"""Of a message other than frames, whose size is known."""
COMMAND = "from vlalign.extract.decoding.child import main; main()"


class DecodeProcess:
    """A child process that decodes one video after another. ``connection`` can be waited for."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        environment = sandbox.environment(os.environ) | {
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=self._complaints,
                stderr=self._complaints,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        self.connection = Connection(ours.detach())
        self.num_videos = 0

    def start(
        self,
        path: Path,
        wanted: list[Wanted],
        *,
        sound: bool = False,
        without: list[str] = (),
        seconds: float | None = None,
        only_probe: bool = False,
    ) -> None:
        """Has a video decoded: the pictures ``wanted``, without the decoders ``without``, and its ``sound``; only the first ``seconds``.
        Or has it only probed. Its last answer: ``messages.LAST``.
        """
        self.num_videos += 1
        self._complaints.seek(0)
        self._complaints.truncate()
        request = Request(str(path), wanted, sound, list(without), seconds, only_probe)
        with contextlib.suppress(BrokenPipeError):  # it is gone: its answer will say how
            self.connection.send_bytes(request.to_json())

    def receive(self) -> Message:
        """The next answer. Raises ``VideoError`` where the child said that the video failed, is gone, or answered nonsense."""
        try:
            message = parse(self.receive_bytes())
        except Nonsense as error:
            raise self.refused(error) from None
        if isinstance(message, Failed):
            raise VideoError(message.kind, message.words)
        return message

    def refused(self, error: Nonsense) -> VideoError:
        """Ends the child, which nothing is believed of any more; what then stands in place of its answer."""
        self._process.kill()
        self._process.wait()
        return VideoError("crashed", f"its decoder answered what no decoder answers ({error})")

    def receive_bytes(self) -> bytes:
        try:
            return self.connection.recv_bytes(MOST_ANSWER_BYTES)
        except (EOFError, ConnectionError):
            raise self._epitaph() from None
        except OSError:  # longer, and the connection is closed
            raise self.refused(Nonsense(f"more than {MOST_ANSWER_BYTES >> 20} MB at once")) from None

    def receive_into(self, array: np.ndarray) -> None:
        try:
            num_bytes = self.connection.recv_bytes_into(memoryview(array).cast("B"))
        except (EOFError, ConnectionError):
            raise self._epitaph() from None
        except BufferTooShort as error:
            num_bytes = len(error.args[0])
        if num_bytes != array.nbytes:
            raise self.refused(Nonsense(f"{num_bytes:,} bytes in place of {array.nbytes:,}"))

    def _epitaph(self) -> VideoError:
        code = self._process.wait()
        self._complaints.seek(0)
        words = " ".join(self._complaints.read()[-2000:].decode(errors="replace").split())[-200:]
        last_words = f"; its last words: {words}" if words else ""
        if code == -signal.SIGXCPU:
            return VideoError("timeout", f"decoding took more processor time than a video may{last_words}")
        if code == -signal.SIGKILL:
            return VideoError(
                "out_of_memory", f"the system ended its decoder, as it does where memory runs out{last_words}"
            )
        return VideoError(
            "crashed", f"its decoder ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}{last_words}"
        )

    @property
    def usable(self) -> bool:
        return self._process.poll() is None and self.num_videos < VIDEOS_OF_A_CHILD

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._complaints.close()
