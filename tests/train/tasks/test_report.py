"""The report: what it says, and what a real browser makes of it."""

import html
import json
import re
import shutil
import subprocess

import pytest
from vlalign.storage.files import read_json
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_train import main as train_main

MEASURE = """
<script>
const seen = { width: document.documentElement.scrollWidth, view: innerWidth, pictures: 0, broken: 0, outside: [] };
for (const img of document.images) {
  seen.pictures += 1;
  if (!img.complete || img.naturalWidth === 0) seen.broken += 1;
}
for (const e of document.querySelectorAll("main *:not(svg *):not(pre *)")) {
  const r = e.getBoundingClientRect();
  if (r.right > innerWidth + 1 && !e.closest(".wide")) seen.outside.push(e.tagName + "." + e.className);
}
const out = { type: "text/plain", id: "seen", textContent: JSON.stringify(seen) };
document.body.append(Object.assign(document.createElement("script"), out));
</script>
"""
COPY_FROM_FRAME = """
<script>
onload = () => {
  const textContent = frames[0].document.getElementById("seen").textContent;
  const out = { type: "text/plain", id: "seen", textContent };
  document.body.append(Object.assign(document.createElement("script"), out));
};
</script>
"""


@pytest.fixture(scope="module")
def report(small_demo, tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    shutil.copytree(small_demo.path, root / "demo")
    call = ["--root", str(root), "--dataset", "demo"]
    assert train_main([*call, "--features", "s3d", "--num-steps", "6", "--batch-size", "4", "--run-name", "run"]) == 0
    assert evaluate_main(call) == 0
    return root / "demo" / "runs" / "run" / "report.html"


def test_numbers_are_those_of_metrics_json(report):
    metrics = read_json(report.with_name("metrics.json"))["metrics"]
    table = re.search(r'<table id="metrics">(.*?)</table>', report.read_text(encoding="utf-8"), re.S)[1]
    rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in table.split("</tr>")]
    names = [name.replace(" ", "_") for name in rows[0][1:]]
    assert names == ["R@1", "median_rank", "mean_rank"]  # three test clips: R@5 would always be 100
    for row, values in zip(
        rows[1:5],
        (
            metrics["text_to_video"],
            metrics["text_to_video"]["chance"],
            metrics["video_to_text"],
            metrics["video_to_text"]["chance"],
        ),
        strict=True,
    ):
        assert [float(cell) for cell in row[1:]] == [pytest.approx(values[name], abs=0.051) for name in names]


def test_it_needs_no_other_file(report):
    text = report.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "<script" not in text
    assert "come from seeded random weights" in text
    assert "<svg" in text and "validation mean rank" in text


def test_right_clips_are_marked_and_ranked(report):
    text = report.read_text(encoding="utf-8")
    queries = text.split('<div class="query">')[1:]
    assert len(queries) == 3
    for query in queries:
        rank = int(re.search(r"right clip at rank (\d+)", query)[1])
        marks = [bool("right" in figure.split(">")[0]) for figure in query.split("<figure")[1:]]
        assert marks == [place == rank for place in (1, 2, 3)]


@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_real_browser_nothing_overflows_and_pictures_are_there(report, tmp_path, width):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    page = tmp_path / "page.html"
    page.write_text(report.read_text(encoding="utf-8").replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    # A headless window may not be narrower than 500 px; a frame may.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<body style="margin:0"><iframe src="page.html" width="{width}" height="900" style="border:0"></iframe>'
    )
    quiet = [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--disable-quic",
    ]
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        *quiet,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=5000",
    ]
    if width >= 500:
        target = page
        flags.append(f"--window-size={width},900")
    else:
        target = frame
        flags += ["--window-size=1280,900", "--allow-file-access-from-files"]
        frame.write_text(frame.read_text() + COPY_FROM_FRAME)
    done = subprocess.run([browser, *flags, "--dump-dom", target.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'id="seen"[^>]*>(\{.*?\})</script>', done.stdout, re.S)
    assert found, done.stderr[-500:]
    seen = json.loads(html.unescape(found[1]))
    assert seen["view"] in range(width - 20, width + 1)
    assert seen["width"] <= seen["view"], seen["outside"]
    assert seen["outside"] == []
    assert seen["pictures"] == 3 * 3 * 3  # queries, results, thumbnails
    assert seen["broken"] == 0
