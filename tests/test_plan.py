"""docs/plan.md has the tables of docs/make_plan.py, whose arithmetic is checked against given values and real files."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import CLIPConfig, CLIPModel

TOP = Path(__file__).resolve().parents[1]
SCRIPT = TOP / "docs" / "make_plan.py"


@pytest.fixture(scope="module")
def plan():
    spec = importlib.util.spec_from_file_location("make_plan", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(plan):
    assert plan.PAGE.read_text(encoding="utf-8") == plan.page(), "run python docs/make_plan.py"


def test_bytes_agree_with_howto100m(plan):
    """134,000 hours: the terabytes of docs/clusters.md, which leave out the times of the rows."""
    for name, terabytes in {"resnet152": 1.98, "i3d_resnext101": 2.99, "s3d": 1.50}.items():
        with_times = plan.bytes_per_hour(name) * 134_000 / 1e12
        assert terabytes * 0.99 < with_times < terabytes * 1.03


def test_core_hours_agree_with_howto100m(plan):
    """Decoding and network of docs/clusters.md together, from other runs of the same machine."""
    for name, core_hours in {"resnet152": 985 + 43_870, "s3d": 3_929 + 86_646}.items():
        assert plan.core_hours_per_hour(name) * 134_000 == pytest.approx(core_hours, rel=0.12)


def test_features_and_index_of_an_hour_are_the_seven_megabytes_of_the_page_on_syncs(plan):
    assert plan.bytes_per_hour("clip_vit_b32") + plan.index_bytes("clip_vit_b32", 1, 1) == pytest.approx(7e6, rel=0.03)


def test_rates_are_those_of_the_pages_that_report_them(plan):
    speed = (TOP / "docs" / "speed.md").read_text(encoding="utf-8")
    for name, rate in plan.ROWS_PER_CORE_SECOND.items():
        assert f"| `{name}` | {2 * rate:.1f} |" in speed
    benchmarks = (TOP / "tests" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name, hours in plan.HOURS_PER_GPU_HOUR.items():
        (row,) = [line for line in benchmarks.splitlines() if line.startswith(f"| `{name}`, 240p")]
        assert min(float(number.replace(",", "")) for number in row.split("|")[-2].split(";")) == hours
    assert f"{plan.CAPTIONS_PER_SECOND:,} a second" in benchmarks


def test_the_hours_of_the_h200_are_the_same_on_all_pages():
    benchmarks = (TOP / "tests" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    clusters, overnight, gpus = (
        (TOP / "docs" / f"{name}.md").read_text(encoding="utf-8").replace("\n", " ")
        for name in ("clusters", "overnight", "gpus")
    )
    hours = {}
    for name in ("resnet152", "s3d"):
        (row,) = [line for line in benchmarks.splitlines() if line.startswith(f"| `{name}`, 240p")]
        slow, fast = sorted(float(number.replace(",", "")) for number in row.split("|")[-2].split(";"))
        (shown,) = re.findall(rf"\| `{name}` \| [\d.]+ \| [\d.]+ \| ([\d,]+) \|", clusters)
        core_hours = float(shown.replace(",", ""))
        factors = f"{134_000 / fast * 16 / core_hours:.1f} to {134_000 / slow * 16 / core_hours:.1f}"
        assert factors in clusters and factors in overnight
        assert f"{slow:,.0f} and {fast:,.0f}" in clusters and f"{slow:,.0f} and {fast:,.0f}" in gpus
        hours[name] = f"{134_000 / fast:.0f} to {134_000 / slow:.0f}"
        assert hours[name] in clusters
    assert f"{hours['s3d']} hours" in (TOP / "docs" / "guides" / "howto100m.md").read_text(encoding="utf-8")


def test_the_page_on_features_has_the_same_costs(plan):
    text = (TOP / "docs" / "choosing-features.md").read_text(encoding="utf-8")
    table = text.partition("## Cost")[2].partition("## Published scores")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:3] == "| `"]
    checked = [cell for cell in cells if cell[0].strip("`") in plan.PROFILES]
    assert len(checked) >= 9
    for shown, values, rows, size, cpu, gpu in checked:
        name = shown.strip("`")
        assert plan.PROFILES[name].dimension == int(values.replace(",", ""))
        assert plan.rows_per_hour(name) == int(rows.replace(",", ""))
        assert plan.bytes_per_hour(name) / 1e6 == pytest.approx(float(size.removesuffix(" MB")), rel=0.05)
        core_hours = plan.core_hours_per_hour(name)
        if core_hours is None:
            assert cpu == "not measured"
        else:
            assert core_hours * 3_600 == pytest.approx(float(cpu.replace(",", "")), rel=0.01)
        if name in plan.HOURS_PER_GPU_HOUR:
            assert 3_600 / plan.HOURS_PER_GPU_HOUR[name] == pytest.approx(float(gpu), rel=0.02)


def test_published_scores_of_the_page_on_features_are_those_of_the_suites():
    text = (TOP / "docs" / "choosing-features.md").read_text(encoding="utf-8")
    table = text.partition("## Published scores")[2].partition("## Weights")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if ", Table " in line]
    assert len(rows) >= 10
    for features, *scores, source in rows:
        name = source.lower().replace(", table ", "-table")
        suite = json.loads((TOP / "train" / "comparison" / "suite_data" / f"{name}.json").read_text(encoding="utf-8"))
        assert suite["source"] == source and suite["columns"][0] == "R@1"
        printed = [
            tuple(str(row["published"].get(dataset, [""])[0]) for dataset in ("youcook2", "msrvtt"))
            for row in suite["rows"]
            if "published" in row and features.split("`")[1:2] in ([], [(row.get("settings") or {}).get("features")])
        ]
        assert tuple(scores) in printed, features


def test_downloads_are_as_large_as_the_networks():
    """A value of a published CLIP has four bytes."""
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    sizes = {"vision_config": {**vision, "patch_size": 14}, "text_config": text, "projection_dim": 768}
    num_bytes = []
    for config in (CLIPConfig(), CLIPConfig(**sizes)):
        with torch.device("meta"):
            num_bytes.append(4 * sum(parameter.numel() for parameter in CLIPModel(config).parameters()))
    assert f"downloads CLIP once ({num_bytes[0] / 1e6:.0f} MB)" in (TOP / "README.md").read_text(encoding="utf-8")
    tutorial = (TOP / "docs" / "tutorials" / "search.md").read_text(encoding="utf-8")
    assert f"The first `vlalign-extract` downloads the model, {num_bytes[1] / 1e9:.1f} GB" in tutorial


def test_own_numbers_are_printed_and_others_refused():
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)

    before = (TOP / "docs" / "plan.md").read_bytes()
    printed = call("--minutes", "60", "--core-price", "1", "--gpu-price", "2").stdout
    assert "| `resnet152` | 30 (30) |" in printed  # 100 hours have 360,000 rows, 3.3 a second
    assert "| `s3d` | 0.22 (0.45) |" in printed
    for words in (["--minutes", "3"], ["--minutes", "-3", "--core-price", "1", "--gpu-price", "2"]):
        refused = call(*words)
        assert refused.returncode == 2 and refused.stderr.splitlines()[-1].startswith("make_plan.py: error: ")
    assert (TOP / "docs" / "plan.md").read_bytes() == before
