"""vlalign-doctor: what this machine has."""

import json
import os
import re

import pytest
from vlalign.extract.cli import doctor
from vlalign.extract.cli.doctor import main
from vlalign.storage.common.packages import EXTRAS, install_command


@pytest.fixture(autouse=True)
def no_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("VLALIGN_CACHE", str(tmp_path / "cache"))


def test_what_is_there_is_listed_with_its_version(tmp_path, capsys):
    assert main(["--root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("MISSING") for line in lines)
    assert any(line.startswith("ok       PyAV ") for line in lines)
    assert any(line.split()[:3] == ["ok", "spaCy", "model"] for line in lines)
    assert any(re.search(r"\b0 of 9\b", line) for line in lines)


def test_json_has_the_same_findings(tmp_path, capsys):
    assert main(["--root", str(tmp_path), "--json"]) == 0
    findings, expected = json.loads(capsys.readouterr().out), [vars(of) for of in doctor.examine(tmp_path)]
    assert [of["what"] for of in findings] == [of["what"] for of in expected]
    # What is free on the disk changes from call to call.
    assert [of for of in findings if of["what"] != "disk"] == [of for of in expected if of["what"] != "disk"]


def test_what_is_missing_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "SPACY_MODELS", ("no_such_model",))
    monkeypatch.setenv("PATH", "")
    assert main(["--root", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "MISSING  spaCy model" in out and f"-> {install_command(*EXTRAS['english'])}" in out
    assert re.search(r"^note +ffmpeg program .*\n? *-> .*apt-get .*ffmpeg", out, re.MULTILINE)


def test_a_folder_that_does_not_exist_yet_is_looked_at_by_its_disk(tmp_path):
    [finding] = [of for of in doctor.examine(tmp_path / "a" / "b") if of.what == "disk"]
    assert re.search(r"\d GiB .*" + re.escape(str(tmp_path)), finding.found) and not finding.needed


def test_a_full_disk_is_missing_room(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "MIN_DISK_BYTES", os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize)
    [finding] = [of for of in doctor.examine(tmp_path) if of.what == "disk"]
    assert finding.needed and finding.todo and str(tmp_path) in finding.found
