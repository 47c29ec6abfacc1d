"""The pages of the reference, made from the code when the site is built."""

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import python_reference
import run_notebook
from error_messages import FOLDERS, GAP, error_messages
from vlalign.storage.cli.all_commands import COMMANDS
from vlalign.storage.cli.parser import Parser
from vlalign.storage.profiles import PROFILES

PAGES = {
    "options": "Options of all commands",
    "profiles": "Profiles",
    "errors": "Error messages",
    "python": "Python",
    "notebook": "The demo from Python",
    "own-features": "Your own features: train, and look at what was learned",
}
"""{name of a page: its title}"""
ABOUT = {
    "extract": "Videos to features",
    "preprocess": "Annotations to tagged captions",
    "train": "Training, evaluation and search",
    "storage": "Files on disk",
    "ray_jobs": "The same steps on a Ray cluster",
}
"""{package: description}"""
TUTORIALS = Path(__file__).resolve().parent / "tutorials"


def write(folder: Path) -> None:
    """Write all pages into a folder, and those of the Python reference into its folder ``python``."""
    folder.mkdir(exist_ok=True)
    pages = {
        "options": options_page,
        "profiles": profiles_page,
        "errors": errors_page,
        "python": python_reference.overview,
        "notebook": lambda: notebook_page(folder, TUTORIALS / "notebook.ipynb"),
        "own-features": lambda: run_page(folder, TUTORIALS / "own_features.ipynb"),
    }
    texts = {name: f"# {PAGES[name]}\n\n{make()}\n" for name, make in pages.items()}
    for name, text in {**texts, **command_pages(), **error_pages()}.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not built again
            path.write_text(text, encoding="utf-8")
    python_reference.write(folder / "python")


def options_page() -> str:
    """Return the list of all commands, each with a page of its options."""
    rows = "\n".join(f"| [vlalign-{name}](options-{name}.md) | {meaning} |" for name, (_, meaning) in COMMANDS.items())
    pages = "\n".join(f"options-{name}" for name in COMMANDS)
    return (
        "Each command has a page with all its options. Each is also available as `vlalign COMMAND`.\n\n"
        f"| command | purpose |\n|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```"
    )


def command_pages() -> dict[str, str]:
    """Return a page for each command, with all its options and the options of its actions."""
    pages: dict[str, str] = {}
    for name, (module, _) in COMMANDS.items():
        parser = importlib.import_module(module).make_parser()
        parts = [f"# vlalign-{name}", *options_of(parser, "##")]
        for action, of_action in actions_of(parser).items():
            parts += [f"## vlalign-{name} {action}", *options_of(of_action, "###")]
        pages[f"options-{name}"] = "\n\n".join(parts) + "\n"
    return pages


def options_of(parser: Parser, heading: str) -> list[str]:
    """Return the parts of a parser's help: description, usage, each group of options, and example.

    Args:
        parser: Parser of a command or an action.
        heading: What a heading of a group begins with, such as "##".
    """
    description = [in_markdown(part) for part in (parser.description or "").split("\n\n")]
    parts = [*description, f"```text\n{parser._short_usage()}\n```"]
    for group in parser._action_groups:
        shown = [
            action
            for action in group._group_actions
            if action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
        ]
        if shown:
            options = "\n\n".join(option(parser, action) for action in shown)
            parts.append(f"{heading} {(group.title or '').capitalize()}")
            parts += [in_markdown(group.description)] if group.description else []
            parts.append(f"```{{eval-rst}}\n.. program:: {parser.prog}\n\n{options}\n```")
    if parser.epilog:
        title, _, example = parser.epilog.partition("\n")
        parts.append(f"{title.capitalize()}\n\n```bash\n{textwrap.dedent(example)}\n```")
    return parts


def option(parser: Parser, action: argparse.Action) -> str:
    """Return an option, or a positional argument, as reStructuredText that the search of the site finds by name."""
    formatter = parser._get_formatter()
    if action.option_strings:
        values = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
        names = [f"{name} {values}".rstrip() for name in action.option_strings]
    else:
        names = [str(action.metavar or action.dest)]
    text = re.sub(r"([\\*`|_])", r"\\\1", formatter._expand_help(action)) if action.help else ""
    return f".. option:: {', '.join(names)}\n\n   {' '.join(text.split())}"


def in_markdown(text: str) -> str:
    """Return a plain text for a Markdown page; lines that are indented stay a block."""
    if re.search(r"^ ", text, flags=re.MULTILINE):
        return f"```text\n{text}\n```"
    return re.sub(r"([\\*`|_<\[])", r"\\\1", text)


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
    """Return the list of the pages of error messages."""
    rows = "\n".join(f"- [{ABOUT[folder]}](errors-{folder}.md)" for folder in FOLDERS)
    pages = "\n".join(f"errors-{folder}" for folder in FOLDERS)
    return (
        "The errors of all commands, by the module that raises them. An error has the place, the expected value and "
        f"the remedy; {GAP} stands for a path, an id or a value. For the most frequent messages, see "
        f"[troubleshooting](../troubleshooting.md).\n\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```"
    )


def error_pages() -> dict[str, str]:
    """Return a page for each package, with its error messages by module."""
    by_module: dict[tuple[Path, str], list[str]] = {}
    for message in error_messages():
        by_module.setdefault((message.module, message.about), []).append(message.text)
    pages: dict[str, str] = {}
    for folder in FOLDERS:
        parts = [f"# Errors of vlalign.{folder}", f"{GAP} stands for a path, an id or a value."]
        for (module, about), texts in by_module.items():
            if module.parts[0] == folder:
                lines = "\n".join(f"- `` {text} ``" for text in dict.fromkeys(texts))
                parts.append(f"## `{module.relative_to(folder)}`\n\n{about}\n\n{lines}")
        pages[f"errors-{folder}"] = "\n\n".join(parts) + "\n"
    return pages


def notebook_page(folder: Path, notebook: Path) -> str:
    """Return a notebook with the output of its cells, and write its figures into the folder."""
    text, figures = run_notebook.as_markdown(run_notebook.read(notebook), notebook.stem)
    for name, figure in figures.items():
        (folder / name).write_bytes(figure)
    _, _, below_title = text.partition("\n\n")
    return f"[The notebook itself](../tutorials/{notebook.name}), for Jupyter.\n\n" + below_title


def run_page(folder: Path, notebook: Path) -> str:
    """Run a notebook in a folder of its own, and return its page.

    Raises:
        CalledProcessError: A cell failed; its error was printed.
    """
    with tempfile.TemporaryDirectory() as made:
        copy = Path(shutil.copy(notebook, made))
        call = [sys.executable, run_notebook.__file__, copy, made, "--write"]
        subprocess.run(call, env=os.environ | {"IPYTHONDIR": made}, stdout=subprocess.DEVNULL, check=True)
        return notebook_page(folder, copy)
