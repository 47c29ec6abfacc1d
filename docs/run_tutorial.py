"""Run the commands of a tutorial, and compare what they print with the page.

    python docs/run_tutorial.py docs/tutorials/search.md FOLDER            compare
    python docs/run_tutorial.py docs/tutorials/search.md FOLDER --write    put this machine's figures into the page

The commands stand in blocks of ``console``, after "$ " and, for further lines, "> ". They run in FOLDER, one after the
other, in one shell. The lines below a command are what it prints, figures and quotations apart; "..." stands for lines
that the page leaves out, and ``SHOWN_FOLDER`` for FOLDER.
"""

import argparse
import os
import re
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED = "..."
SHOWN_FOLDER = "/mnt/shared"
FIGURE = re.compile(r"-?\d[\d,.:]*")
QUOTED = re.compile(r'"[^"]*"')
PROGRESS = re.compile(r"^[^%]+: +\d+%")
"""Progress lines are not compared: their number depends on the machine."""


@dataclass
class Step:
    """A command of a tutorial, and the lines that the page shows of its output."""

    command: str
    first_line: int
    """Number of the first shown line in the page, from 0."""
    shown: list[str] = field(default_factory=list)


def steps_of(page: str) -> list[Step]:
    """Return the commands of a page in order."""
    steps: list[Step] = []
    is_console = False
    for number, line in enumerate(page.splitlines()):
        if line.startswith("```"):
            is_console = line == "```console"
        elif is_console and line.startswith("$ "):
            steps.append(Step(line[2:], number + 1))
        elif is_console and line.startswith("> ") and not steps[-1].shown:
            steps[-1].command += f"\n{line[2:]}"
            steps[-1].first_line = number + 1
        elif is_console:
            steps[-1].shown.append(line)
    return steps


def outline(line: str) -> str:
    """Return a line without its figures, its quotations, and the widths of its columns."""
    return " ".join(FIGURE.sub("#", QUOTED.sub('""', line)).split())


def matched(shown: list[str], printed: list[str]) -> list[str] | None:
    """Return the shown lines with the figures that were printed; None if other lines were printed."""
    printed = [line.rstrip() for line in printed if not PROGRESS.match(line)]
    outlines = [outline(line) for line in printed]
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == SKIPPED:
            parts.append([])
        elif not PROGRESS.match(line):
            parts[-1].append(outline(line))
    found: list[str] = []
    position = 0
    for number, part in enumerate(parts):
        first, last = position, len(printed) - len(part)
        if number == 0:
            last = min(last, 0)
        if number == len(parts) - 1:
            first = max(first, last)
        start = next((at for at in range(first, last + 1) if outlines[at : at + len(part)] == part), None)
        if start is None:
            return None
        position = start + len(part)
        found += printed[start:position]
    lines = iter(found)
    result = [line if line == SKIPPED or PROGRESS.match(line) else next(lines) for line in shown]
    return result if position == len(printed) else None


def run(steps: list[Step], folder: Path) -> tuple[list[list[str]], bool]:
    """Run commands in one shell, up to one that fails; return the lines of each, and whether all ended well."""
    mark, folder = uuid.uuid4().hex, folder.resolve()
    script = "".join(f"{step.command}\necho {mark} $?\n" for step in steps)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": path, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert shell.stdout is not None
    outputs: list[list[str]] = [[]]
    with shell, shell.stdout:
        for line in shell.stdout:
            text, _, code = line.rstrip("\n").partition(mark)
            if not code:
                outputs[-1].append(text.replace(str(folder), SHOWN_FOLDER))
                continue
            if code.strip() != "0":
                shell.kill()
                return outputs, False
            outputs.append([])
    return outputs[:-1], True


def differences(page: Path, folder: Path, *, write: bool = False) -> list[str]:
    """Run a page's commands in ``folder``; return what differs from the page, one text for each command.

    Args:
        page: The tutorial.
        folder: Where the commands run.
        write: Put the figures that were printed into the page.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    steps = steps_of("\n".join(lines))
    outputs, ended_well = run(steps, folder)
    wrong = []
    for step, printed in zip(steps, outputs, strict=False):
        found = matched(step.shown, printed)
        if found is None:
            wrong.append("\n".join([f"$ {step.command}", "--- the page", *step.shown, "--- printed", *printed]))
        else:
            lines[step.first_line : step.first_line + len(step.shown)] = found
    if not ended_well:
        wrong.append(f"$ {steps[len(outputs) - 1].command}\nended with an error, and nothing after it was run")
    if write:
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return wrong


def main() -> int:
    """Run one tutorial."""
    parser = argparse.ArgumentParser(description="Run the commands of a tutorial.")
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path, help="where the commands run")
    parser.add_argument("--write", action="store_true", help="put what was printed into the page")
    args = parser.parse_args()
    wrong = differences(args.page, args.folder, write=args.write)
    print("\n\n".join(wrong) or "all commands print what the page shows")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
