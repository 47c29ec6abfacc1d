"""Spoken captions through the command."""

import pytest
from helpers.readers import (
    untimed_captions_of,
)
from helpers.spoken_files import PLACES_TRAIN, PLACES_VAL, SMIT_LISTS, SMIT_TRANSCRIPTS, places_files, smit_files
from vlalign.preprocess.cli import main
from vlalign.preprocess.datasets import places, smit
from vlalign.storage import read_captions
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder


@pytest.mark.parametrize("reader", [places, smit], ids=["places", "smit"])
def test_an_empty_folder_lists_missing_files_and_sources(tmp_path, reader):
    for protocol in reader.DATASET.protocols:
        with pytest.raises(UserError) as refused:
            untimed_captions_of(reader, tmp_path, protocol)
        message = str(refused.value)
        assert message.startswith(f"{tmp_path}: ") and message.count("(http") >= 2 and "\n" not in message


def test_tables_have_the_recording_of_each_caption(tmp_path, capsys):
    places_files(tmp_path / "places/annotations", PLACES_TRAIN, PLACES_VAL)
    assert main(["--root", str(tmp_path), "--dataset", "places"]) == 0
    made = {c.recording: c for c in read_captions(DatasetFolder(tmp_path, "places").captions)}
    assert list(made) == ["wavs/1/utt1", "wavs/1/utt3", "wavs/0/utt2", "wavs/0/utt4"]
    assert made["wavs/0/utt4"].words == ["two", "people", "walk"] and made["wavs/0/utt4"].video_id == "b/beach/d"

    folder = tmp_path / "smit/annotations"
    folder.mkdir(parents=True)
    smit_files(folder, SMIT_LISTS, SMIT_TRANSCRIPTS)
    assert main(["--root", str(tmp_path), "--dataset", "smit"]) == 0
    made = [c for c in read_captions(DatasetFolder(tmp_path, "smit").captions) if c.split == "test"]
    assert {c.recording for c in made} == {"audio/fly/d", "audio/run/e"}
    assert "protocol: full" in capsys.readouterr().out
