"""The parent's side of a decoder process."""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...storage.common.programs import python_command, without_current_folder
from ...storage.common.system import SIGKILL, SIGXCPU
from . import link, sandbox
from .decode import Wanted
from .errors import VideoError
from .frame_memory import num_bytes_for
from .messages import Failed, Message, Nonsense, Request, RowReady, parse

SILENCE_SECONDS = 60.0
"""A decoder that sends nothing for this long hangs."""
VIDEOS_OF_A_CHILD = 500
"""After this many videos a new process takes over: libraries that decode for days leak."""
MAX_ANSWER_BYTES = 64 << 20
"""Longest message."""
CUDA_VARIABLES = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
"""They decide which GPU "cuda:0" is."""
COMMAND = "from vlalign.extract.decoding.child import main; main()"


class DecodeProcess:
    """A child process that decodes one video after another."""

    def __init__(self, wanted: Sequence[Wanted] = (), *, gpu: str = "") -> None:
        """Start the process.

        Args:
            wanted: What requests will want. There is room for windows of all of these, or else for small ones.
            gpu: The GPU whose video engine decodes, such as "cuda:0"; empty: none.
        """
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        environment = without_current_folder(sandbox.environment(os.environ)) | {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if gpu:
            environment |= {name: os.environ[name] for name in CUDA_VARIABLES if name in os.environ}
        self._link = link.start(python_command(COMMAND), gpu, num_bytes_for(wanted), environment, self._stderr)
        self._process, self._memory = self._link.process, self._link.memory
        self.connection = self._link.connection
        """Becomes readable when the child has sent something, or has ended."""
        self.num_videos = 0

    def start(
        self,
        path: Path,
        wanted: list[Wanted],
        *,
        sound: bool = False,
        without: Sequence[str] = (),
        seconds: float | None = None,
        only_probe: bool = False,
        clip: tuple[float, float] | None = None,
        folders: Sequence[str] | None = None,
    ) -> None:
        """Send a request; its answers come by ``receive``, the last being one of ``messages.LAST``.

        Args:
            path: The video.
            wanted: What picture profiles need.
            sound: Decode the sound, too.
            without: Decoders not to use.
            seconds: If given, only the first part of the video.
            only_probe: Read the packets and decode nothing.
            clip: If given, only cut out the part between these two seconds.
            folders: Where the file must lie when it is opened; None for anywhere.
        """
        self.num_videos += 1
        self._stderr.seek(0)
        self._stderr.truncate()
        request = Request(str(path), wanted, sound, list(without), seconds, only_probe, clip, folders=folders)
        with contextlib.suppress(ConnectionError):  # the child has ended; ``receive`` will say how
            self.connection.send_bytes(request.to_json())

    def receive(self) -> Message:
        """Return the next answer.

        Raises:
            VideoError: The video failed, the child has ended, or it sent nonsense.
        """
        try:
            message = parse(self.receive_bytes())
        except Nonsense as error:
            raise self.refused(error) from None
        if isinstance(message, Failed):
            raise VideoError(message.kind, message.words)
        return message

    def refused(self, error: Nonsense) -> VideoError:
        """Kill the child, which is no longer believed; return the error that stands in place of its answer."""
        self.kill()
        return VideoError("crashed", f"its decoder answered what no decoder answers ({error})")

    def receive_bytes(self) -> bytes:
        """Return the content that an answer announced.

        Raises:
            VideoError: The child has ended, or sent too much.
        """
        try:
            return self.connection.recv_bytes(MAX_ANSWER_BYTES)
        except (EOFError, ConnectionError):
            raise self._cause_of_end() from None
        except OSError:  # longer, and the connection is closed
            raise self.refused(Nonsense(f"more than {MAX_ANSWER_BYTES >> 20} MB at once")) from None

    def take_frames(self, row: RowReady, frames: np.ndarray) -> None:
        """Copy the frames of a row, after which the child may write others in their place.

        Args:
            row: The message, whose other fields the caller has checked.
            frames: Receives the frames.

        Raises:
            VideoError: They lie outside the memory, or the child does not take back its places.
        """
        if not 0 <= row.offset <= len(self._memory) - frames.nbytes:
            raise self.refused(Nonsense(f"frames at byte {row.offset:,}"))
        np.copyto(frames, np.ndarray(frames.shape, frames.dtype, self._memory, row.offset))
        try:
            self._link.tell_taken(b".")
        except BlockingIOError:
            raise self.refused(Nonsense("rows without end")) from None
        except ConnectionError:
            pass  # the child has ended; ``receive`` will say how

    def _cause_of_end(self) -> VideoError:
        code = self._process.wait()
        self._stderr.seek(0)
        words = " ".join(self._stderr.read()[-2000:].decode(errors="replace").split())[-200:]
        last_words = f"; its last words: {words}" if words else ""
        if code == -SIGXCPU:
            return VideoError("timeout", f"decoding took more processor time than a video may{last_words}")
        if code == -SIGKILL:
            reason = "the system killed its decoder, as it does when memory runs out"
            return VideoError("out_of_memory", f"{reason}{last_words}")
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        return VideoError("crashed", f"its decoder ended with {ending}{last_words}")

    @property
    def usable(self) -> bool:
        """True if the process runs and may decode another video."""
        return self._process.poll() is None and self.num_videos < VIDEOS_OF_A_CHILD

    def kill(self) -> None:
        """End the process, perhaps from another thread; who waits for an answer learns that there will be none."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the process and free what it held."""
        self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._stderr.close()
        self._link.close()
