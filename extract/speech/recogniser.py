"""The parent's side of a recogniser's process."""

import json
import os
import time
from collections.abc import Sequence

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.programs import python_command, without_current_folder
from ..decoding import process_link, sandbox
from ..decoding.errors import VideoError
from ..decoding.log_mel import RATE
from ..decoding.messages import InvalidMessage
from ..decoding.process import CUDA_VARIABLES, ConfinedChild
from .messages import Loaded, RecognisedPart, parse_answer
from .model import SpeechModel

COMMAND = "from vlalign.extract.speech.child import main; main()"
SILENCE_SECONDS = 900.0
"""A recogniser that sends nothing for this long is considered hung. The largest models take minutes for a batch on a
CPU.
"""
MAX_ANSWER_BYTES = 32 << 20


class Recogniser(ConfinedChild):
    """A child process with a model, which recognises the speech of one video after another."""

    called = "recogniser"

    def __init__(self, model: SpeechModel, device: str, num_threads: int) -> None:
        """Start the process, and wait until it has loaded the model.

        Args:
            model: The model.
            device: "cpu" or "cuda:N".
            num_threads: Threads on a CPU.

        Raises:
            UserError: The model cannot be loaded.
        """
        environment = without_current_folder(sandbox.environment(os.environ))
        environment |= {"OMP_NUM_THREADS": str(num_threads), "OPENBLAS_NUM_THREADS": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        if device != "cpu":
            environment |= {name: os.environ[name] for name in CUDA_VARIABLES if name in os.environ}
        num_bytes = process_link.num_bytes_for(())
        super().__init__(process_link.start(python_command(COMMAND), device, num_bytes, environment))
        files = {name: str(path) for name, path in model.files.items()}
        self.send_bytes(json.dumps({"files": files, "num_threads": num_threads}).encode())
        self.is_multilingual = False
        try:
            loaded = self._answer(1)
        except VideoError as error:
            self.close()
            raise UserError(
                f"weights {model.name}: the model cannot be loaded ({error}); pass another --weights"
            ) from None
        if not isinstance(loaded, Loaded):
            self.close()
            raise UserError(f"weights {model.name}: the model cannot be loaded ({loaded}); pass another --weights")
        self.is_multilingual = loaded.is_multilingual

    @property
    def silence_seconds(self) -> float:
        """Seconds without a message after which a recogniser is considered hung."""
        return SILENCE_SECONDS

    def begin(self) -> None:
        """Begin with another video."""
        self.num_videos += 1
        self._link.take_output()
        self._waited_seconds = 0.0

    def recognise(self, blocks: Sequence[bytes], *, is_last: bool) -> RecognisedPart:
        """Recognise the speech in a part of a video's sound.

        Args:
            blocks: int16 samples, mono, ``RATE`` a second.
            is_last: Whether no sound follows.

        Raises:
            VideoError: The process has ended, hangs, or answers nonsense.
        """
        content = b"".join(blocks)
        self.last_heard = time.monotonic()
        self.send_bytes(json.dumps(is_last).encode())
        self.send_bytes(content)
        answer = self._answer(len(content) // np.dtype(np.int16).itemsize)
        if not isinstance(answer, RecognisedPart):
            raise self.refused(InvalidMessage("another answer"))
        return answer

    def _answer(self, num_samples: int) -> RecognisedPart | Loaded | str:
        while True:
            try:
                answer = parse_answer(self.receive_bytes(MAX_ANSWER_BYTES), num_samples, RATE)
            except InvalidMessage as error:
                raise self.refused(error) from None
            if answer is not None:
                return answer
