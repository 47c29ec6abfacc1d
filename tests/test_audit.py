"""Installed packages: the hash of each file is pinned and checked, and pins are checked for known vulnerabilities."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from datetime import date, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AUDIT = ROOT / ".ci" / "audit.py"
ADVISORY = {
    "id": "PYSEC-2026-1",
    "aliases": ["CVE-2026-1"],
    "fixed_in": ["2.1"],
    "summary": "a crafted file runs code",
    "details": "",
}


def audit(folder: Path, *options: str, **environment: str) -> tuple[int, str]:
    call = [
        sys.executable,
        AUDIT,
        "--constraints",
        folder / "constraints.txt",
        "--list",
        folder / "advisories.json",
        *options,
    ]
    done = subprocess.run(list(map(str, call)), text=True, capture_output=True, env=os.environ | environment)
    assert done.stderr == ""
    return done.returncode, done.stdout


def write(folder: Path, pins: dict[str, object], accepted: dict[str, str], *, days: int = 0) -> None:
    (folder / "constraints.txt").write_text(
        "safe==1.0 \\\n    --hash=sha256:00\nhurt==2.0 ; python_version < '3.11' \\\n    --hash=sha256:00\n"
    )
    made = (date.today() - timedelta(days)).isoformat()
    (folder / "advisories.json").write_text(json.dumps({"made": made, "accepted": accepted, "pins": pins}))


def test_a_pin_with_a_known_vulnerability_fails_until_it_is_accepted(tmp_path):
    write(tmp_path, {"safe==1.0": [], "hurt==2.0": [ADVISORY]}, {})
    code, said = audit(tmp_path)
    assert code == 1 and "hurt==2.0: PYSEC-2026-1, CVE-2026-1: a crafted file runs code; fixed in 2.1" in said
    write(tmp_path, {"safe==1.0": [], "hurt==2.0": [ADVISORY]}, {"PYSEC-2026-1": "no such file is read"})
    code, said = audit(tmp_path)
    assert code == 0 and "0 known vulnerabilities, 1 accepted" in said


def test_a_pin_that_is_not_in_the_list_fails(tmp_path):
    write(tmp_path, {"safe==1.0": [], "hurt==1.9": []}, {})
    code, said = audit(tmp_path)
    assert code == 1 and "1 pins are not in" in said and "hurt==2.0" in said


def test_missing_answers_and_an_old_list_are_reported(tmp_path):
    write(tmp_path, {"safe==1.0": [], "hurt==2.0": None}, {}, days=91)
    code, said = audit(tmp_path)
    assert code == 0 and "no answer from the index for 1" in said and "91 days old" in said


@pytest.fixture
def index():
    """Return the address of an index with a page for a version of one project, and only a project page for two
    others."""
    page = {
        "info": {"version": "2.0"},
        "vulnerabilities": [ADVISORY, ADVISORY | {"id": "PYSEC-2026-2", "withdrawn": "2026-01-01"}],
    }
    pages = {
        "/pypi/hurt/2.0/json": page,
        "/pypi/safe/json": {"info": {"version": "1.0"}, "vulnerabilities": []},
        "/pypi/later/json": {"info": {"version": "9.0"}, "vulnerabilities": []},
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in pages else 404)
            self.end_headers()
            self.wfile.write(json.dumps(pages.get(self.path)).encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_refresh_replaces_the_list_and_keeps_what_was_accepted(tmp_path, index):
    write(tmp_path, {}, {"PYSEC-2020-1": "old"}, days=400)
    with (tmp_path / "constraints.txt").open("a") as file:
        file.write("later==8.0\n")
    code, said = audit(tmp_path, "--refresh", UV_DEFAULT_INDEX=f"{index}/simple")
    assert code == 1 and "PYSEC-2026-1" in said and "PYSEC-2026-2" not in said and "400 days" not in said
    made = json.loads((tmp_path / "advisories.json").read_text())
    assert made["accepted"] == {"PYSEC-2020-1": "old"} and made["made"] == date.today().isoformat()
    assert (
        made["pins"]["safe==1.0"] == [] and made["pins"]["later==8.0"] is None and len(made["pins"]["hurt==2.0"]) == 1
    )


def test_an_unreachable_index_leaves_the_list_unchanged(tmp_path):
    write(tmp_path, {"safe==1.0": []}, {})
    before = (tmp_path / "advisories.json").read_text()
    code, said = audit(tmp_path, "--refresh", UV_DEFAULT_INDEX="http://127.0.0.1:9/simple")
    assert code == 2 and "cannot be reached" in said and (tmp_path / "advisories.json").read_text() == before


def test_every_pin_has_the_hashes_of_its_files():
    entries = re.split(r"\n(?=\S)", (ROOT / "constraints.txt").read_text().strip())
    assert len(entries) > 100
    assert [e.split()[0] for e in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}$", e)] == []


def write_wheel(folder, name, needs=""):
    """Write a wheel with one empty module; return its SHA-256."""
    wheel, about = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    needed = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needed}")
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("all are pinned", ""),
        ("another hash", "Hash mismatch"),
        ("a dependency is not named", "no trusted hash was provided for: `inner`"),
        ("a requirement is not named", "no trusted hash was provided for: `outer`"),
    ],
)
def test_only_packages_that_the_constraints_name_with_a_hash_are_installed(tmp_path, case, reason):
    (tmp_path / "index").mkdir()
    hashes = {"inner": write_wheel(tmp_path / "index", "inner")}
    hashes["outer"] = write_wheel(tmp_path / "index", "outer", needs="inner")
    if case == "another hash":
        hashes["inner"] = "0" * 64
    left_out = {"a dependency is not named": "inner", "a requirement is not named": "outer"}.get(case)
    pins = [f"{name}==1.0 \\\n    --hash=sha256:{value}\n" for name, value in hashes.items() if name != left_out]
    (tmp_path / "constraints.txt").write_text("".join(pins))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\ndependencies = ["outer"]\n')
    makefile = (ROOT / "Makefile").read_text()
    options = re.search("^HOW_pinned := (.*)$", makefile, re.MULTILINE)[1].split()
    assert "$(HOW_$(VERSIONS)) --requirement pyproject.toml" in makefile
    call = ["uv", "pip", "install", *options, "--requirement", "pyproject.toml", "--no-index", "--find-links", "index"]
    there = tmp_path / "there"
    done = subprocess.run(
        [sys.executable, "-m", *call, "--no-cache", "--target", str(there)],
        cwd=tmp_path,
        text=True,
        capture_output=True,
    )
    is_right = not reason
    assert (done.returncode == 0, (there / "outer.py").exists(), (there / "inner.py").exists()) == (is_right,) * 3
    assert reason in done.stderr


def test_uv_takes_no_settings_of_folders_above():
    """It takes those of the nearest folder that has some, which could name packages to build with."""
    assert "\n[tool.uv]\n" in (ROOT / "pyproject.toml").read_text()


def test_every_file_that_installs_the_pins_asks_for_hashes():
    """Each call of uv with the constraints refuses what they do not name, or installs vlalign alone."""
    files = ["Makefile", ".github/workflows/check.yml", "ray_jobs/Dockerfile", "tests/benchmarks/gpu/prepare.py"]
    files += [str(path.relative_to(ROOT)) for path in (ROOT / "ray_jobs").glob("*.yaml")]
    for name in files:
        text = (ROOT / name).read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if "uv pip install" in line and "$(HOW_" not in line:
                assert "--require-hashes" in line or "--no-deps" in line, (name, line)
            assert not re.search(r"(curl|wget)[^|]*\| *(ba)?sh", line), (name, line)
