"""Two pages of one machine in one browser."""

import numpy as np
import pytest
from helpers.browser import needs_browser, open_browser, serve
from helpers.toy import make_toy
from helpers.videos import encode_frames
from vlalign.storage.records import VideoRecord
from vlalign.train.cli.train import main as train_main

pytestmark = [pytest.mark.slow, needs_browser]
TRAIN = ["--features", "s3d", "--num-steps", "2", "--batch-size", "4"]


def test_a_second_page_keeps_the_first_usable(tmp_path):
    toy = make_toy(tmp_path)
    at = ["--root", str(toy.root), "--dataset", toy.name]
    assert train_main([*at, *TRAIN, "--run-name", "r"]) == 0
    frames = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), np.uint8)
    encode_frames(toy.path / "v.mp4", iter(frames), 8, "libx264")
    toy.write_videos([VideoRecord(video_id=f"v{number:03d}", path="v.mp4") for number in range(24)])
    with open_browser() as browser, serve("r", *at) as first, serve("r", *at) as second:
        context = browser.new_context()
        pages = []
        for address in (first, second):
            page = context.new_page()
            page.goto(address)
            assert page.url == address.split("?")[0], "the token leaves the address bar"
            pages.append(page)
        assert pages[0].evaluate("document.cookie") == "", "scripts do not see the tokens"
        for page in pages:
            page.fill("input[type=search]", "cut the onion")
            page.keyboard.press("Enter")
            page.get_by_text("moments for").wait_for()
            page.locator(".card").first.click()
            page.get_by_role("button", name="Play").first.click()
            video = page.locator("dialog video").first.element_handle()
            for _ in range(100):
                if video.evaluate("(video) => video.readyState >= 2"):
                    break
                page.wait_for_timeout(50)
            assert video.evaluate("(video) => video.videoWidth") == 64
        stranger = browser.new_context().new_page()
        assert stranger.goto(first.split("?")[0]).status == 401
        assert "vlalign-serve" in stranger.locator("p").inner_text()
        swapped = first.split("?")[0] + "?" + second.split("?")[1]
        assert stranger.goto(swapped).status == 401
