"""The pages of the reference, made from the code when the site is built."""

import contextlib
import importlib
import io
from pathlib import Path

import python_reference
import run_notebook
from error_messages import GAP, error_messages
from vlalign.storage.cli.all_commands import COMMANDS
from vlalign.storage.cli.parser import Parser
from vlalign.storage.profiles import PROFILES

PAGES = {
    "options": "Options of all commands",
    "profiles": "Profiles",
    "errors": "Error messages",
    "python": "Python",
    "notebook": "The demo from Python",
}
"""{name of a page: its title}"""
NOTEBOOK = Path(__file__).resolve().parent / "tutorials" / "notebook.ipynb"


def write(folder: Path) -> None:
    """Write all pages into a folder, and those of the Python reference into its folder ``python``."""
    folder.mkdir(exist_ok=True)
    pages = {
        "options": options_page,
        "profiles": profiles_page,
        "errors": errors_page,
        "python": python_reference.overview,
        "notebook": lambda: notebook_page(folder),
    }
    for name, make in pages.items():
        text = f"# {PAGES[name]}\n\n{make()}\n"
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not built again
            path.write_text(text, encoding="utf-8")
    python_reference.write(folder / "python")


def options_page() -> str:
    """Return the whole help of every command."""
    parts = ["Each command is also available as `vlalign COMMAND`."]
    for name, (module, meaning) in COMMANDS.items():
        parser = importlib.import_module(module).make_parser()
        parts.append(f"## vlalign-{name}\n\n{meaning[0].upper()}{meaning[1:]}.\n\n```text\n{help_of(parser)}```")
        for action, of_action in actions_of(parser).items():
            parts.append(f"### vlalign-{name} {action}\n\n```text\n{help_of(of_action)}```")
    return "\n\n".join(parts)


def help_of(parser: Parser) -> str:
    """Return the output of ``--help-all``."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        parser.show_all()
    return shown.getvalue()


def actions_of(parser: Parser) -> dict[str, Parser]:
    """Return the parsers of a command's actions by name."""
    return dict(parser._subparsers._group_actions[0].choices) if parser._subparsers else {}  # pyright: ignore


def profiles_page() -> str:
    """Return the table of the shipped profiles."""
    head = "| name | values | rate | window | stride | frame | layer | weights |\n|---|---|---|---|---|---|---|---|\n"
    rows = []
    for name, of in PROFILES.items():
        side = f"short side {of.short_side_px}" if of.short_side_px else "none: audio"
        crop = f", crop {of.crop_px}" if of.crop_px else ""
        rate = f"{of.fps:g} a second" if of.fps else "every frame"
        rows.append(
            f"| `{name}` | {of.dimension:,} | {rate} | {of.window} | {of.stride} | {side}{crop} | "
            f"{of.layer} | {of.weights} |"
        )
    return (
        "The profiles of the built-in features: frames (or audio samples) a second, window and stride in frames, frame "
        "size in pixels, and the published weights.\n\n" + head + "\n".join(rows)
    )


def errors_page() -> str:
    """Return all error messages of the commands."""
    parts = [
        "The errors of all commands, by the module that raises them. An error has the place, the expected value and "
        f"the remedy; {GAP} stands for a path, an id or a value. For the most frequent messages, see "
        "[troubleshooting](../troubleshooting.md)."
    ]
    by_module: dict[tuple[Path, str], list[str]] = {}
    for message in error_messages():
        by_module.setdefault((message.module, message.about), []).append(message.text)
    folder = ""
    for (module, about), texts in by_module.items():
        if module.parts[0] != folder:
            folder = module.parts[0]
            parts.append(f"## {folder}")
        lines = "\n".join(f"- `` {text} ``" for text in dict.fromkeys(texts))
        parts.append(f"### `{module}`\n\n{about}\n\n{lines}")
    return "\n\n".join(parts)


def notebook_page(folder: Path) -> str:
    """Return the notebook with the output of its cells, and write its figures into the folder."""
    text, pictures = run_notebook.as_markdown(run_notebook.read(NOTEBOOK))
    for name, picture in pictures.items():
        (folder / name).write_bytes(picture)
    _, _, below_title = text.partition("\n\n")
    return "[The notebook itself](../tutorials/notebook.ipynb), for Jupyter.\n\n" + below_title
