"""The documentation's site: it is built without a warning, has all pages, and names all that is public."""

import html
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
PACKAGES = ("extract", "preprocess", "train", "storage", "ray_jobs")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-c", "docs", "-b", "html", "-W", "--keep-going", "-q", "."]
    built = subprocess.run([*build, folder], cwd=TOP, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_menu(site):
    menu = re.findall(r'class="reference internal" href="([^"#]+)"', (site / "README.html").read_text(encoding="utf-8"))
    pages = {str(path.relative_to(TOP).with_suffix(".html")) for path in [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md")]}
    assert pages - set(menu) - {"README.html"} == set()
    assert "tests/benchmarks/README.html" in menu


@pytest.mark.slow
def test_every_public_name_has_an_entry(site):
    pages = [path.read_text(encoding="utf-8") for path in (site / "docs" / "reference" / "python").glob("*.html")]
    entries = {name for page in pages for name in re.findall(r'id="(vlalign\.[\w.]+)"', page)}
    public = {f"vlalign.{of}.{name}" for of in PACKAGES for name in importlib.import_module(f"vlalign.{of}").__all__}
    assert len(public) > 30 and public - entries == set()


@pytest.mark.slow
def test_every_error_has_an_entry(site):
    """As many as there are calls that make one; a text search of the source knows no syntax tree."""
    calls = [
        (path, line)
        for folder in PACKAGES
        for path in (TOP / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"(?<!class )\b(UserError|SettingError)\((?!Vlalign|UserError\))", line)
    ]
    sys.path.insert(0, str(TOP / "docs"))
    errors = importlib.import_module("error_messages")
    sys.path.remove(str(TOP / "docs"))
    raised = [message for message in errors.error_messages() if "unreadable(" not in message.text]
    page = (site / "docs" / "reference" / "errors.html").read_text(encoding="utf-8")
    shown = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", page)))
    assert len(raised) >= len(calls) > 300
    assert [of.text for of in raised if re.sub(r"\s+", " ", of.text).strip() not in shown] == []
