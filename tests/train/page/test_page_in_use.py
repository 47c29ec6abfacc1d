"""The search page on real videos, in a real browser: what it shows, with the keyboard, in the dark, and on a phone."""

import base64
import io
import re
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

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
def clip(tmp_path_factory) -> Path:
    """Save a small CLIP; return its folder."""
    tokenizer = word_tokenizer(["red ball"])
    return save_clip(new_clip(tokenizer), tokenizer, tmp_path_factory.mktemp("weights") / "clip")


@pytest.fixture(scope="module")
def address(tmp_path_factory, videos, clip):
    """Serve the videos with the text tower of a CLIP, as the command does; return the page's address."""
    root = tmp_path_factory.mktemp("root")
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
        yield f"{address}&fold=false"  # to a CLIP that was not trained, all videos look the same


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


def search(page, words: str = "red ball") -> None:
    # All vectors of random weights look nearly the same, and would be folded into one result.
    page.route("**/api/search?*", lambda route: route.continue_(url=f"{route.request.url}&fold=false"))
    page.fill("input[type=search]", words)
    page.keyboard.press("Enter")
    page.get_by_text(re.compile(f"moments? for “{words}”")).wait_for()
    page.wait_for_load_state("networkidle")


def wait_until(page, condition: str, of=None) -> None:
    """Wait for a condition; Playwright's own way is code from a string, which the page forbids."""
    end = time.monotonic() + 30
    while not page.evaluate(condition, of):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def open_card(page, name: str):
    """Open the first result of a video; return the viewer."""
    page.locator(".card", has_text=name).first.click()
    viewer = page.locator("dialog")
    viewer.get_by_role("heading", name=name).wait_for()
    return viewer


def play(page, *, clicked) -> float:
    """Click, wait until the video of the viewer plays, and return its second, once its frame is seen to be that of this
    second."""
    name = page.locator("#viewer-name").inner_text()
    clicked()
    video = page.locator("dialog video").element_handle()
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
    for name in ("v0", "v1", "v2"):
        viewer = open_card(page, name)
        start = viewer.locator(".about b").first.inner_text().split()[0]  # 0:04, or 0.5 of a short one
        started = sum(float(part) * unit for part, unit in zip(reversed(start.split(":")), (1, 60), strict=False))
        seconds = play(page, clicked=viewer.get_by_role("button", name="Play").click)
        assert started - 1 <= seconds <= started + 4, "it plays from the moment on"
        line = viewer.locator(".timeline")
        box = line.bounding_box()
        for share in (0.1, 0.8):  # before the clip that is there, and after it
            seconds = play(page, clicked=lambda: line.click(position={"x": share * box["width"], "y": 20}))  # noqa: B023
            assert abs(seconds - share * len(FRAMES[name]) / FPS) < 4
        page.keyboard.press("Escape")
        viewer.wait_for(state="hidden")


def test_the_pictures_of_results_are_the_frames_of_their_seconds(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    for card in page.locator(".card").all():
        card.scroll_into_view_if_needed()
        image = card.locator("img").element_handle()
        wait_until(page, "(image) => image.complete && image.naturalWidth > 0", image)
        address_of_image = image.evaluate("(image) => image.src")
        name, second = (parse_qs(urlsplit(address_of_image).query)[key][0] for key in ("video_id", "seconds"))
        if name == "v3":
            continue
        shown = np.asarray(Image.open(io.BytesIO(page.request.get(address_of_image).body())).convert("RGB")).astype(int)
        assert abs(np.abs(FRAMES[name] - shown).mean(axis=(1, 2, 3)).argmin() - float(second) * FPS) <= 1


def test_another_data_set_is_chosen_and_its_videos_play(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Data set").select_option("more")
    page.get_by_text("among 1 video of more").wait_for()
    assert "dataset=more" in page.url
    page.goto(page.url)  # as somebody who was sent the link
    page.get_by_text("among 1 video of more").wait_for()
    viewer = open_card(page, "w0")
    play(page, clicked=viewer.get_by_role("button", name="Play").click)
    page.go_back()
    page.go_back()
    page.get_by_text("among 4 videos of mine").wait_for()


def test_a_link_opens_the_viewer_and_back_and_forth_are_the_results(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    viewer = open_card(page, "v1")
    link = page.url
    viewer.get_by_role("button", name="Close").click()
    viewer.wait_for(state="hidden")
    assert "open=" not in page.url and page.locator(".card").count() > 0
    page.go_forward()
    viewer.get_by_role("heading", name="v1").wait_for()
    page.goto(link)
    viewer.get_by_role("heading", name="v1").wait_for()
    first = page.locator("dialog .steps span").inner_text()
    page.keyboard.press("ArrowRight" if first.startswith("1 ") else "ArrowLeft")
    wait_until(page, "(text) => document.querySelector('dialog .steps span').textContent !== text", first)
    page.keyboard.press("Escape")
    viewer.wait_for(state="hidden")
    assert "open=" not in page.url


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
    viewer = open_card(page, "v3")
    viewer.get_by_role("button", name="Play").click()
    viewer.get_by_text("This video cannot be played here.").wait_for()
    assert viewer.locator("video").count() == 0
    image = viewer.locator("img.view").element_handle()
    wait_until(page, "(image) => image.complete && image.naturalWidth > 0", image)


def test_the_keyboard_alone_finds_and_plays(address, browser):
    page = browser.new_page()
    page.goto(address)
    page.get_by_text("Type what you are looking for.").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("red ball")
    page.keyboard.press("Enter")
    page.get_by_text("moments for “red ball”").wait_for()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "card":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", "one sees where one is"
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Play moment":
            break
    page.keyboard.press("Enter")
    wait_until(page, "() => [...document.querySelectorAll('video')].some((video) => !video.paused)")
    page.keyboard.press("Escape")
    wait_until(page, "() => document.activeElement.className === 'card'")


def test_filters_choose_and_going_back_shows_what_was_there(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    before = page.locator("#status").inner_text()
    assert "among 4 videos" in before
    page.get_by_role("button", name="Filters").click()
    page.get_by_role("group", name="Length in seconds").get_by_label("from").fill("20")
    page.keyboard.press("Enter")
    page.get_by_text("among 1 video").wait_for()
    assert set(page.locator(".card .name").all_inner_texts()) == {"v0"}
    page.reload()
    page.get_by_text("at least 20 s").wait_for()  # what is in use is seen without opening the filters
    page.get_by_role("button", name="Remove the filter at least 20").click()
    page.get_by_text("among 4 videos").wait_for()
    assert page.locator("#status").inner_text() == before
    page.go_back()
    page.get_by_text("among 1 video").wait_for()


def test_examples_stand_beside_the_text(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    viewer = open_card(page, "v0")
    viewer.get_by_role("button", name="More like").click()
    page.get_by_text("moments like the example").wait_for()
    wait_until(page, "() => document.querySelector('#examples img').naturalWidth > 0")
    viewer = open_card(page, "v1")
    viewer.get_by_role("button", name="as example").click()
    page.get_by_text("moments like the examples").wait_for()
    page.fill("input[type=search]", "red ball")
    page.keyboard.press("Enter")
    page.get_by_text("moments for “red ball” and like the examples").wait_for()
    page.get_by_role("button", name="Remove the example v0").click()
    page.get_by_text("moments for “red ball” and like the example among").wait_for()


@pytest.mark.parametrize("width, colours", LOOKS)
def test_axe_finds_nothing_serious_on_the_page(address, browser, width, colours):
    axe = package("axe_playwright_python.sync_playwright")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours, bypass_csp=True)

    def violations():
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        return [(rule["id"], rule["nodes"][0]["html"]) for rule in axe.Axe().run(page).response["violations"]]

    page.goto(address)
    page.locator(".card").first.wait_for()
    assert not violations()
    search(page)
    page.get_by_role("button", name="Filters").click()
    assert not violations()
    page.locator("#export summary").click()
    page.get_by_role("button", name="CSV").wait_for()
    assert not violations()
    page.keyboard.press("Escape")
    open_card(page, "v0")
    page.wait_for_load_state("networkidle")
    assert not violations()


def test_results_are_saved_as_files_and_clips(address, browser, tmp_path):
    page = browser.new_page()
    page.goto(address)
    page.locator(".card").first.wait_for()
    assert page.locator("#export").is_hidden()  # the list of videos is no result
    search(page)
    page.locator("#export summary").focus()
    page.keyboard.press("Enter")
    for name, file, start in (("CSV", "moments.csv", b"\xef\xbb\xbfnumber"), ("EDL", "moments.edl", b"TITLE: ")):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).press("Enter")
        assert download.value.suggested_filename == file
        download.value.save_as(tmp_path / file)
        assert (tmp_path / file).read_bytes().startswith(start)
        page.get_by_text(f"Saved {file}").wait_for()
    assert b"* FROM CLIP: v" in (tmp_path / "moments.edl").read_bytes()  # no folder
    page.keyboard.press("Escape")
    assert not page.get_by_role("button", name="CSV").is_visible()
    viewer = open_card(page, "v0")
    with page.expect_download() as download:
        viewer.get_by_role("button", name="encoded again").click()
    download.value.save_as(tmp_path / "clip.mp4")
    with av.open(str(tmp_path / "clip.mp4")) as clip:
        assert clip.streams.video[0].frames > 0
    assert download.value.suggested_filename.endswith("s-exact.mp4")


def test_the_time_line_shows_the_frame_of_a_second_and_plays_from_there(address, browser):
    page = browser.new_page()
    page.goto(address)
    search(page)
    viewer = open_card(page, "v0")
    line = viewer.locator(".timeline")
    box = line.bounding_box()
    line.hover(position={"x": 0.6 * box["width"], "y": 5})
    image = viewer.locator(".chosen img")
    wait_until(page, "(image) => image.naturalWidth > 0", image.element_handle())
    minutes, rest = viewer.locator(".chosen figcaption").inner_text().split(":")
    seconds = 60 * int(minutes) + float(rest)
    assert seconds == pytest.approx(0.6 * 24, abs=0.5)
    shown = page.request.get(page.evaluate("(image) => image.src", image.element_handle())).body()
    picture = np.asarray(Image.open(io.BytesIO(shown)).convert("RGB")).astype(int)
    assert np.abs(FRAMES["v0"] - picture).mean(axis=(1, 2, 3)).argmin() == int(seconds * FPS)
    line.focus()
    page.keyboard.press("ArrowRight")
    later = float(line.get_attribute("aria-valuenow"))
    assert later == pytest.approx(seconds + 0.25, abs=0.06)
    assert abs(play(page, clicked=lambda: page.keyboard.press("Enter")) - later) < 4


def test_a_link_is_copied_and_a_file_that_is_there_is_downloaded(address, browser):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(address)
    search(page)
    viewer = open_card(page, "v0")
    viewer.get_by_role("button", name="Copy link").click()
    viewer.get_by_role("button", name="Copied", exact=True).wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url and "open=v0%40" in link and "token" not in link
    with page.expect_download() as download:
        viewer.get_by_role("link", name="Download video").click()
    assert download.value.suggested_filename == "v0.mp4"
    page.keyboard.press("Escape")
    viewer = open_card(page, "v1")
    assert viewer.get_by_role("link", name="Download video").count() == 0, "only clips of it are served"
    context.close()


def test_a_small_screen_shows_filters_and_the_viewer_without_hiding_the_rest(address, browser):
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(address)
    search(page)
    page.get_by_role("button", name="Filters").click()
    assert page.locator("#filters").bounding_box()["height"] <= 400
    done = page.get_by_role("button", name="Show results")
    boxes = page.locator("#status").bounding_box(), done.bounding_box()
    assert all(box["y"] + box["height"] <= 800 for box in boxes)
    done.click()
    assert page.locator("#filters").is_hidden() and page.locator("#status").bounding_box()["y"] >= 0
    page.set_viewport_size({"width": 800, "height": 360})
    viewer = open_card(page, "v0")
    for part in (viewer.locator("video"), viewer.locator(".timeline"), viewer.get_by_role("button", name="Close")):
        box = part.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 360
    assert viewer.locator("video").bounding_box()["height"] > 180


def test_a_picture_is_chosen_pasted_or_dropped(address, browser, tmp_path):
    page = browser.new_page()
    page.goto(address)
    page.locator(".card").first.wait_for()
    Image.fromarray(FRAMES["v1"][20].astype(np.uint8)).save(tmp_path / "shot.png")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add an image").click()
    chooser.value.set_files(tmp_path / "shot.png")
    page.get_by_text("moments like the example").wait_for()
    wait_until(page, "() => document.querySelector('#examples img').naturalWidth > 0")
    png = base64.b64encode((tmp_path / "shot.png").read_bytes()).decode()
    for event, name in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        page.goto(f"{address.split('?')[0]}?fold=false")
        page.locator(".card").first.wait_for()
        page.evaluate(
            """([png, event, name]) => {
                const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
                const data = new DataTransfer();
                data.items.add(new File([bytes], "shot.png", { type: "image/png" }));
                const made = { [name]: data, bubbles: true, cancelable: true };
                const kind = event === "drop" ? DragEvent : ClipboardEvent;
                document.body.dispatchEvent(new kind(event, made));
            }""",
            [png, event, name],
        )
        page.get_by_text("moments like the example").wait_for()


def test_a_search_is_cancelled_and_a_server_that_is_back_is_noticed(address, browser):
    page = browser.new_page()
    page.goto(address)
    page.locator(".card").first.wait_for()
    held = []
    page.route("**/api/search*", lambda route: held.append(route))
    page.fill("input[type=search]", "red ball")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel").wait_for()
    assert page.locator("#results[inert] .card").count() == 4, "what was there stays until the answer"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("The search was cancelled.").wait_for()
    assert page.locator(".card").count() == 0
    page.unroute("**/api/search*")
    page.route("**/api/*", lambda route: route.abort())
    page.keyboard.press("Enter")
    page.get_by_text("the server cannot be reached").wait_for()
    page.unroute("**/api/*")
    page.get_by_text("moments for “red ball”").wait_for()
    assert page.locator("#results:not([inert]) .card").count() > 0


def test_near_duplicates_are_folded_and_shown(address, browser):
    page = browser.new_page()
    page.goto(address.replace("&fold=false", "&by=video&group=video&q=red+ball"))
    page.get_by_text("+3 similar").wait_for()
    assert page.locator(".card").count() == 1
    page.locator(".card").click()
    name = page.locator("#viewer-name").inner_text()
    page.locator("dialog").get_by_role("heading", name="Nearly the same").wait_for()
    other = page.locator("dialog .about li button").first
    label = other.inner_text()
    other.click()
    page.get_by_role("heading", name=label.split(",")[0]).wait_for()
    assert label.split(",")[0] != name
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="hidden")
    assert "open=" not in page.url


def test_a_page_that_was_opened_before_any_video_was_read_shows_them_by_itself(tmp_path, clip, browser, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    folder = tmp_path / "Holiday"
    folder.mkdir()
    at = ["--root", str(tmp_path), "--dataset", "mine", "--features", "clip_vit_b32", "--weights", str(clip)]
    with serve(*at, "--videos", str(folder), "--every", "2") as address:
        page, errors = browser.new_page(), []
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.goto(f"{address}&fold=false")
        page.get_by_text("There are no videos in").wait_for()
        assert not errors
        assert page.get_by_text("Holiday").first.is_visible()
        write_video(folder / "beach.mp4", 4, 3, "libx264")
        page.locator(".card", has_text="beach").wait_for(timeout=120_000)
        search(page)
        write_video(folder / "sea.mp4", 4, 4, "libx264")
        page.locator(".card", has_text="sea").wait_for(timeout=120_000)
        (folder / "beach.mp4").unlink()
        page.locator(".card", has_text="beach").wait_for(state="detached", timeout=120_000)
        assert page.locator(".card").count() == 1
        (folder / "sea.mp4").rename(folder / "ocean.mp4")
        page.locator(".card .name", has_text="ocean.mp4").wait_for(timeout=120_000)
        viewer = open_card(page, "ocean.mp4")
        assert viewer.get_by_text("Video sea", exact=True).is_visible(), "the id, which captions and runs have"
