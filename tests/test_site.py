"""The documentation's site: it is built without a warning, has all pages, and names all that is public."""

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
    page = (site / "docs" / "reference" / "python.html").read_text(encoding="utf-8")
    entries = set(re.findall(r'id="(vlalign\.[\w.]+)"', page))
    public = {f"vlalign.{of}.{name}" for of in PACKAGES for name in importlib.import_module(f"vlalign.{of}").__all__}
    assert len(public) > 30 and public - entries == set()
