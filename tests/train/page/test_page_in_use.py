"""The search page on real videos, in a real browser: what it shows, with the keyboard, in the dark, and on a phone."""

import base64
import io
import time
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.browser import needs_browser, open_browser, serve
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from helpers.needs import package
from helpers.videos import encode_frames
from PIL import Image
from vlalign.extract.cli.extract import main as extract_main

pytestmark = [pytest.mark.slow, needs_browser]

FPS, WIDTH, HEIGHT = 8, 192, 128
FRAMES: dict[str, np.ndarray] = {}
"""{video id: its frames}"""
LOOKS = [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark"), (2560, "light")]
KINDS = [("v0.mp4", 24, "libx264"), ("v1.mkv", 9, "libx264"), ("v2.mp4", 12, "libx265"), ("v3.avi", 8, "mpeg4")]
"""The browser plays the first. Of the next two it plays clips, of the second of them after it has tried the file. The
last is deleted after its features were made."""
FRAME = """async (video) => {
    video.pause();
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    canvas.getContext("2d").drawImage(video, 0, 0);
    const first = Number(new URL(video.src).searchParams.get("start"));  // of the clip, if it is one
    return [first + video.currentTime, canvas.toDataURL("image/png").split(",")[1]];
}"""


def picture(number: int, colour: np.ndarray) -> np.ndarray:
    """Return a frame of which a bar shows the number."""
    canvas = np.tile((colour // 2).astype(np.uint8), (HEIGHT, WIDTH, 1))
    canvas[:, number * 2 % WIDTH :][:, :12] = colour
    return canvas


def write_video(path: Path, seconds: int, seed: int, codec: str) -> None:
    """Write a video of which no two frames are the same."""
    colours = np.random.default_rng(seed).integers(60, 255, (seconds, 3))
    frames = (picture(number, colours[number // FPS]) for number in range(seconds * FPS))
    encode_frames(path, frames, FPS, codec)


def frames(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(int)


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number, (name, seconds, codec) in enumerate(KINDS):
        write_video(folder / name, seconds, number, codec)
        FRAMES[name.split(".")[0]] = frames(folder / name)
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory, videos):
    """Serve the videos with the text tower of a CLIP, as the command does; return the page's address."""
    root = tmp_path_factory.mktemp("root")
    tokenizer = word_tokenizer(["red ball"])
    clip = save_clip(new_clip(tokenizer), tokenizer, root / "clip")
    at = ["--root", str(root), "--dataset", "mine", "--features", "clip_vit_b32", "--weights", str(clip)]
    assert extract_main([*at, "--videos", str(videos)]) == 0
    (videos / "v3.avi").unlink()
    others = root / "others"
    others.mkdir()
    write_video(others / "w0.mkv", 8, 9, "libx264")
    FRAMES["w0"] = frames(others / "w0.mkv")
    at[3] = "more"
    assert extract_main([*at, "--videos", str(others)]) == 0
    at[3] = "mine,more"
    with serve(*at) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


def search(page, words: str = "red ball") -> None:
    # All vectors of random weights look nearly the same, and would be folded into one result.
    page.route("**/api/search?*", lambda route: route.continue_(url=f"{route.request.url}&fold=false"))
    page.fill("input[type=search]", words)
    page.keyboard.press("Enter")
    page.get_by_text(f"moments for “{words}”").wait_for()
    page.wait_for_load_state("networkidle")


def wait_until(page, condition: str, of=None) -> None:
    """Wait for a condition; Playwright's own way is code from a string, which the page forbids."""
    end = time.monotonic() + 30
    while not page.evaluate(condition, of):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def play(page, item, *, clicked) -> float:
    """Click, wait until the video plays, and return its second, once its frame is seen to be that of this second."""
    name = item.locator("h2").inner_text().split()[-1]
    clicked()
    video = item.locator("video").element_handle()
    wait_until(page, "(video) => video.readyState >= 2 && !video.seeking && !video.paused", video)
    seconds, png = video.evaluate(FRAME)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")).astype(int)
    distances = np.abs(FRAMES[name] - shown).mean(axis=(1, 2, 3))
    assert abs(distances.argmin() - seconds * FPS) <= 1, f"{name}: frame {distances.argmin()} at {seconds} s"
    assert distances.min() < 6
    return seconds


def test_the_frame_that_is_shown_is_the_frame_of_that_second(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    items = page.locator("#results > li")
    played = set()
    for number in range(items.count()):
        item = items.nth(number)
        name = item.locator("h2").inner_text().split()[-1]
        if name == "v3":
            continue
        minutes, rest = item.locator("p").first.inner_text().split()[0].split(":")
        started = 60 * int(minutes) + float(rest)
        seconds = play(page, item, clicked=item.get_by_role("button", name="Play").click)
        assert started - 1 / FPS <= seconds <= started + 4, "it plays from the moment on"
        strip = item.locator("svg.strip")
        box = strip.bounding_box()
        for share in (0.1, 0.8):  # before the clip that is there, and after it
            seconds = play(page, item, clicked=lambda: strip.click(position={"x": share * box["width"], "y": 2}))  # noqa: B023
            assert abs(seconds - share * len(FRAMES[name]) / FPS) < 4
        played.add(name)
    assert played == {"v0", "v1", "v2"}


def test_another_data_set_is_chosen_and_its_videos_play(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    page.get_by_text("Filters").click()
    page.get_by_label("Data set").select_option("more")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("among 1 video").wait_for()
    assert page.locator("h1").inner_text() == "Search more" and "dataset=more" in page.url
    page.goto(page.url)  # as somebody who was sent the link
    page.get_by_text("among 1 video").wait_for()
    assert page.locator("h1").inner_text() == "Search more"
    item = page.locator("#results > li").first
    play(page, item, clicked=item.get_by_role("button", name="Play").click)
    page.go_back()
    page.get_by_text("among 4 videos").wait_for()
    assert page.locator("h1").inner_text() == "Search mine"


def test_words_typed_while_the_page_loads_stay(address, browser):
    page = browser.new_page()

    held = []
    page.route("**/api/about*", lambda route: held.append(route))
    page.goto(address)
    while not held:
        page.wait_for_timeout(20)
    page.fill("input[type=search]", "red ball")
    held[0].continue_()
    page.get_by_text("4 videos,").first.wait_for()
    assert page.input_value("input[type=search]") == "red ball"


def test_a_video_that_cannot_be_played_is_a_picture_and_a_word(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    item = page.locator("#results > li", has_text="v3").first
    item.get_by_role("button", name="Play").click()
    item.get_by_text("This video cannot be played here.").wait_for()
    assert item.locator("video").count() == 0
    assert item.locator("img.view[src]").evaluate(
        "async (image) => { await image.decode(); return image.naturalWidth; }"
    )


def test_the_keyboard_alone_finds_and_plays(address, browser):
    page = browser.new_page()
    page.goto(address)
    page.get_by_text("Type what you look for.").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("red ball")
    page.keyboard.press("Enter")
    page.get_by_text("moments for “red ball”").wait_for()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Play moment":
            break
    assert page.evaluate("document.activeElement.textContent") == "Play moment"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", "one sees where one is"
    page.keyboard.press("Enter")
    wait_until(page, "() => [...document.querySelectorAll('video')].some((video) => !video.paused)")


def test_filters_choose_and_going_back_shows_what_was_there(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    before = page.locator("#status").inner_text()
    assert "among 4 videos" in before
    page.get_by_text("Filters").click()
    page.get_by_label("Video from").fill("20")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("among 1 video").wait_for()
    assert {name.split()[-1] for name in page.locator("h2").all_inner_texts()} == {"v0"}
    page.go_back()
    page.get_by_text("among 4 videos").wait_for()
    assert page.locator("#status").inner_text() == before
    page.get_by_role("button", name="More like").first.click()
    page.get_by_text("moments like").wait_for()


@pytest.mark.parametrize("width, colours", LOOKS)
def test_axe_finds_nothing_serious_on_the_page(address, browser, width, colours):
    axe = package("axe_playwright_python.sync_playwright")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours, bypass_csp=True)
    page.goto(address)
    search(page)
    page.get_by_text("Filters").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = [(rule["id"], rule["nodes"][0]["html"]) for rule in axe.Axe().run(page).response["violations"]]
    assert not found


def test_the_time_line_shows_the_frame_of_a_second_and_plays_from_there(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    item = page.locator("#results > li", has_text="v0").first
    line = item.locator(".timeline")
    box = line.bounding_box()
    line.hover(position={"x": 0.6 * box["width"], "y": 5})
    image = item.locator(".chosen img")
    wait_until(page, "(image) => image.naturalWidth > 0", image.element_handle())
    minutes, rest = item.locator(".chosen figcaption").inner_text().split(":")
    seconds = 60 * int(minutes) + float(rest)
    assert seconds == pytest.approx(0.6 * 24, abs=0.5)
    shown = page.request.get(page.evaluate("(image) => image.src", image.element_handle())).body()
    picture = np.asarray(Image.open(io.BytesIO(shown)).convert("RGB")).astype(int)
    assert np.abs(FRAMES["v0"] - picture).mean(axis=(1, 2, 3)).argmin() == int(seconds * FPS)
    line.focus()
    page.keyboard.press("ArrowRight")
    later = float(line.get_attribute("aria-valuenow"))
    assert later == pytest.approx(seconds + 0.25, abs=0.06)
    assert abs(play(page, item, clicked=lambda: page.keyboard.press("Enter")) - later) < 4
