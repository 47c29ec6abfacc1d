"""docs/moving.md: each import, as it is written there, reads files in the layout of the other tool."""

import pickle
import shlex
from pathlib import Path

import numpy as np
import pytest
from vlalign.storage import FeatureStore
from vlalign.storage.cli.store import main

PAGE = Path(__file__).resolve().parents[3] / "docs" / "moving.md"
IMPORTS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("vlalign-store import ")]
EXPECTED = {
    "vfe_resnet152": ("resnet152", [0, 1, 2]),
    "vfe_resnext101": ("resnext101", [0, 1 / 1.5, 2 / 1.5]),
    "kinetics_s3d": ("s3d", [0, 2.56, 5.12]),
    "kinetics_i3d_rgb": ("i3d", [0, 2.56, 5.12]),
    "clip4clip_vit_b32": ("clip4clip.pickle", [0, 2, 4]),
    "mmpt_s3d": ("feat_how2_s3d", [0, 1, 2]),
}
"""By name of the features: the files, and the first second of each row."""


def rows(seed: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, width)).astype(np.float16)


@pytest.fixture
def written(tmp_path, monkeypatch) -> dict[str, np.ndarray]:
    """The features of a video ``a`` as each tool writes them, in the current folder."""
    monkeypatch.chdir(tmp_path)
    there = {
        "resnet152": rows(0, 2048),
        "resnext101": rows(1, 2048),
        "s3d": rows(2, 1024).astype(np.float64),
        "i3d": rows(3, 1024).astype(np.float64),
        "feat_how2_s3d": rows(4, 512),
        "clip4clip.pickle": rows(5, 512).astype(np.float32),
    }
    for folder in ("resnet152", "resnext101", "s3d", "i3d", "feat_how2_s3d"):
        Path(folder).mkdir()
    for folder in ("resnet152", "resnext101", "feat_how2_s3d"):
        np.save(f"{folder}/a.npy", there[folder])
    np.save("s3d/a_s3d.npy", there["s3d"])
    np.save("i3d/a_rgb.npy", there["i3d"])
    np.save("i3d/a_flow.npy", there["i3d"] + 1)
    np.save("i3d/a_fps.npy", np.array(25.0))
    np.save("i3d/a_timestamps_ms.npy", np.arange(3) * 2560.0)
    Path("clip4clip.pickle").write_bytes(pickle.dumps({"a": there["clip4clip.pickle"]}))
    Path("seconds.csv").write_text("video_id,seconds\na,6\n")
    return there


def test_each_import_of_the_page_reads_its_files(written, capsys):
    for line in IMPORTS:
        code = main([*shlex.split(line)[1:], "--root", "data"])
        assert code == 0, (line, capsys.readouterr().err)
    stores = {path.name: FeatureStore(path) for path in Path("data/mine/features").iterdir()}
    assert set(stores) == set(EXPECTED)
    for name, (source, starts) in EXPECTED.items():
        video = stores[name].get("a")
        np.testing.assert_array_equal(video.features, written[source])
        np.testing.assert_allclose(video.start_seconds, starts)
        assert stores[name].origin != "extracted"
