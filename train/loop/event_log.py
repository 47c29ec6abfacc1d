"""The figures of each training step, in a file and for TensorBoard."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ...storage.common.errors import UserError
from ...storage.common.files import write_text
from ...storage.common.packages import missing_package_message
from ...storage.common.terminal import say
from ...storage.common.writing import make_folder, open_to_read, open_to_write
from ..runs.files import EVENTS_FILE, TENSORBOARD_FOLDER

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class EventLog:
    """The figures of each step, in ``events.jsonl`` and for TensorBoard."""

    def __init__(self, folder: Path, step: int) -> None:
        """Continue the log in a run's folder after ``step`` steps; remove later entries: training repeats them."""
        self._file = _open_events(folder / EVENTS_FILE, step)
        self._board = _open_board(folder / TENSORBOARD_FOLDER, step)

    def write(self, event: dict[str, Any]) -> None:
        """Add a step's figures; "step" is one of them."""
        self._file.write(json.dumps(event) + "\n")
        for name, value in event.items():
            if name != "step" and self._board:
                self._board.add_scalar(name, value, event["step"])

    def flush(self) -> None:
        """Write the buffered lines."""
        self._file.flush()
        if self._board:
            self._board.flush()

    def close(self) -> None:
        """Close both logs."""
        self._file.close()
        if self._board:
            self._board.close()


def _open_board(folder: Path, step: int) -> "SummaryWriter | None":
    try:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import
    except ModuleNotFoundError as error:
        if missing := missing_package_message(error):
            say(f"note: no curves for TensorBoard: {missing}")
            return None
        raise
    make_folder(folder)
    for path in folder.iterdir():  # TensorBoard's file names contain the time, so they can be guessed
        if path.is_symlink():
            raise UserError(f"{path}: is a symbolic link, which TensorBoard would follow; remove it")
    return SummaryWriter(folder, purge_step=step + 1)


def _open_events(path: Path, step: int) -> TextIO:
    lines: list[str] = []
    if step:
        with open_to_read(path, encoding="utf-8") as file:
            lines = file.readlines()[:step]
    write_text(path, "".join(lines))
    return open_to_write(path, "a", encoding="utf-8")


def logged(folder: Path, name: str) -> dict[int, float]:
    """Return {step: value} of a figure, for the steps of a run that logged it. Reads one line at a time."""
    with open_to_read(folder / EVENTS_FILE) as file:
        events = (json.loads(line) for line in file if f'"{name}"' in line)
        return {event["step"]: event[name] for event in events}
