"""The search page in a real browser."""

import os
from contextlib import contextmanager

import pytest
from helpers.browser import needs_browser, open_browser, serve
from helpers.toy import make_toy
from vlalign.train.cli.train import main as train_main

SETTINGS = ["--features", "s3d", "--num-steps", "4", "--batch-size", "8", "--validate-every", "4"]


NUM_MANY = 200
SMALL = """[...document.querySelectorAll("button, a, input, select, summary")]
    .map((each) => [each, each.getBoundingClientRect()])
    .filter(([each, { width, height }]) => each.checkVisibility() && width && Math.min(width, height) < 44)
    .map(([each]) => each.outerHTML)"""
"""What is hard to touch with a finger."""
AT_END = "document.getElementById('next').hidden && scrollY + innerHeight >= document.body.scrollHeight - 1"


@pytest.fixture
def address(tmp_path):
    """Serve a toy data set with a trained run, as the command does; return the page's address."""
    with served(tmp_path, 24) as address:
        yield address


@pytest.fixture
def many_address(tmp_path):
    """Serve more videos than one block of results."""
    with served(tmp_path, NUM_MANY) as address:
        yield address


@contextmanager
def served(tmp_path, num_videos):
    toy = make_toy(tmp_path, num_videos=num_videos)
    at_toy = ["--root", str(toy.root), "--dataset", toy.name]
    assert train_main([*at_toy, *SETTINGS, "--run-name", "r"]) == 0
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with serve("r", *at_toy, environment=environment) as address:
        yield address


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width, colours", [(1280, "light"), (360, "dark")])
def test_a_query_shows_moments_that_a_link_shows_again(address, width, colours):
    with open_browser() as browser:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colours)
        page = context.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)
        page.goto(address)
        page.fill("input[type=search]", "cut the onion")
        page.keyboard.press("Enter")
        page.get_by_text("moments for").wait_for()
        page.wait_for_load_state("networkidle")
        shown = page.locator("main").inner_text()
        assert "cut the onion" in shown
        page.locator(".card").first.click()
        page.locator("dialog .word").first.wait_for()
        assert page.get_by_role("heading", name="Words of the query").is_visible()
        assert page.locator("dialog .word").all_inner_texts() == ["cut", "onion"]
        assert page.locator(".word.lit").count() > 0, "each word fits some second best"
        page.get_by_text("Details").click()
        assert page.get_by_text("Search windows that fit less").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert width > 400 or page.evaluate(SMALL) == []
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="hidden")
        again = context.new_page()  # which has the cookie
        again.goto(page.url)
        again.get_by_text("moments for").wait_for()
        again.wait_for_load_state("networkidle")
        assert again.locator("main").inner_text() == shown
        assert not errors


@pytest.mark.slow
@needs_browser
def test_the_page_suggests_queries_and_says_what_is_wrong(address):
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(address)
        page.get_by_text("Type what you are looking for, such as").wait_for()
        suggested = page.locator("#notes button")
        assert suggested.count() == 4
        first = suggested.first.inner_text()
        suggested.first.click()
        page.get_by_text(f"moments for “{first}”").wait_for()
        page.goto(f"{address.split('?')[0]}?q=onion&dataset=foo&split=test")
        page.get_by_text("this page has no data set foo").wait_for()
        assert page.locator("#results li").count() == 0 and page.get_by_text("split test").is_visible()
        page.get_by_role("button", name="Remove the filter data set foo").click()
        page.get_by_text("moments for “onion” among 6 videos").wait_for()
        page.goto(address.split("?")[0])
        page.get_by_text("Type what you are looking for, such as").wait_for()
        page.route("**/api/search*", lambda route: route.abort())
        page.locator("#notes button").first.click()
        page.get_by_text("the server cannot be reached").wait_for()


@pytest.mark.slow
@needs_browser
def test_more_results_come_by_scrolling_and_far_ones_make_room(many_address):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.goto(f"{many_address}&by=video&fold=false&q=cut+the+onion")
        page.get_by_text("More than 48 moments for").wait_for()
        seen, is_at_end = set(), False
        for _ in range(100):
            page.wait_for_load_state("networkidle")
            seen |= set(page.locator(".card .name").all_inner_texts())
            if is_at_end:
                break
            page.mouse.wheel(0, 1500)
            page.wait_for_timeout(100)
            is_at_end = page.evaluate(AT_END)
        assert len(seen) == NUM_MANY, "each video was seen"
        assert 0 < page.locator(".card").count() < NUM_MANY, "far results are not in the page"
        num_results = page.locator("#end").inner_text().split()[3]
        assert page.locator("#status").inner_text().startswith(f"{num_results} moments for")
        last = page.locator(".card").last
        link, name = last.get_attribute("href"), last.locator(".name").inner_text()
        page.evaluate("scrollTo(0, 0)")
        page.locator(".card").first.wait_for()
        assert page.locator("ol").first.locator(".card").count() == 48, "they come back"
        assert page.evaluate("scrollY") == 0
        page.goto(f"{many_address.split('/?')[0]}{link}")
        page.locator("dialog").get_by_role("heading", name=name).wait_for()
        assert page.locator("dialog .timeline").get_attribute("aria-valuenow") == f"{float(link.split('%40')[1]):.2f}"
        assert page.locator(".card").count() == 48 and page.locator("dialog .steps button").count() == 0
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="hidden")
        page.goto(f"{many_address.split('?')[0]}?open=nobody@3")
        page.get_by_text("The video of this link, nobody, is not in this data set.").wait_for()
