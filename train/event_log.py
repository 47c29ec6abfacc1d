"""The figures of each training step, in a file and for TensorBoard."""

import json
from pathlib import Path
from typing import Any, TextIO

from ..storage.common.safe_open import own_file
from ..storage.files import write_text
from .run_layout import EVENTS_FILE, TENSORBOARD_FOLDER


class EventLog:
    """The figures of each step, in ``events.jsonl`` and for TensorBoard."""

    def __init__(self, folder: Path, step: int) -> None:
        """Continue the log in a run's folder after ``step`` steps; those of later steps are done again."""
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        self._file = _open_events(folder / EVENTS_FILE, step)
        self._board = SummaryWriter(folder / TENSORBOARD_FOLDER, purge_step=step + 1)

    def write(self, event: dict[str, Any]) -> None:
        """Add a step's figures; "step" is one of them."""
        self._file.write(json.dumps(event) + "\n")
        for name, value in event.items():
            if name != "step":
                self._board.add_scalar(name, value, event["step"])

    def flush(self) -> None:
        """Write out what is buffered."""
        self._file.flush()
        self._board.flush()

    def close(self) -> None:
        """Close both logs."""
        self._file.close()
        self._board.close()


def _open_events(path: Path, step: int) -> TextIO:
    lines: list[str] = []
    if step:
        with open(path, encoding="utf-8", opener=own_file) as file:
            lines = file.readlines()[:step]
    write_text(path, "".join(lines))
    return open(path, "a", encoding="utf-8", opener=own_file)
