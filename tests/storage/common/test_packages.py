"""The version of vlalign, and commands that install what it can do without."""

import ast
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from vlalign.storage.common.packages import EXTRAS, NOT_INSTALLED, install_command, package_version

TOP = Path(__file__).resolve().parents[3]
FOLDERS = ("extract", "preprocess", "ray_jobs", "storage", "train")
READ_BY_PEOPLE = [
    *(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py")),
    *(TOP / "docs").rglob("*.md"),
    *(TOP / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
]


def declared_extras() -> dict[str, list[str]]:
    """Return {extra: requirements} of pyproject.toml. Python 3.10 has no parser for TOML."""
    text = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    table = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    lists = re.findall(r"^([\w-]+) = (\[.*?\])(?: #[^\n]*)?$", table, flags=re.MULTILINE | re.DOTALL)
    return {name: ast.literal_eval(requirements) for name, requirements in lists}


def test_the_packages_are_those_of_the_extras():
    declared = declared_extras()
    assert declared.pop("dev")
    anywhere = {name: tuple(each.partition(";")[0] for each in requirements) for name, requirements in declared.items()}
    assert anywhere == EXTRAS


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_installs_that_package_where_this_program_runs(extra):
    program, *words = shlex.split(install_command(*EXTRAS[extra]))
    assert (program, words[:3]) == (sys.executable, ["-m", "pip", "install"])
    assert [Requirement(each) for each in words[3:]] == [Requirement(each) for each in EXTRAS[extra]]


def test_without_pip_uv_installs_it(tmp_path):
    """``uv venv`` makes environments without pip."""
    hidden = "import sys; sys.modules['pip'] = None\n"
    code = hidden + "from vlalign.storage.common.packages import install_command; print(install_command('timm'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shlex.split(done.stdout) == ["uv", "pip", "install", "--python", sys.executable, "timm"]


def test_nothing_says_to_install_vlalign_from_an_index():
    """There is no release there. A folder with extras is fine: ``--editable ~/vlalign[english]``."""
    from_index = re.compile(r"install[^\n]*[\"' `]vlalign\[")
    assert [str(p.relative_to(TOP)) for p in READ_BY_PEOPLE if from_index.search(p.read_text(encoding="utf-8"))] == []


def test_pages_name_packages_with_the_bounds_of_the_extras():
    calls = [
        call
        for path in (TOP / "docs").rglob("*.md")
        for call in re.findall(r"pip install((?: '[^']+')+)", path.read_text())
    ]
    assert calls and {tuple(shlex.split(call)) for call in calls} <= set(EXTRAS.values())


@pytest.fixture(scope="module")
def on_the_import_path(tmp_path_factory) -> dict[str, str]:
    """Variables for a Python that finds vlalign's folders on its import path, and all packages but vlalign."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "vlalign").mkdir()
    for name in FOLDERS:
        (folder / "vlalign" / name).symlink_to(TOP / name)
    for packages in map(Path, site.getsitepackages()):
        for path in packages.iterdir() if packages.is_dir() else ():
            if "vlalign" not in path.name and path.suffix != ".pth" and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    return os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def run(environment: dict[str, str], folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    # -S: without site-packages, where vlalign is installed
    call = [sys.executable, "-S", "-c", code]
    return subprocess.run(call, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param("storage.cli.store import main; main(['--version'])", 0, id="version"),
        pytest.param(
            "storage.cli.store import main; sys.exit(main(['ls', '--verbose', '--root', '.']))", 2, id="verbose"
        ),
        pytest.param("extract.cli.doctor import main; main(['--root', '.'])", 0, id="doctor"),
        pytest.param("train.runs.run_json import describe_software; print(describe_software())", 0, id="a run"),
    ],
)
def test_without_an_installation_the_version_is_given_as_such(on_the_import_path, tmp_path, command, code):
    done = run(on_the_import_path, tmp_path, f"import sys\nfrom vlalign.{command}")
    assert done.returncode == code and "PackageNotFoundError" not in done.stderr, done.stderr
    assert NOT_INSTALLED in done.stdout + done.stderr


def test_a_store_made_without_an_installation_says_so(on_the_import_path, tmp_path, short_video):
    (tmp_path / "videos").mkdir()
    shutil.copy(short_video, tmp_path / "videos" / "v.mp4")
    call = ["--root", ".", "--dataset", "mine", "--videos", "videos", "--features", "logmel"]
    done = run(
        on_the_import_path, tmp_path, f"from vlalign.extract.cli.extract import main; raise SystemExit(main({call}))"
    )
    assert done.returncode == 0, done.stderr
    from vlalign.storage import FeatureStore

    assert FeatureStore(tmp_path / "mine" / "features" / "logmel").shards[0].made_with["vlalign"] == NOT_INSTALLED


def test_an_installed_version_is_that_of_pyproject():
    text = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{package_version()}"\n' in text
