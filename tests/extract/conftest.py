"""Fixtures that the tests of extraction share."""

import tempfile
from pathlib import Path

import pytest
from helpers.foreign import STORED, rows_of
from helpers.videos import touch
from vlalign.extract.pipeline import download as fetch
from vlalign.storage import write_shard
from vlalign.storage.common.files import file_identity, write_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES


@pytest.fixture
def own_temporary_folder(tmp_path, monkeypatch) -> Path:
    """The folder that fetched files are kept in. Nothing waits long before it tries again."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.01)
    return folder


@pytest.fixture
def half_done(tmp_path) -> DatasetFolder:
    """S3D has "done", "changed" and "vanished"; it failed on "broken", "mended" and "lost"; ResNet-152 has nothing."""
    dataset = DatasetFolder(tmp_path / "root", "mine")
    touch(
        dataset.path / "videos",
        *(f"{name}.mp4" for name in ("done", "changed", "vanished", "broken", "mended", "lost", "new")),
    )
    source = {p.stem: file_identity(p) for p in (dataset.path / "videos").iterdir()}
    stored = [rows_of(name, source[name], 1024) for name in ("done", "changed", "vanished")]
    write_shard(dataset.features("s3d"), PROFILES["s3d"], STORED, stored, made_with={})
    failures = [
        {"video_id": name, "path": f"videos/{name}.mp4", "kind": "unreadable", "message": "why", "source": source[name]}
        for name in ("broken", "mended", "lost")
    ]
    write_jsonl(dataset.features("s3d") / "failures.jsonl", failures)
    for name in ("changed", "mended"):
        (dataset.path / "videos" / f"{name}.mp4").write_bytes(b"another content")
    for name in ("vanished", "lost"):
        (dataset.path / "videos" / f"{name}.mp4").unlink()
    return dataset
