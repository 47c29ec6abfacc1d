"""Rows of spoken captions as input to a model."""

import re

import numpy as np
import pytest
from helpers.spoken import make_spoken
from helpers.training import SPOKEN, at, options
from vlalign.storage import Caption
from vlalign.storage.captions.files import write_part
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.text_inputs import RecordingInputs, report_cut_recordings


def test_recordings_are_normalised_and_truncated(spoken):
    from vlalign.storage import FeatureStore
    from vlalign.storage.captions.files import read_captions

    store = FeatureStore(spoken.features("logmel"))
    captions = read_captions(spoken.captions)[:3]
    inputs = RecordingInputs(store, max_tokens=5)(captions)
    for caption, rows, mask in zip(captions, inputs["rows_BTD"], inputs["mask_BT"], strict=True):
        raw = store.get(caption.recording).features  # the level is that of the whole recording
        expected = np.maximum(raw - raw.max(), -80)[:80]
        assert mask.sum() == len(expected) and not mask[len(expected) :].any()
        np.testing.assert_allclose(rows[: len(expected)], expected)


def test_recordings_that_are_cut_are_counted(spoken, capsys):
    from vlalign.storage import FeatureStore
    from vlalign.storage.captions.files import read_captions

    store, captions = FeatureStore(spoken.features("logmel")), read_captions(spoken.captions)
    lengths = sorted(len(store.get(caption.recording).features) for caption in captions)
    num_longer = sum(length > 16 * 7 for length in lengths)
    assert 0 < num_longer < len(lengths)
    report_cut_recordings(captions, store, max_tokens=7)
    assert f"note: {num_longer} of 36 recordings are cut to their first 1.12 s" in capsys.readouterr().err
    report_cut_recordings(captions, store, max_tokens=-(-lengths[-1] // 16))
    assert not capsys.readouterr().err


@pytest.mark.slow
def test_captions_without_a_recording_are_reported(tmp_path, capsys):
    dataset = make_spoken(tmp_path, num_clips=16)
    written = Caption(video_id="v00", caption="only written", split="train")
    lost = Caption(video_id="v01", caption="lost", split="train", recording="gone")
    write_part(dataset.captions, 1, [written, lost], {})
    call = [*at(dataset), "--features", "resnet152", "--num-steps", "2", "--batch-size", "4"]
    assert train_main([*call, *options(SPOKEN)]) == 1
    place = re.escape(str(dataset.features("logmel")))
    assert re.search(rf"\b2 of 18\b.*: .*{place}", capsys.readouterr().err)
    assert train_main([*call, *options(SPOKEN), "--objective", "taco"]) == 2
    assert re.search(r"--encoder spoken: .*\btaco: .*\bwords\b", capsys.readouterr().err)
    assert train_main([*call, *options(SPOKEN), "--micro-batch-size", "2"]) == 2
    assert re.search(r"--micro-batch-size 2: .*\bspoken\b.*\b0$", capsys.readouterr().err, re.MULTILINE)
