"""Take the screenshots of the search page, the gallery and the cluster's page in Chromium.

    python docs/take_pictures.py FOLDER

FOLDER is where the commands of docs/gallery.md were run, and ray_jobs/extract_howto100m.py; the screenshots are written
into docs/images.
"""

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from vlalign.preprocess.datasets.demo import VERBS
from vlalign.train import open_search

IMAGES = Path(__file__).resolve().parent / "images"
RUNS, RUN = Path("vlalign_data", "demo", "runs"), "words-resnet152+s3d-seed0"
WIDTH = 1040
CODEBOOK_PX = 1475
"""Height for the codebook's part of the report, which is longer."""


DEMO_QUERY, NUM_CARDS = "a blue star grows", 8
"""The query of the first picture, and the number of results that it shows."""
SCREENS = ({"width": 1300}, {"width": 400, "color_scheme": "dark"})
"""A large screen, and a phone."""
MARGIN, SETTLE_MS = 8, 20_000
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
    open_report(page, folder, RUN)
    save("report-top", part(page, "main", ".side-by-side"))
    page.fill("#word", "cross")
    page.select_option("#ranks", "wrong")
    page.select_option("#order", "best")
    page.locator("#queries summary").first.click()
    save("report", part(page, "section:has(#browse)", "#queries article:nth-of-type(2)"))
    open_report(page, folder, "taco-resnet152+s3d-seed0/evaluations/rerank=5")
    page.fill("#word", page.evaluate(LONGEST))
    page.locator("#queries summary").first.click()
    save("token-map", part(page, "#queries article", "#queries article"))
    open_report(page, folder, "cmcm-resnet152+s3d-seed0")
    save("codebook", part(page, "#codebook", "#codebook", CODEBOOK_PX))


@contextlib.contextmanager
def served(folder: Path, dataset: str) -> Iterator[str]:
    """Serve the search page on a data set; yield its address, to which a query can be added."""
    command = [shutil.which("vlalign-serve", path=str(Path(sys.executable).parent)) or "vlalign-serve"]
    options = ["--dataset", dataset, RUN, "--port", "0"]
    with subprocess.Popen([*command, *options], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield next(line for line in server.stdout if line.startswith("http")).split()[0]
        server.terminate()


def right_results(folder: Path) -> list[bool]:
    """Return for each result of the first picture whether its scene is as in the query."""
    dataset = folder / RUNS.parent
    lines = map(json.loads, (dataset / "videos.jsonl").read_text(encoding="utf-8").splitlines())
    scenes = {of["video_id"]: of["scene"] for of in lines}
    found = open_search(dataset, run=RUN, device="cpu")(DEMO_QUERY, num_results=NUM_CARDS, fold=True)
    return [fits(DEMO_QUERY, scenes[moment.video_id]) for moment in found]


def fits(query: str, scene: dict[str, Any]) -> bool:
    """Return whether a query is about a scene, such as "a blue star grows"."""
    return query == f"a {scene['colour']} {scene['shape']} {VERBS[scene['verb']][0]}"


def take_search(browser: Browser, folder: Path) -> None:
    """Take the search page on the demo, on a large screen and, beside it, on a phone; print which results are right.

    Raises:
        AssertionError: The first result is wrong.
    """
    right = right_results(folder)
    print(f"{DEMO_QUERY!r}: right results:", *(place for place, is_right in enumerate(right, start=1) if is_right))
    assert right[0]
    taken, height = [], 800
    with served(folder, "demo") as address:
        for screen in SCREENS:
            page = browser.new_page(
                viewport={"width": screen["width"], "height": height}, color_scheme=screen.get("color_scheme")
            )
            page.goto(f"{address}&q={quote_plus(DEMO_QUERY)}")
            page.wait_for_selector(".frame.loaded")
            if taken:  # the phone shows a moment
                page.click(".card")
                page.wait_for_selector(".query-words button")
                page.wait_for_timeout(SETTLE_MS)  # the frames of the time line, and the video
            else:  # both screens end below the last card
                cards = [page.locator(".card").nth(number).bounding_box() for number in range(NUM_CARDS)]
                height = MARGIN + max(int(card["y"] + card["height"]) for card in cards)
                page.set_viewport_size({"width": screen["width"], "height": height})
            page.wait_for_load_state("networkidle")  # all frames are there
            taken.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
            page.close()
    picture = Image.new("RGB", (sum(part.width for part in taken), height))
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
