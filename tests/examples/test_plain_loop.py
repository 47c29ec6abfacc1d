"""The plain loop of the documentation runs as a user would run it, and learns."""

import math
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "plain_loop.py"


def test_the_plain_loop_learns_the_captions_of_the_demo(small_demo, tmp_path):
    call = [sys.executable, str(EXAMPLE), str(small_demo.path), "s3d"]
    ran = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr
    losses = [float(text) for text in re.findall(r"^epoch \d+: loss (\S+)$", ran.stdout, re.MULTILINE)]
    assert len(losses) == 20 and losses[-1] < 0.9 * losses[0] and math.isfinite(losses[-1]), ran.stdout
    found = re.fullmatch(r"test: R@1 (\S+) \(chance (\S+)\)", ran.stdout.splitlines()[-1])
    assert found is not None and 0 <= float(found[1]) <= 100 and float(found[2]) == 33.3, ran.stdout
