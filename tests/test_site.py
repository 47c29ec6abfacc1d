"""The documentation's site: it is built without a warning, has all pages, and names all that is public.

In a browser: nothing is cut, nothing is fetched from other hosts, options are found, and everyone can read it.
"""

import html
import importlib
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.browser import needs_browser, open_browser
from helpers.needs import package

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
    pages = [path.read_text(encoding="utf-8") for path in (site / "docs" / "reference").glob("errors*.html")]
    shown = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", "".join(pages))))
    assert len(raised) >= len(calls) > 300
    assert [of.text for of in raised if re.sub(r"\s+", " ", of.text).strip() not in shown] == []


def pages_of(site):
    """Return the pages of the site, apart from the source code."""
    return [path for path in sorted(site.rglob("*.html")) if "_modules" not in path.parts]


@pytest.mark.slow
def test_every_option_has_an_entry(site):
    commands = importlib.import_module("vlalign.storage.cli.all_commands").COMMANDS
    for command, (module, _) in commands.items():
        page = (site / "docs" / "reference" / f"options-{command}.html").read_text(encoding="utf-8")
        parser = importlib.import_module(module).make_parser()
        options = {option for option in parser._option_string_actions if option.startswith("--")}
        assert options - set(re.findall(r"--[a-z][\w-]*", re.sub(r"<[^>]+>", "", page))) == set(), command


@pytest.mark.slow
def test_all_code_has_its_own_language(site):
    pages = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in pages_of(site)}
    assert len(pages) > 60
    assert [(name, bad) for name, page in pages.items() for bad in re.findall(r'class="err">.*?<', page)] == []
    assert [
        name for name in pages if "highlight-default" in pages[name] and "/python" not in name
    ] == []  # apart from >>>
    assert "highlight-console" in pages["docs/commands.html"] and "highlight-bash" in pages["docs/search.html"]


@pytest.mark.slow
def test_every_image_says_what_it_shows(site):
    images = [
        image for path in pages_of(site) for image in re.findall(r"<img [^>]*>", path.read_text(encoding="utf-8"))
    ]
    alts = [re.search(r'alt="([^"]*)"', image) for image in images]
    assert len(images) > 10
    assert [image for image, alt in zip(images, alts, strict=True) if not alt or len(alt[1].split()) < 5] == []


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def address(site):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


CUT = """() => {
    const cut = [...document.querySelectorAll("article *")].filter((element) => {
        const style = getComputedStyle(element);
        return element.clientWidth > 1 && element.scrollWidth > element.clientWidth + 1
            && ["hidden", "clip"].includes(style.overflowX);
    });
    const isScrolled = (element) => element.closest("pre, .table-wrapper, .math") !== null;
    const outside = [...document.querySelectorAll("article *")].filter(
        (element) => element.getBoundingClientRect().right > innerWidth + 1 && !isScrolled(element)
            && element.getBoundingClientRect().width > 1);
    return [...cut, ...outside].map((element) => element.outerHTML.slice(0, 200));
}"""
"""Elements of a page that are cut without a scroll bar, or that are outside the window."""


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (400, "dark")])
def test_every_page_fits_and_axe_finds_nothing(site, address, browser, width, colours):
    """No request leaves this machine, either."""
    axe = package("axe_playwright_python.sync_playwright").Axe()
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
    requests, problems = [], {}
    page.on("request", lambda request: requests.append(request.url))
    for path in pages_of(site):
        page.goto(f"{address}/{path.relative_to(site)}")
        found = [(rule["id"], rule["nodes"][0]["html"]) for rule in axe.run(page).response["violations"]]
        found += page.evaluate(CUT)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append("wider than the window")
        if found:
            problems[str(path.relative_to(site))] = found
    assert problems == {}
    assert len(requests) > 60
    assert {url for url in requests if not url.startswith((address, "data:"))} == set()


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("query", ["--num-results", "num-results"])
def test_the_search_finds_an_option(address, browser, query):
    page = browser.new_page()
    page.goto(f"{address}/README.html")
    page.locator("input.sidebar-search").fill(query)
    page.keyboard.press("Enter")
    page.locator(".search-summary").get_by_text("Search finished").wait_for()
    first = page.locator("ul.search li a").first.get_attribute("href")
    assert first is not None and re.fullmatch(r"docs/reference/options-[\w-]+\.html#cmdoption-.*-num-results", first)


@pytest.mark.slow
@needs_browser
def test_a_console_is_copied_without_prompts_and_outputs(address, browser):
    page = browser.new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
    page.goto(f"{address}/docs/commands.html")
    block = page.locator(".highlight-console").first
    assert "$ vlalign doctor" in block.inner_text()
    block.hover()
    block.locator("button.copybtn").click()
    assert page.evaluate("navigator.clipboard.readText()") == "vlalign doctor"
