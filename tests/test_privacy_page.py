"""docs/privacy.md: its tests exist, and libraries' telemetry is off where it says so."""

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
TEXT, _, LIST = (TOP / "docs" / "privacy.md").read_text(encoding="utf-8").partition("\n## Tests\n")
NAMED = re.findall(r"`([\w/]+\.py)`:((?:\s*`test_\w+`,?)+)", LIST)


def test_the_numbers_are_those_of_the_list():
    assert set(re.findall(r"\[(\d+)\]", TEXT)) == set(re.findall(r"^(\d+)\. ", LIST, re.MULTILINE)) != set()


@pytest.mark.parametrize(("file", "names"), NAMED)
def test_the_tests_exist(file, names):
    tree = ast.parse((TOP / file).read_text(encoding="utf-8"))
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(re.findall(r"test_\w+", names)) <= there


def test_usage_statistics_of_ray_are_off_wherever_it_is_started(monkeypatch):
    from vlalign.ray_jobs import cluster

    class Stopped(Exception):
        """Raised in place of starting Ray."""

    def stop(_address):
        raise Stopped

    monkeypatch.setattr(
        os, "environ", {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    )
    monkeypatch.setattr(cluster, "running_cluster", stop)
    with pytest.raises(Stopped):
        cluster.connect()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    started = [
        line
        for path in sorted((TOP / "ray_jobs").rglob("*"))
        if path.suffix in {".yaml", ".sh", ".sbatch"}
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bray start --", line)
    ]
    assert started and [line for line in started if "--disable-usage-stats" not in line] == []
    assert "RAY_USAGE_STATS_ENABLED=0" in (TOP / "ray_jobs" / "Dockerfile").read_text(encoding="utf-8")


def test_the_commands_list_the_records_of_one_data_set_alone(tmp_path, monkeypatch):
    """Also in a folder that is reached through a link, and not those of a data set whose name begins alike."""
    from vlalign.storage.dataset.folder import DatasetFolder
    from vlalign.storage.dataset.trusted_folders import allow_folder
    from vlalign.storage.remote.links import trust

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = tmp_path / "there" / "vlalign_data"
    (tmp_path / "videos").mkdir()
    for name in ("mine", "mine2"):
        dataset = DatasetFolder(root, name)
        dataset.features("s3d").mkdir(parents=True)
        allow_folder(dataset, tmp_path / "videos")
        trust(dataset.features("s3d"), "s3://bucket/s3d")
    (tmp_path / "link").symlink_to("there")
    [commands] = re.findall(r"```\n(folder=.*?)```", TEXT, re.DOTALL)
    call = ["bash", "-c", f'cd "{tmp_path}/link"; {commands}']
    listed = subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(Path(path).parent.name for path in listed) == ["links", "videos"]
    assert all(f"{root}/mine2" not in Path(path).read_text(encoding="utf-8") for path in listed)


NETWORK = {
    *("urllib.request", "http.client", "requests", "httpx", "aiohttp", "fsspec", "huggingface_hub", "datasets", "mteb"),
    *("nltk", "torch.hub", "spacy.cli", "boto3", "gcsfs", "s3fs"),
}
HUB_CALLS = {"download", "download_model", "find_files", "pin_revision"}
"""Functions of ``storage/hub/files.py`` that ask the hub."""
IN_TABLE = {
    "extract/models/weights.py": "features of a published network",
    "extract/encoders/hub.py": "features `hf:` or `timm:`",
    "extract/pipeline/store_extractor.py": "features `hf:` or `timm:`",
    "extract/pipeline/store_mismatch.py": "features `hf:` or `timm:`",
    "extract/settings.py": "features `hf:` or `timm:`",
    "storage/hub/files.py": "the Hugging Face hub",
    "storage/hub/loading.py": "Loading the model sends no further requests",
    "train/data/text_encoders.py": "a text encoder of the hub",
    "extract/speech/model.py": "a request for Whisper",
    "train/runs/hub_runs.py": "a run `hf:ORG/NAME`",
    "train/benchmarks/mteb_model.py": "MTEB",
    "train/benchmarks/mteb_task.py": "MTEB",
    "extract/pipeline/download.py": "a list of videos has addresses",
    "storage/remote/http_client.py": "a list of videos has addresses",
    "storage/remote/file_systems.py": "you link a store to an address",
}
"""{module: its row of "What is sent where"}"""


def sends_requests(path: Path) -> bool:
    """Return whether a module imports a library of the network, or a function that asks the hub."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            if (node.module or "").endswith("hub.files") and HUB_CALLS & set(names):
                return True
            names = [] if node.level else [f"{node.module}.{name}" for name in names]
        if any(f"{name}.".startswith(f"{library}.") for name in names for library in NETWORK):
            return True
    return False


def test_the_table_has_all_modules_that_send_requests():
    folders = ("storage", "extract", "preprocess", "train", "ray_jobs")
    paths = [path for folder in folders for path in (TOP / folder).rglob("*.py")]
    assert {path.relative_to(TOP).as_posix() for path in paths if sends_requests(path)} == IN_TABLE.keys()
    table = TEXT.partition("## What is sent where")[2].partition("\n## ")[0]
    assert [row for row in IN_TABLE.values() if row not in table] == []
