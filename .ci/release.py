"""A release: whether this commit is ready for one, its notes, and its files.

python .ci/release.py check [TAG]    # a line for each thing that is not ready
python .ci/release.py notes          # the section of CHANGELOG.md
python .ci/release.py dist FOLDER    # sdist, wheel and SHA256SUMS of the last commit: the same bytes each time

Docs: docs/releasing.md. ``check`` and ``notes`` need Python alone, ``dist`` also uv.
"""

import gzip
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
SECTION = re.compile(r"^## (\S+)(?: \((\d{4}-\d{2}-\d{2})\))?$", re.MULTILINE)
SUMS = "SHA256SUMS"


def version() -> str:
    """Return the version in pyproject.toml."""
    return _first(r'^version = "([^"]+)"$', "pyproject.toml")


def changelog() -> dict[str, tuple[str, str]]:
    """Return the sections of CHANGELOG.md: {version or "Unreleased": (date or "", text)}."""
    parts = SECTION.split((TOP / "CHANGELOG.md").read_text(encoding="utf-8"))[1:]
    return {parts[i]: (parts[i + 1] or "", parts[i + 2].strip()) for i in range(0, len(parts), 3)}


def problems(tag: str) -> list[str]:
    """Return a line for each thing that is not ready for a release with a tag such as "v1.1.0"."""
    number, sections = version(), changelog()
    date, text = sections.get(number, ("", ""))
    found = []
    if tag != f"v{number}":
        found.append(f"tag {tag}: pyproject.toml has version {number}; expected tag v{number}")
    if not (date and text):
        found.append(f"CHANGELOG.md: expected a section '## {number} (YYYY-MM-DD)' with text")
    if sections.get("Unreleased", ("", ""))[1]:
        found.append("CHANGELOG.md: section Unreleased is not empty; move its text to the section of the new version")
    for key, expected in (("version", number), ("date-released", date)):
        if (cited := _first(rf"^{key}: (\S+)$", "CITATION.cff")) != expected:
            found.append(f"CITATION.cff: {key} is {cited or 'missing'}; expected {expected}, as in CHANGELOG.md")
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    for old in sorted(set(re.findall(r"vlalign-(\d+\.\d+\.\d+)-py3", readme)) - {number}):
        found.append(f"README.md: names the wheel of {old}; expected {number}")
    if changed := _git("status", "--porcelain", "--untracked-files=no"):
        found.append(f"git: uncommitted changes ({len(changed.splitlines())} files); commit them first")
    return found


def build(folder: Path) -> None:
    """Build sdist and wheel of the last commit, and their checksums, into a folder.

    Times are that of the commit (or ``SOURCE_DATE_EPOCH``), owners and rights of files are fixed, and neither
    the folder nor uncommitted changes matter.
    """
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    os.umask(0o022)
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        source, built = Path(temporary, "source"), Path(temporary, "built")
        source.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=TOP, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "--extract", "--directory", source], input=archive.stdout, check=True)
        _uv_build("--sdist", source, built)
        (raw,) = built.glob("*.tar.gz")
        sdist = folder / raw.name
        _write_sdist(raw, sdist, epoch)
        _uv_build("--wheel", sdist, built, constraints=source / "constraints.txt")
        (raw,) = built.glob("*.whl")
        wheel = folder / raw.name
        wheel.write_bytes(raw.read_bytes())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (wheel, sdist)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")


def _uv_build(what: str, source: Path, built: Path, constraints: Path | None = None) -> None:
    """Let uv build with the pinned setuptools, in an environment of its own."""
    pins = ["--require-hashes", "--build-constraint", constraints or source / "constraints.txt"]
    uv = [sys.executable, "-m", "uv", "build", "--quiet", "--python", sys.executable]
    subprocess.run([*map(str, [*uv, what, *pins, "--out-dir", built, source])], check=True)


def _write_sdist(raw: Path, sdist: Path, epoch: int) -> None:
    """Write an sdist again: files by name, without owners, umask and times of the build."""
    with (
        tarfile.open(raw) as before,
        sdist.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            runs = member.isdir() or member.mode & 0o100
            fixed = {"mtime": epoch, "mode": 0o755 if runs else 0o644, "uid": 0, "gid": 0, "uname": "", "gname": ""}
            content = before.extractfile(member) if member.isfile() else None
            entry = member.replace(**fixed, deep=False)
            entry.pax_headers = {}  # fractions of a second of the time before
            after.addfile(entry, content)


def _first(pattern: str, name: str) -> str:
    match = re.search(pattern, (TOP / name).read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else ""


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=TOP, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def main() -> int:
    """Run the command line."""
    action, *rest = sys.argv[1:] or [""]
    if action == "check" and len(rest) <= 1:
        found = problems(rest[0] if rest else f"v{version()}")
        print("\n".join(found) or f"v{version()}: ready for a release")
        return bool(found)
    if action == "notes" and not rest:
        print(changelog()[version()][1])
        return 0
    if action == "dist" and len(rest) == 1:
        build(Path(rest[0]))
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
