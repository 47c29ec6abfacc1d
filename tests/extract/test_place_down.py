"""An S3 server that refuses, fails and drops connections, and works in the end: what each call says."""

import re

import pytest
from helpers.s3_server import Fault, running_server, use_server
from helpers.sounds import sound_of_one_second
from s3fs import S3FileSystem
from vlalign.extract.cli.extract import main
from vlalign.extract.pipeline import dispatch, download
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder

NUM_VIDEOS = 12


@pytest.fixture
def server(monkeypatch):
    with running_server() as made:
        use_server(made, monkeypatch)
        monkeypatch.setattr(download, "PAUSE_SECONDS", 0.05)
        monkeypatch.setattr(dispatch, "FIRST_PAUSE_SECONDS", 0.2)
        made.make_bucket("films")
        for number in range(NUM_VIDEOS):
            S3FileSystem().pipe_file(f"films/{number:02}.wav", sound_of_one_second())
        yield made
        S3FileSystem.clear_instance_cache()


@pytest.fixture
def call(tmp_path):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    ids = [f"{number:02}" for number in range(NUM_VIDEOS)]
    dataset.write_videos([VideoRecord(video_id=its, path=f"s3://films/{its}.wav") for its in ids])
    return ["--root", str(dataset.root), "--dataset", "mine", "--features", "logmel"]


@pytest.mark.slow
def test_a_server_that_is_ill_ends_the_call_with_one_line_and_the_same_call_goes_on(server, call, monkeypatch, capsys):
    monkeypatch.setattr(dispatch, "PATIENCE_SECONDS", 2.0)
    dataset = DatasetFolder(call[1], "mine")
    for fault, word in [
        (Fault(what="AccessDenied", status=403), "(Forbidden|denied)"),
        (Fault(what="SlowDown", status=503), "(SlowDown|503|reduce|Unavailable)"),
        (Fault(what="reset"), "(onnect)"),
    ]:
        server.fail(fault)
        assert main(call) == 1
        *_, last = capsys.readouterr().err.splitlines()
        assert re.fullmatch(
            rf"vlalign-extract: error: s3://films: unreachable: .*{word}.*; 12 videos are left, which do not "
            r"count as failed; "
            r"run the same command again once it can be read",
            last,
        ), last
        assert not read_jsonl(dataset.features("logmel") / "failures.jsonl")
    server.fail()
    assert main(call) == 0
    assert len(FeatureStore(dataset.features("logmel")).video_ids()) == NUM_VIDEOS


def test_a_call_waits_for_a_server_that_works_again(server, call, monkeypatch, capsys):
    server.fail(Fault(what="AccessDenied", status=403))
    checked = dispatch.Dispatch.checked

    def mend_after_two_checks(self, check, readable, problem):
        checked(self, check, readable, problem)
        if self._links[check.machine][check.place].num_checks == 2:
            server.fail()

    monkeypatch.setattr(dispatch.Dispatch, "checked", mend_after_two_checks)
    assert main(call) == 0
    told = capsys.readouterr().err
    assert "note: s3://films cannot be read (unreachable: " in told and "note: s3://films can be read again" in told
