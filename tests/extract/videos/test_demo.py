"""Rendering gives the same bytes, whatever is left in memory that the encoder asks for."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, sys
from pathlib import Path
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.datasets import demo
scenes = {record.video_id: record.scene for record in demo.records(demo.plan_scenes(0)) if hasattr(record, "scene")}
for video_id in ("demo0006", "demo0186", "demo0251", "demo0277"):
    path = Path(sys.argv[1]) / f"{video_id}.mp4"
    render_video(scenes[video_id], path)
    print(video_id, hashlib.sha256(path.read_bytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_scene_gives_the_same_bytes_whatever_memory_holds(tmp_path):
    """glibc fills the memory that it hands out with the complement of MALLOC_PERTURB_."""
    printed = []
    for value in ("0", "85", "170"):
        environment = os.environ | {"MALLOC_PERTURB_": value}
        command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0].count("demo") == 4
    assert printed[0] == printed[1] == printed[2]
