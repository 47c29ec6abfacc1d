"""Read the text of frames in a separate process."""

import contextlib
import json
import os
import subprocess
from typing import Any

import numpy as np

from ...storage.common.child_connection import start_connected
from ...storage.common.programs import python_command, without_current_folder
from ...storage.common.validation import is_number
from ..decoding import sandbox
from ..decoding.errors import VideoError
from .lines import TextLine
from .model import check_installed

FRAME_SECONDS = 120.0
"""Time limit for reading a frame or loading the models. A frame of 1280 x 720 takes about 1.5 s of one core."""
END_SECONDS = 2.0
"""Time limit for the exit of a process that has closed its connection."""
MAX_LINES, MAX_CHARACTERS, MAX_ANSWER_BYTES = 1000, 1000, 8 << 20
COMMAND = "from vlalign.extract.ocr.child import main; main()"


class TextReader:
    """Reads the text of frames in a confined process. Use it in a ``with`` statement, which ends the process.

    >>> with TextReader() as reader:  # doctest: +SKIP
    ...     reader.read(np.full((720, 1280, 3), 255, np.uint8))
    []
    """

    def __init__(self) -> None:
        """Start the process, which loads the models.

        Raises:
            UserError: RapidOCR is not installed.
        """
        check_installed()
        environment = without_current_folder(sandbox.environment(os.environ))
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process, self._connection = start_connected(python_command(COMMAND), environment)
        self._is_ready = False

    def __enter__(self) -> "TextReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def usable(self) -> bool:
        """False once it has been closed, such as after an error."""
        return not self._connection.closed

    def read(self, frame: np.ndarray) -> list[TextLine]:
        """Return the lines of text in a frame, from top to bottom as the library orders them.

        Args:
            frame: RGB uint8 [H, W, 3], upright. Letters should be 14 px high or higher.

        Raises:
            VideoError: The process ended, or did not answer in time. This reader can then no longer be used.
        """
        if not self._is_ready:
            self._receive()
            self._is_ready = True
        with contextlib.suppress(ConnectionError):  # ``_receive`` reports how it ended
            self._connection.send_bytes(json.dumps(frame.shape[:2]).encode())
            self._connection.send_bytes(np.ascontiguousarray(frame).reshape(-1).data)
        return self._receive()

    def _receive(self) -> list[TextLine]:
        try:
            if not self._connection.poll(FRAME_SECONDS):
                self.close()
                raise VideoError("timeout", f"its text was not read within {FRAME_SECONDS:.0f} s")
            return [_line(values) for values in _list(json.loads(self._connection.recv_bytes(MAX_ANSWER_BYTES)))]
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            self.close()
            how = f"exit code {self._process.returncode}"
            raise VideoError("crashed", f"the process that reads its text ended with {how}") from None
        except (ValueError, TypeError, RecursionError):
            self.close()
            raise VideoError("crashed", "the process that reads its text sent an invalid answer") from None

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                self._process.kill()
        self._process.wait()
        self._connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()


def _list(answer: Any) -> list[Any]:
    if not isinstance(answer, list) or len(answer) > MAX_LINES:
        raise ValueError("not some lines")
    return answer


def _line(values: Any) -> TextLine:
    """Check and return a line of an answer, which comes from a process that reads untrusted frames."""
    text, confidence, *box = values
    numbers = [confidence, *box]
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS or len(box) != 4:
        raise ValueError("not a line")
    if not all(is_number(number) and 0 <= number <= 1 for number in numbers):
        raise ValueError("a line with impossible numbers")
    text.encode()  # refuses half of a surrogate pair
    left, top, right, bottom = map(float, box)
    return TextLine(" ".join(text.split()), float(confidence), (left, top, right, bottom))
