"""Transcribing on a real Ray, in a network of its own, equals transcribing on one machine."""

import pytest
from helpers.clusters import PORT, cluster, environment, job, network, wait_for
from helpers.speech import small_model, spoken_dataset
from vlalign.extract import TranscriptionSettings, transcribe_dataset
from vlalign.storage.captions.transcripts import TranscriptStore

__all__ = ["cluster", "environment", "network"]  # fixtures


@pytest.mark.slow
def test_a_cluster_makes_the_transcripts_of_one_machine(tmp_path, network, environment, cluster):
    model = small_model()
    here, there = (spoken_dataset(tmp_path / name) for name in ("here", "there"))
    transcribe_dataset(TranscriptionSettings(dataset=here.path, weights=str(model), device="cpu"))
    cluster(2)
    log = tmp_path / "log.txt"
    options = ["--root", str(there.root), "--dataset", "mine", "--weights", str(model)]
    call = ["transcribe.py", "--address", f"127.0.0.1:{PORT}", *options]
    assert wait_for(job(network, environment, *call, log=log), log, 400) == 0, log.read_text()
    one, other = TranscriptStore(here.transcripts), TranscriptStore(there.transcripts)
    assert [[each.words for each in t.segments] for t in one] == [[each.words for each in t.segments] for t in other]
    assert (
        wait_for(job(network, environment, *call, log=log), log, 400) == 0 and "0 videos transcribed" in log.read_text()
    )
