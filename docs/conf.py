"""Settings of the documentation's site: ``make docs`` builds it with Sphinx.

Sphinx, because it makes the Python reference from docstrings and refuses what leads nowhere; MyST reads the pages as
the Markdown that a forge shows; Furo works on a phone and in the dark.

The pages are those of the repository, and ``index.md`` is their order. What the code knows better is written when the
site is built: the options of all commands, the profiles, and the Python reference (``reference.py``).
"""

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import python_reference  # noqa: E402 - it lies beside this file
import reference  # noqa: E402

project = "vlalign"
author = "the authors of vlalign"
copyright = author
release = version = importlib.metadata.version("vlalign")
root_doc = "README"
# The source is the whole repository, so that links between pages are the same here and on a forge.
include_patterns = ["*.md", "docs/**", *(f"tests/{of}/README.md" for of in ("benchmarks", "benchmarks/gpu", "golden"))]
exclude_patterns = ["docs/_build/**"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
napoleon_google_docstring, napoleon_numpy_docstring = True, False
SHELL = re.compile(
    r"(\w+=\S*\s*)*([\w./]*/)?"
    r"(vlalign(-\w+)?|aws|docker|export|files=.*|gcloud|git|group=.*|hf|make|python3?|ray|sed|trust=.*|uv)(?= )"
)
"""What a shell's commands begin with, as opposed to text."""
html_theme = "furo"
html_title = "vlalign"
html_theme_options = {"top_of_page_buttons": []}  # their place is no landmark for screen readers
html_show_sourcelink = html_copy_source = False
html_static_path = ["static"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
templates_path = ["templates"]
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "version.html", "sidebar/search.html"),
        *("sidebar/scroll-start.html", "sidebar/navigation.html", "sidebar/scroll-end.html"),
    ]
}
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
smartquotes = False  # else "--root" gets a dash
copybutton_prompt_text, copybutton_prompt_is_regexp = r"\$ |> |>>> ", True  # outputs are not copied


def tables_of_contents() -> str:
    """Return the site's menu in MyST, made from the links and headings of ``index.md``."""
    lines: list[str] = []
    for line in (HERE / "index.md").read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"\*\*(.+)\*\*", line):
            lines += ["```", "", "```{toctree}", ":hidden:", f":caption: {heading[1]}", ""]
        elif link := re.search(r"^ *(?:\d+\.|-) \[(.+?)\]\(([\w./-]+)\.md\)", line):
            page = str((HERE / link[2]).resolve().relative_to(HERE.parent))
            lines.append(f"{link[1]} <{page}>")
    pages = [f"{title} <docs/reference/{name}>" for name, title in reference.PAGES.items()]
    pages += [f"{title} <docs/reference/python/{name}>" for name, title in python_reference.TITLES.items()]
    lines += ["```", "", "```{toctree}", ":hidden:", ":caption: Reference", "", *pages, "```"]
    return "\n".join(lines[2:])


def add_menu(_: Any, page: str, source: list[str]) -> None:
    """Add the menu to the first page, which a forge shows without it."""
    if page == root_doc:
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n\ndocs/index\n```\n\n{tables_of_contents()}\n"


def add_arguments(_app: Any, what: str, _name: str, documented: Any, _options: Any, lines: list[str]) -> None:
    """Add the arguments of a class to its docstring, before the example."""
    if what == "class" and (arguments := python_reference.arguments_of(documented)):
        place = lines.index("Example:") if "Example:" in lines else len(lines)
        lines[place:place] = ["", *arguments, ""]


def name_languages(_: Any, __: str, source: list[str]) -> None:
    """Name the language of code blocks that have none: a console session, a shell's commands, or text."""
    lines, is_inside = source[0].split("\n"), False
    for number, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            if not is_inside and line.strip() == "```":
                first = lines[number + 1].strip()
                lines[number] = line + (
                    "console" if first.startswith("$ ") else "bash" if SHELL.match(first) else "text"
                )
            is_inside = not is_inside
    source[0] = "\n".join(lines)


def put_options_first(_: Any, document: nodes.document) -> None:
    """Mark the index entries of options as main entries, which the search of the site lists first."""
    for node in document.findall(addnodes.index):
        node["entries"] = [
            (kind, value, target, "main" if "command line option" in value else main, key)
            for kind, value, target, main, key in node["entries"]
        ]


def setup(app: Any) -> None:
    """Write the reference, add the menu when the first page is read, and make options easy to find."""
    reference.write(HERE / "reference")
    app.connect("env-get-outdated", lambda *_: [root_doc])  # the menu may have changed, though the page has not
    app.connect("source-read", name_languages)
    app.connect("source-read", add_menu)
    app.connect("autodoc-process-docstring", add_arguments, priority=400)  # before napoleon, which has 500
    app.connect("doctree-read", put_options_first)
