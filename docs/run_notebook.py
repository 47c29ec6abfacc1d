"""Run the cells of a notebook, and keep what they show.

    python docs/run_notebook.py docs/tutorials/notebook.ipynb FOLDER            run it; an error in a cell ends it
    python docs/run_notebook.py docs/tutorials/notebook.ipynb FOLDER --write    put into the notebook what was shown

The cells run in FOLDER, in IPython, which is what Jupyter runs them in, too.
"""

import argparse
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib_inline.backend_inline import configure_inline_support
from traitlets.config import Config

PICTURE = "image/png"


def read(path: Path) -> dict[str, Any]:
    """Return a notebook's content."""
    return json.loads(path.read_text(encoding="utf-8"))


def run(notebook: dict[str, Any], folder: Path) -> list[list[dict[str, Any]]]:
    """Run all code cells; return the outputs of each, in the notebook's format.

    Raises:
        Exception: The error of the first cell that fails.
    """
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    matplotlib.use("inline")
    configure_inline_support(shell, "inline")
    before, shown = Path.cwd(), []
    os.chdir(folder)
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                with capture_output() as captured:
                    result = shell.run_cell("".join(cell["source"]))
                result.raise_error()
                shown.append(outputs_of(captured.stdout, captured.outputs))
    finally:
        os.chdir(before)
    return shown


def outputs_of(printed: str, displayed: list[Any]) -> list[dict[str, Any]]:
    """Return printed text, followed by displayed objects, as a notebook's outputs."""
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    for rich in displayed:
        if PICTURE in rich.data:
            picture = rich.data[PICTURE]
            data = {PICTURE: picture if isinstance(picture, str) else base64.b64encode(picture).decode()}
        else:
            data = {"text/plain": rich.data["text/plain"].splitlines(keepends=True)}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return outputs


def write(path: Path, shown: list[list[dict[str, Any]]]) -> None:
    """Write outputs into a notebook."""
    notebook = read(path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(cells, shown, strict=True), start=1):
        cell["execution_count"], cell["outputs"] = number, outputs
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def as_markdown(notebook: dict[str, Any], stem: str = "notebook") -> tuple[str, dict[str, bytes]]:
    """Return a notebook with its outputs as a page, and the page's figures by file name.

    A cell that draws has the figure's alternative text in its metadata, as ``alt``. ``stem`` begins the figures' names.
    """
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", [])})
            if PICTURE in data:
                name = f"{stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data[PICTURE])
                parts.append(f"![{cell['metadata']['alt']}]({name})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def main() -> int:
    """Run a notebook."""
    parser = argparse.ArgumentParser(description="Run the cells of a notebook.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("folder", type=Path, help="where the cells run")
    parser.add_argument("--write", action="store_true", help="put into the notebook what was shown")
    args = parser.parse_args()
    shown = run(read(args.notebook), args.folder)
    if args.write:
        write(args.notebook, shown)
    print(f"{len(shown)} cells ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
