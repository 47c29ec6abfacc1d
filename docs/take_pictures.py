"""Take the screenshots of the search page, the gallery and the cluster's page in Chromium.

    python docs/take_pictures.py FOLDER

FOLDER is where the commands of docs/gallery.md were run, and ray_jobs/extract_howto100m.py; the screenshots are written
into docs/images.
"""

import argparse
import contextlib
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).resolve().parent / "images"
RUNS = Path("vlalign_data", "demo", "runs")
WIDTH = 1040
CODEBOOK_PX = 1500
"""Height for the codebook's part of the report, which is longer."""


DEMO_QUERY = "a+blue+cross+grows"
"""The query of ``make demo``. The demo has such scenes, and one of them ranks first."""
SCREENS = ({"width": 1300}, {"width": 375, "color_scheme": "dark"})
"""A large screen, and a phone."""
SCREEN_HEIGHT = 812
QUERY = "a+large+red+star+grows+behind+a+yellow+cross"
LONGEST = """data.queries.filter((query) => query.map && query.rank === 1)
    .sort((a, b) => b.map.starts.length - a.map.starts.length)[0].text"""
"""The text of a query that was found, about the clip with the most rows."""


def save(name: str, picture: bytes) -> None:
    """Write a screenshot as a small file."""
    Image.open(io.BytesIO(picture)).convert("RGB").save(IMAGES / f"{name}.webp", quality=80, method=6)


def part(page: Any, first: str, last: str, height: int = 2000) -> bytes:
    """Return the page from the top of one element to the end of another, at most ``height`` pixels of it."""
    page.evaluate("scrollTo(0, 0)")
    box, end = (page.locator(selector).first.bounding_box() for selector in (first, last))
    clip = box | {"height": min(end["y"] + end["height"] - box["y"], height)}
    return page.screenshot(full_page=True, clip=clip)


def open_report(page: Any, folder: Path, run: str) -> None:
    """Open the report of a run."""
    page.goto((folder / RUNS / run / "report.html").resolve().as_uri())


def take_reports(page: Any, folder: Path) -> None:
    """Take the report's beginning, the words of a query over the rows of its clip, and a codebook."""
    open_report(page, folder, "words-resnet152+s3d-seed0")
    save("report-top", part(page, "main", ".side-by-side"))
    open_report(page, folder, "taco-resnet152+s3d-seed0")
    page.fill("#word", page.evaluate(LONGEST))
    page.locator("#queries summary").first.click()
    save("token-map", part(page, "#queries article", "#queries article"))
    open_report(page, folder, "cmcm-resnet152+s3d-seed0")
    save("codebook", part(page, "#codebook", "#codebook", CODEBOOK_PX))


@contextlib.contextmanager
def served(folder: Path, dataset: str) -> Iterator[str]:
    """Serve the search page on a data set; yield its address, to which a query can be added."""
    command = [shutil.which("vlalign-serve", path=str(Path(sys.executable).parent)) or "vlalign-serve"]
    options = ["--dataset", dataset, "words-resnet152+s3d-seed0", "--port", "0"]
    with subprocess.Popen([*command, *options], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield next(line for line in server.stdout if line.startswith("http")).split()[0]
        server.terminate()


def take_search(browser: Browser, folder: Path) -> None:
    """Take the search page on the demo, on a large screen and, beside it, on a phone."""
    taken = []
    with served(folder, "demo") as address:
        for screen in SCREENS:
            page = browser.new_page(
                viewport={"width": screen["width"], "height": SCREEN_HEIGHT}, color_scheme=screen.get("color_scheme")
            )
            page.goto(f"{address}&q={DEMO_QUERY}")
            page.wait_for_selector(".frame.loaded")
            if taken:  # the phone shows a moment
                page.click(".card")
                page.wait_for_selector(".query-words button")
            page.wait_for_load_state("networkidle")  # all frames are there
            taken.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
            page.close()
    picture = Image.new("RGB", (sum(part.width for part in taken), SCREEN_HEIGHT))
    left = 0
    for part_of_it in taken:
        picture.paste(part_of_it, (left, 0))
        left += part_of_it.width
    content = io.BytesIO()
    picture.save(content, "PNG")
    save("search", content.getvalue())


def take_moments(page: Any, folder: Path) -> None:
    """Take the search page on one longer video."""
    with served(folder, "longer") as address:
        page.goto(f"{address}&q={QUERY}&by=video")
        page.click(".card")
        page.wait_for_selector(".query-words button")
        page.wait_for_load_state("networkidle")  # all frames are there
        save("moments", page.locator("dialog").screenshot())


def take_run_page(page: Any, folder: Path) -> None:
    """Take the page of the last extraction on a cluster, if FOLDER has one."""
    pages = sorted(folder.glob("vlalign_data/*/jobs/extract-*.html"))
    if pages:
        page.goto(pages[-1].resolve().as_uri())
        page.evaluate("document.querySelector('#stale').hidden = true")  # it was running when it was written
        save("run-page", page.screenshot(full_page=True))


def main() -> int:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(description="Take the pictures of the search page and of the gallery.")
    parser.add_argument("folder", type=Path, help="where the commands of the gallery were run")
    folder = parser.parse_args().folder
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take_search(browser, folder)
        page = browser.new_page(viewport={"width": WIDTH, "height": 800})
        take_reports(page, folder)
        take_moments(page, folder)
        take_run_page(page, folder)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
