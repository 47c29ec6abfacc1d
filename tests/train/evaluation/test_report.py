"""The report: what it says, and what a real browser makes of it."""

import base64
import hashlib
import html
import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.browser import needs_browser, open_browser
from helpers.needs import package
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.stores.thumbnails import ThumbnailStore
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.evaluation.thumbnails import shown_clips

OVERFLOWING = """() => [...document.querySelectorAll("main *:not(svg *):not(pre *)")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".wide"))
  .map((e) => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def report(small_demo, tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    shutil.copytree(small_demo.path, root / "demo")
    call = ["--root", str(root), "--dataset", "demo"]
    assert train_main([*call, "--features", "s3d", "--num-steps", "6", "--batch-size", "4", "--run-name", "run"]) == 0
    assert evaluate_main(call) == 0
    return root / "demo" / "runs" / "run" / "report.html"


def test_numbers_are_those_of_metrics_json(report):
    result = read_json(report.with_name("metrics.json"))
    table = re.search(r'<table id="metrics">(.*?)</table>', report.read_text(encoding="utf-8"), re.S)[1]
    rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in table.split("</tr>")]
    names = [name.replace(" ", "_") for name in rows[0][1:]]
    # three test clips: R@5 would always be 100
    assert names == ["R@1", "nDCG@10", "mAP", "median_rank", "mean_rank"]
    for first, way in ((1, "text_to_video"), (4, "video_to_text")):
        metrics, intervals = result["metrics"][way], result["intervals"][way]
        for row, values in ((rows[first], metrics), (rows[first + 2], metrics["chance"])):
            assert [float(cell) for cell in row[1:]] == [pytest.approx(values[name], abs=0.051) for name in names]
        assert rows[first + 1][0] == "95 % interval"
        for name, cell in zip(names, rows[first + 1][1:], strict=True):
            assert [float(end) for end in cell.split("\N{EN DASH}")] == pytest.approx(intervals[name], abs=0.051)


def test_the_steps_are_those_that_were_done(report, tmp_path):
    """Also where the setting is 0, which means as many as fit the data."""
    run = tmp_path / "demo" / "runs" / "run"
    shutil.copytree(report.parents[2], tmp_path / "demo", ignore=shutil.ignore_patterns("videos"))
    about = read_json(run / "run.json")
    about["config"]["num_steps"] = 0
    (run / "run.json").write_text(json.dumps(about))
    assert evaluate_main(["--root", str(tmp_path), "--dataset", "demo"]) == 0
    said = re.search(
        r"The run saved the model of step (\d+) of (\d+),", (run / "report.html").read_text(encoding="utf-8")
    )
    assert said and said.groups() == (str(about["result"]["best"]["step"]), "6")


def listed(report):
    """Return the data of the page's list of queries."""
    text = report.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="query-data" type="application/json">(.*?)</script>', text, re.S)[1])


def test_it_needs_no_other_file_and_runs_only_its_own_script(report):
    text = report.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    note = read_json(report.with_name("metrics.json"))["note"]
    assert "random weights" in note and note in html.unescape(text)
    assert "<svg" in text and "validation mean rank" in text
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    checksum = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text)[1]
    assert len(scripts) == 1
    assert f"script-src 'sha256-{checksum}'" in policy.replace("&#39;", "'") and "default-src 'none'" in policy


def test_the_list_has_every_query_as_queries_jsonl_has_it(report):
    data, rows = listed(report), read_jsonl(report.with_name("queries.jsonl"))
    rows = [row for row in rows if row["direction"] == "text_to_video"]
    assert data["num_queries"] == len(data["queries"]) == len(rows)
    for query, row in zip(data["queries"], rows, strict=True):
        assert (query["text"], query["rank"]) == (row["caption"], row["rank"])
        assert {name: data["clips"][query["clip"]][name] for name in row["clip"]} == row["clip"]
        first, score = query["found"][0]
        assert {name: data["clips"][first][name] for name in row["first"]} == row["first"]
        assert score == pytest.approx(row["first_score"], abs=6e-4)
        assert len(query["tags"]) > 2 and query["map"]["words"]


def test_each_clip_has_pictures_and_a_link_that_leads_to_its_video(report):
    for clip in listed(report)["clips"]:
        assert len(clip["images"]) == 3
        assert (report.parent / clip["link"]).name.startswith(clip["video_id"])
        assert (report.parent / clip["link"]).is_file()


def test_no_clip_is_linked_to_a_file_outside_the_root(report, tmp_path):
    """The name of the file in the data set's folder is that of a symlink."""
    demo = DatasetFolder(tmp_path / "root", "demo")
    shutil.copytree(report.parents[2], demo.path)
    clip = next(clip for clip in listed(report)["clips"] if clip["link"])
    name = Path(clip["link"]).name
    shutil.move(demo.path / "videos" / name, tmp_path / name)
    (demo.path / "videos" / name).symlink_to(tmp_path / name)
    shown = shown_clips(demo, ThumbnailStore(demo.thumbnails), demo.path, listed(report)["clips"])
    links = {shown_clip["video_id"]: shown_clip["link"] for shown_clip in shown.clips}
    assert [video_id for video_id, link in links.items() if not link] == [clip["video_id"]] and len(links) > 1
    assert any(re.match(r"1\b", note) for note in shown.notes)


@needs_browser
@pytest.mark.parametrize("width, colours", [pytest.param(1280, "light", marks=pytest.mark.slow), (360, "dark")])
def test_in_a_real_browser_queries_are_filtered_and_clips_play(report, width, colours):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.goto(report.as_uri())
        page.locator("article").first.wait_for()
        data = listed(report)
        worst = max(data["queries"], key=lambda query: query["rank"])
        assert worst["text"] in page.locator("article h3").first.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOWING) == []
        assert page.evaluate("[...document.images].filter((i) => !i.complete || !i.naturalWidth).length") == 0

        word, tag = next((word, tag) for word, tag in data["queries"][0]["tags"] if tag == "NOUN")
        page.fill("#word", word)
        page.select_option("#tag", tag)
        of_word = [query["text"] for query in data["queries"] if [word, tag] in query["tags"]]
        shown = page.locator("article h3").all_inner_texts()
        assert len(shown) == min(len(of_word), 20)
        assert all(any(text in title for text in of_word) for title in shown)
        page.fill("#word", "no such word")
        assert page.locator("#count").inner_text() == "Showing 0 of 0 queries"
        page.fill("#word", "")
        page.select_option("#tag", "")

        page.locator("article summary").first.click()
        cells = page.locator("article").first.locator(".map i").count()
        assert cells == sum(len(digits) for _, digits in worst["map"]["words"])
        page.locator("article figure button").first.click()
        page.locator("article video").evaluate("(v) => v.videoWidth || new Promise((done) => v.onloadeddata = done)")
        assert page.locator("article video").evaluate("(v) => v.videoWidth") > 0
        assert errors == []


@pytest.mark.slow
@needs_browser
def test_axe_finds_nothing_serious_in_the_report(report):
    axe = package("axe_playwright_python.sync_playwright")
    with open_browser() as browser:
        for colours in ("light", "dark"):
            page = browser.new_page(color_scheme=colours)
            page.goto(report.as_uri())
            page.locator("article").first.wait_for()
            page.locator("article summary").first.click()
            found = [(rule["id"], rule["nodes"][0]["html"]) for rule in axe.Axe().run(page).response["violations"]]
            assert found == []
