"""The Slurm scripts, on a real Slurm of two nodes."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.slurm import slurm
from vlalign.extract.videos.selection import render_missing
from vlalign.preprocess.datasets import demo
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder

__all__ = ["slurm"]  # a fixture

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Return a folder from which the scripts find this environment's commands, whatever its name."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "ray_jobs").symlink_to(TOP / "ray_jobs")
    return folder


@pytest.mark.slow
def test_an_extraction_on_two_nodes_equals_that_of_one_machine(slurm, checkout, small_demo, tmp_path):
    root, log = tmp_path / "root", tmp_path / "log.txt"
    shutil.copytree(small_demo.root, root)
    shutil.rmtree(root / "demo" / "features")
    script = "ray_jobs/slurm.sh ray_jobs/extract_howto100m.py"
    printed = slurm.run(
        f"""
        export VLALIGN_ROOT={root}
        sbatch --test-only --nodes 2 {script}
        sbatch --wait --nodes 2 --output {log} {script} --dataset demo --features s3d --weights random
        echo "extraction: exit code $?"
        sbatch --wait --output {log} {script} --dataset nothing
        echo "no such data set: exit code $?"
        """,
        checkout,
        1500,
    )
    written = log.read_text()
    assert re.search(r"Job \d+ to start at .* on nodes n\[1-2\]", printed), printed
    assert "extraction: exit code 0" in printed, printed + written
    assert re.search(r"\b14 of 14 videos .*\bs3d", written)
    assert {ip for ip in re.findall(r"10\.77\.0\.\d", written)} == {"10.77.0.1", "10.77.0.2"}
    assert "no such data set: exit code 2" in printed, printed + written[-3000:]
    one, other = FeatureStore(root / "demo" / "features" / "s3d"), FeatureStore(small_demo.features("s3d"))
    assert sorted(one.video_ids()) == sorted(other.video_ids())
    for video_id in one.video_ids():
        a, b = one.get(video_id).features, other.get(video_id).features
        np.testing.assert_allclose(a, b, rtol=0.01, atol=0.002 * np.abs(b).max())  # as many cores add in another order


@pytest.mark.slow
def test_a_job_that_is_signalled_before_its_time_limit_writes_finished_videos(slurm, checkout, tmp_path):
    dataset, log = DatasetFolder(tmp_path / "root", "demo"), tmp_path / "log.txt"
    videos = [record for record in demo.records(demo.plan_scenes(0)) if isinstance(record, VideoRecord)][:100]
    dataset.write_videos(videos)
    render_missing(dataset, videos)
    script = "ray_jobs/slurm.sh ray_jobs/extract_howto100m.py --dataset demo --features s3d --weights random"
    printed = slurm.run(
        f"""
        export VLALIGN_ROOT={dataset.root}
        job=$(sbatch --parsable --nodes 2 --output {log} {script} --shard-seconds 1000)
        runs() {{ squeue --noheader --jobs $job | grep --quiet .; }}
        while runs && ! grep --quiet "([1-9][0-9]* more not on disk" {log}; do sleep 1; done
        scancel --batch --signal=TERM $job
        while runs; do sleep 1; done
        scontrol show job $job
        """,
        checkout,
        1000,
    )
    assert "drained in" in log.read_text() and "ExitCode=143:0" in printed, printed + log.read_text()
    assert 0 < len(FeatureStore(dataset.features("s3d")).video_ids()) < len(videos)


@pytest.mark.slow
def test_training_on_two_nodes_equals_two_processes_of_one_machine(slurm, checkout, small_demo, tmp_path):
    root, log = tmp_path / "root", tmp_path / "log.txt"
    shutil.copytree(small_demo.root, root)
    call = "--dataset demo --features s3d --num-steps 7 --batch-size 8 --validate-every 3 --run-name"
    printed = slurm.run(
        f"""
        export VLALIGN_ROOT={root}
        sbatch --test-only --nodes 2 ray_jobs/slurm_torchrun.sh
        sbatch --wait --nodes 2 --output {log} ray_jobs/slurm_torchrun.sh {call} nodes
        echo "two nodes: exit code $?"
        .venv/bin/torchrun --nproc-per-node 2 --no-python .venv/bin/vlalign-train {call} processes
        echo "two processes: exit code $?"
        """,
        checkout,
        1000,
    )
    assert "two nodes: exit code 0" in printed, printed + log.read_text()
    assert "two processes: exit code 0" in printed, printed
    nodes, processes = (read_jsonl(root / "demo" / "runs" / name / "events.jsonl") for name in ("nodes", "processes"))
    assert nodes == processes and len(nodes) == 7
