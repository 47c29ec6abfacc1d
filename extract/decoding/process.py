"""The parent's side of a decoder process."""

import contextlib
import os
import struct
import time
from collections.abc import Sequence

import numpy as np

from ...storage.common.programs import python_command, without_current_folder
from ...storage.common.system import SIGKILL, SIGXCPU
from . import process_link as link
from . import sandbox
from .errors import LAST_WORDS, VideoError
from .messages import Failed, InvalidMessage, Message, Request, WindowReady, parse
from .process_link import num_bytes_for
from .sampling import FrameSpec

SILENCE_SECONDS = 60.0
"""A decoder that sends nothing for this long is considered hung."""
MAX_VIDEOS_PER_PROCESS = 500
"""After this many videos a new process takes over, since libraries that decode for days leak memory."""
MAX_WAIT_SECONDS = 24 * 60 * 60.0
"""Maximum time for one video. A decoder that takes longer is stopped, even if it sends messages."""
MAX_ANSWER_BYTES = 64 << 20
"""Maximum size of the content that a message announces."""
MAX_MESSAGE_BYTES = 1 << 20
"""Maximum size of a message itself. A parsed message can take a hundred times as much memory."""
MAX_PART_BYTES = 1 << 20
HEADER = struct.Struct("!i")
"""Header that ``multiprocessing``'s connections send before each message: its length."""
CUDA_VARIABLES = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
"""Environment variables that decide which GPU "cuda:0" is."""
COMMAND = "from vlalign.extract.decoding.child import main; main()"
COMMAND_WITH_SHOTS = "from vlalign.extract.decoding.child import main; main(shots=True)"


class ConfinedChild:
    """A child process that answers one request after another. Its answers are untrusted."""

    called = "decoder"
    """Name of the child in messages."""

    def __init__(self, parent_link: link.ParentLink) -> None:
        """Take the link with a process that has been started."""
        self._link = parent_link
        self._process, self._memory = parent_link.process, parent_link.memory
        self.connection = parent_link.connection
        """Readable when the child has sent something or has ended."""
        self.num_videos = 0
        self.last_heard = time.monotonic()
        """Time of the child's last message. A caller that paused reading sets it to the time at which it continues."""
        self._waited_seconds = 0.0

    @property
    def silence_seconds(self) -> float:
        """Seconds without a message after which the child is considered hung."""
        return SILENCE_SECONDS

    def send_bytes(self, content: bytes) -> None:
        """Send a message. If the child has ended or hangs, the next ``receive_bytes`` raises an error that says
        why."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.connection.settimeout(self.silence_seconds)
            self.connection.sendall(HEADER.pack(len(content)) + content)

    def refused(self, error: InvalidMessage) -> VideoError:
        """Kill a child that sent an invalid answer; return the error that replaces the answer."""
        self.kill()
        return VideoError("crashed", f"its {self.called} sent an invalid answer ({error})")

    def receive_bytes(self, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
        """Return the bytes that an answer announced.

        Raises:
            VideoError: The child has ended, was silent for too long, or sent too much.
        """
        try:
            (num_bytes,) = HEADER.unpack(self._read(HEADER.size, self.last_heard + self.silence_seconds))
            now = time.monotonic()
            self._waited_seconds += now - self.last_heard
            self.last_heard = now
            if not 0 <= num_bytes <= max_bytes:
                raise self.refused(InvalidMessage(f"more than {max_bytes:,} bytes at once"))
            if self._waited_seconds > MAX_WAIT_SECONDS:
                raise TimeoutError
            return self._read(num_bytes, now + self.silence_seconds)
        except (TimeoutError, BlockingIOError):
            self.kill()
            reason = f"sent no complete answer for {self.silence_seconds:.0f} s, or ran for a day"
            raise VideoError("timeout", f"its {self.called} {reason}") from None
        except (EOFError, ConnectionError):
            raise self._cause_of_end() from None

    def _read(self, num_bytes: int, until: float) -> bytes:
        """Return the child's bytes that arrive before ``until``, on the clock of ``time.monotonic``."""
        received = bytearray()
        while len(received) < num_bytes:
            self.connection.settimeout(max(until - time.monotonic(), 0))
            part = self.connection.recv(min(num_bytes - len(received), MAX_PART_BYTES))
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    @property
    def is_silent(self) -> bool:
        """True if the child has been silent for too long: ``receive`` would raise an error."""
        return time.monotonic() - self.last_heard > self.silence_seconds

    def _cause_of_end(self) -> VideoError:
        code = self._process.wait()
        words = " ".join(self._link.take_output()[-2000:].decode(errors="replace").split())[-200:]
        last_words = f"{LAST_WORDS}{words}" if words else ""
        if code == -SIGXCPU:
            return VideoError(
                "timeout", f"its {self.called} used more processor time than the limit for a video{last_words}"
            )
        if code == -SIGKILL:
            reason = f"the system killed its {self.called}, as it does when memory runs out"
            return VideoError("out_of_memory", f"{reason}{last_words}")
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        return VideoError("crashed", f"its {self.called} ended with {ending}{last_words}")

    @property
    def usable(self) -> bool:
        """True if the process runs and may decode another video."""
        return self._process.poll() is None and self.num_videos < MAX_VIDEOS_PER_PROCESS

    def kill(self) -> None:
        """Kill the process, possibly from another thread; a waiting ``receive`` raises an error."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the process and free its resources."""
        self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._link.close()


class DecodeProcess(ConfinedChild):
    """A child process that decodes one video after another."""

    def __init__(self, specs: Sequence[FrameSpec] = (), *, gpu: str = "", shots: bool = False) -> None:
        """Start the process.

        Args:
            specs: The ``specs`` of later requests, which determine the size of the shared memory.
            gpu: The GPU whose video engine decodes, such as "cuda:0"; empty for none.
            shots: Allow requests for shots, whose library must be installed.
        """
        environment = without_current_folder(sandbox.environment(os.environ))
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if gpu:
            environment |= {name: os.environ[name] for name in CUDA_VARIABLES if name in os.environ}
        command = python_command(COMMAND_WITH_SHOTS if shots else COMMAND)
        super().__init__(link.start(command, gpu, num_bytes_for(specs), environment))

    def start(self, request: Request) -> None:
        """Send a request. ``receive`` returns its answers; the last one is of a type in ``messages.LAST``."""
        self.num_videos += 1
        self._link.take_output()
        self.last_heard, self._waited_seconds = time.monotonic(), 0.0
        self.send_bytes(request.to_json())

    def receive(self) -> Message:
        """Return the next answer.

        Raises:
            VideoError: The video failed, or the child has ended, was silent for too long, or sent an invalid message.
        """
        try:
            message = parse(self.receive_bytes(MAX_MESSAGE_BYTES))
        except InvalidMessage as error:
            raise self.refused(error) from None
        if isinstance(message, Failed):
            raise VideoError(message.kind, message.words)
        return message

    def take_frames(self, window: WindowReady, frames: np.ndarray) -> None:
        """Copy the frames of a window; the child may overwrite them afterwards.

        Args:
            window: The message. The caller has checked its other fields.
            frames: Receives the frames.

        Raises:
            VideoError: The frames are outside the memory, or the child does not read the reports of copied windows.
        """
        if not 0 <= window.offset <= len(self._memory) - frames.nbytes:
            raise self.refused(InvalidMessage(f"frames at byte {window.offset:,}"))
        np.copyto(frames, np.ndarray(frames.shape, frames.dtype, self._memory, window.offset))
        try:
            self._link.tell_taken(b".")
        except BlockingIOError:
            raise self.refused(InvalidMessage("windows without end")) from None
        except ConnectionError:
            pass  # the child has ended; ``receive`` reports how
