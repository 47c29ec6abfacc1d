"""A release: what is not ready is named, the steps of docs/releasing.md make it ready, the forge calls what exists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).resolve().parents[1]
FILES = (".ci/release.py", "CHANGELOG.md", "CITATION.cff", "Makefile", "README.md", "pyproject.toml")
WORKFLOWS = {path.name: path for path in (TOP / ".github" / "workflows").glob("*.yml")}


def call(*words: str, at: Path, ends_well: bool = True) -> str:
    who = {f"GIT_{role}_{field}": "t@example.org" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    # A make that runs these tests must not lend its options to the one that is called here.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(words, cwd=at, env=environment | who, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == ends_well, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def edit(path: Path, pattern: str, replacement: str) -> None:
    before = path.read_text(encoding="utf-8")
    after, count = re.subn(pattern, replacement, before, flags=re.MULTILINE)
    assert count, (path.name, pattern)
    path.write_text(after, encoding="utf-8")


@pytest.fixture
def checkout(tmp_path):
    """A repository with the files that a release changes, in which each thing is ready but the release."""
    folder = tmp_path / "checkout"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, folder / name)
    (folder / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\nA new thing.\n\n## 1.0.0 (2026-11-26)\n\nThe first.\n", encoding="utf-8"
    )
    edit(folder / "pyproject.toml", '^version = ".*"', 'version = "1.0.0"')
    edit(folder / "CITATION.cff", "^version: .*", "version: 1.0.0")
    edit(folder / "CITATION.cff", "^date-released: .*", "date-released: 2026-11-26")
    edit(folder / "README.md", r"vlalign-[\d.]+-py3", "vlalign-1.0.0-py3")
    call("git", "init", "--quiet", at=folder)
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    call("git", "add", ".", at=folder)
    call("git", "commit", "--quiet", "--message", "x", at=folder)


def check(folder: Path, tag: str, *, is_ready: bool) -> list[str]:
    words = ("make", "--no-print-directory", f"PYTHON={sys.executable}", "release-check", f"TAG={tag}")
    return call(*words, at=folder, ends_well=is_ready).splitlines()


def test_each_thing_that_is_not_ready_has_a_line(checkout):
    edit(checkout / "pyproject.toml", '^version = ".*"', 'version = "1.1.0"')
    found = check(checkout, "v2.0.0", is_ready=False)
    assert [line.partition(":")[0] for line in found] == [
        *("tag v2.0.0", "CHANGELOG.md", "CHANGELOG.md", "CITATION.cff", "CITATION.cff", "README.md", "git")
    ]
    assert "expected tag v1.1.0" in found[0] and "## 1.1.0 (" in found[1] and "Unreleased" in found[2]


def test_the_steps_of_the_page_make_a_commit_ready(checkout):
    edit(checkout / "pyproject.toml", '^version = ".*"', 'version = "1.1.0"')
    edit(checkout / "CHANGELOG.md", "^## Unreleased\n", "## Unreleased\n\n## 1.1.0 (2026-12-24)\n")
    edit(checkout / "CITATION.cff", "^version: .*", "version: 1.1.0")
    edit(checkout / "CITATION.cff", "^date-released: .*", "date-released: 2026-12-24")
    edit(checkout / "README.md", r"vlalign-[\d.]+-py3", "vlalign-1.1.0-py3")
    assert [line.partition(":")[0] for line in check(checkout, "v1.1.0", is_ready=False)] == ["git"]
    commit(checkout)
    assert check(checkout, "v1.1.0", is_ready=True) == ["v1.1.0: ready for a release"]
    notes = call("make", "--no-print-directory", f"PYTHON={sys.executable}", "release-notes", at=checkout)
    assert notes == "A new thing.\n"


def test_version_citation_and_readme_of_this_checkout_name_the_same_release():
    words = [sys.executable, str(TOP / ".ci" / "release.py"), "check"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    assert found and not [line for line in found if line.startswith(("CITATION.cff", "README.md", "tag"))]


def steps(name: str) -> list[dict[str, object]]:
    jobs = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_a_workflow_calls_exists(name):
    """Targets of the Makefile, options of uv, and files of this repository."""
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (TOP / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    runs = [re.sub(r"\$\{\{.*?\}\}", "x", str(step["run"])) for step in steps(name) if "run" in step]
    called = re.findall(r"\bmake ((?:\S+=\S+ )*)([a-z-]+)", "\n".join(runs))
    assert {target for _, target in called} <= targets
    assert [run for run in runs if run.startswith(".ci/") and not (TOP / run.split()[0]).is_file()] == []
    if name == "release.yml":
        assert {target for _, target in called} == {"release-check", "release-notes", "test", "dist", "image"}
        published = " ".join(run for run in runs if "uv publish" in run)
        help_text = call(sys.executable, "-m", "uv", "publish", "--help", at=TOP)
        assert set(re.findall(r"--[a-z-]+", published.partition("uv publish")[2])) <= set(
            re.findall(r"--[a-z-]+", help_text)
        )


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_by_the_hash_of_a_commit(name):
    used = re.findall(r"uses: (.+)$", WORKFLOWS[name].read_text(encoding="utf-8"), re.MULTILINE)
    assert used and [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


def test_each_action_has_one_version():
    used = {line for path in WORKFLOWS.values() for line in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))}
    assert len(used) == len({line.partition("@")[0] for line in used})


def test_only_two_jobs_of_a_release_may_write_or_sign():
    workflow = yaml.safe_load(WORKFLOWS["release.yml"].read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert {name for name, job in workflow["jobs"].items() if "permissions" in job} == {"forge", "index"}
    for name in ("forge", "index"):
        assert workflow["jobs"][name]["needs"] == ["build", "image"]
        assert workflow["jobs"][name]["environment"] == "release"
