"""Spoken captions: CMCM's encoders for clips and recordings, and a run that hears, from the stores to the report."""

import re

import numpy as np
import pytest
import torch
from helpers.spoken import make_spoken
from helpers.training import SPOKEN, at, check_processes, gradient, losses_of, trainer
from vlalign.storage import Caption
from vlalign.storage.captions import write_part
from vlalign.storage.files import read_json
from vlalign.storage.layout import DatasetFolder
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_search import main as search_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.data.recordings import Recordings
from vlalign.train.models.spoken import WIDTH, SpokenPair
from vlalign.train.trainer import Trainer


@pytest.fixture(scope="module")
def spoken(tmp_path_factory) -> DatasetFolder:
    return make_spoken(tmp_path_factory.mktemp("spoken"))


def test_padding_changes_neither_clip_nor_recording():
    torch.manual_seed(0)
    model = SpokenPair(7).eval()
    rows, lengths = torch.randn(2, 5, 7), [3, 5]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    spoken_rows, spoken_mask = torch.randn(2, 100, 40), torch.arange(100) < torch.tensor([33, 100])[:, None]
    clips, recordings = (
        model.encode_videos(rows, mask),
        model.encode_texts({"rows_BTD": spoken_rows, "mask_BT": spoken_mask}),
    )
    alone, heard = (
        model.encode_videos(rows[:1, :3], mask[:1, :3]),
        model.encode_texts({"rows_BTD": spoken_rows[:1, :33], "mask_BT": spoken_mask[:1, :33]}),
    )
    torch.testing.assert_close(clips.mean_BD[:1], alone.mean_BD)
    torch.testing.assert_close(clips.tokens_BMD[:1, :3], alone.tokens_BMD)
    torch.testing.assert_close(recordings.sentence_BD[:1], heard.sentence_BD, atol=1e-4, rtol=1e-4)
    assert recordings.mask_BN.sum(dim=1).tolist() == [3, 7] and recordings.tokens_BND.shape[-1] == WIDTH


def test_pooling_is_table_3s():
    torch.manual_seed(0)
    model = SpokenPair(6).eval()
    rows = torch.randn(1, 4, 6)
    tokens = model.encode_videos(rows, torch.ones(1, 4, dtype=torch.bool))
    each = torch.stack([model.project(row) for row in rows[0]])
    torch.testing.assert_close(tokens.mean_BD[0], model.seen_summary(each.max(dim=0).values))
    still = SpokenPair(6, still=True).eval()
    tokens = still.encode_videos(rows, torch.ones(1, 4, dtype=torch.bool))
    each = torch.stack([still.project(row) for row in rows[0]])
    torch.testing.assert_close(tokens.tokens_BMD[0], each)
    torch.testing.assert_close(tokens.mean_BD[0], still.seen_summary(each.mean(dim=0)))


def test_recordings_are_levelled_and_cut(spoken):
    from vlalign.storage import FeatureStore
    from vlalign.storage.captions import read_captions

    store = FeatureStore(spoken.features("logmel"))
    captions = read_captions(spoken.captions)[:3]
    inputs = Recordings(store, max_tokens=5)(captions)
    for caption, rows, mask in zip(captions, inputs["rows_BTD"], inputs["mask_BT"], strict=True):
        raw = store.get(caption.recording).features[:80]
        expected = np.maximum(raw - raw.max(), -80)
        assert mask.sum() == len(raw) and not mask[len(raw) :].any()
        np.testing.assert_allclose(rows[: len(raw)], expected)
    assert inputs["rows_BTD"].max() == 0


def options() -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in SPOKEN.items()]


@pytest.mark.slow
def test_a_run_that_hears_goes_on_and_is_evaluated(spoken, monkeypatch, capsys):
    call = [
        *at(spoken),
        "--features",
        "resnet152",
        *options(),
        "--batch-size",
        "6",
        "--validate-every",
        "3",
        "--num-steps",
        "6",
    ]
    assert train_main([*call, "--run-name", "whole"]) == 0
    step = Trainer.train_step

    def stopped(self, inputs):
        if self.step == 4:
            raise KeyboardInterrupt
        return step(self, inputs)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", stopped)
        assert train_main([*call, "--run-name", "stopped"]) == 130
    assert train_main([*call, "--run-name", "stopped"]) == 0
    assert losses_of(spoken.runs / "stopped") == losses_of(spoken.runs / "whole")

    assert evaluate_main([*at(spoken), "whole"]) == 0
    result, about = read_json(spoken.runs / "whole" / "metrics.json"), read_json(spoken.runs / "whole" / "run.json")
    assert result["metrics"]["text_to_video"]["num_queries"] == 9 and result["codebook"]["live"] >= 1
    assert about["inputs"]["recordings"]["features"] == "logmel"
    report = (spoken.runs / "whole" / "report.html").read_text(encoding="utf-8")
    assert 'viewBox="0 0 230.4 93.6"' in report  # a spectrogram
    capsys.readouterr()
    assert search_main([*at(spoken), "whole", "thing1"]) == 2
    assert "was trained on spoken captions, and finds no videos by text" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_said_is_found_in_what_is_seen(tmp_path):
    spoken = make_spoken(tmp_path, num_clips=160)
    call = [
        *at(spoken),
        "--features",
        "resnet152",
        "--objective",
        "ncl",
        "--encoder",
        "spoken",
        "--temperature",
        "0.1",
        "--run-name",
        "ncl",
    ]
    assert (
        train_main(
            [*call, "--batch-size", "20", "--num-steps", "60", "--learning-rate", "1e-3", "--validate-every", "60"]
        )
        == 0
    )
    assert evaluate_main([*at(spoken), "ncl"]) == 0
    found = read_json(spoken.runs / "ncl" / "metrics.json")["metrics"]
    mean_rank = np.mean([found[way]["mean_rank"] for way in ("text_to_video", "video_to_text")])
    assert mean_rank < 0.6 * found["text_to_video"]["chance"]["mean_rank"]


@pytest.mark.slow
def test_two_processes_have_the_loss_and_gradient_of_one(spoken, tmp_path):
    """However long the recordings are that each has, and so its padding."""
    settings = SPOKEN | {"features": "resnet152", "batch_size": 6}
    # The gradients are sums over twenty layers, in another order.
    check_processes({"spoken": (spoken, settings)}, tmp_path, 2, atol=1e-4)


def test_a_map_has_a_token_for_each_place(tmp_path):
    dataset = make_spoken(tmp_path, num_clips=16, features="clip_vit_b32_map")
    settings = {"features": "clip_vit_b32_map", "video_grid": "1x7x7", "batch_size": 4}
    made = trainer(dataset, tmp_path / "run", dataset="spoken", **SPOKEN | settings)
    terms, found = gradient(made)
    assert made.model.still and made.model.feature_mean.shape == (512,)
    assert made.make_inputs(0).rows.shape == (4, 49, 512)
    assert set(terms) == {"contrast", "codes"} and torch.isfinite(found).all()


def test_a_pictures_report_shows_where_codewords_are(tmp_path):
    dataset = make_spoken(tmp_path, num_clips=16, features="clip_vit_b32_map")
    call = [
        *at(dataset),
        "--features",
        "clip_vit_b32_map",
        "--video-grid",
        "1x7x7",
        *options(),
        "--batch-size",
        "4",
        "--num-steps",
        "2",
    ]
    assert train_main([*call, "--run-name", "pictures"]) == 0
    assert evaluate_main([*at(dataset), "pictures"]) == 0
    report = (dataset.runs / "pictures" / "report.html").read_text(encoding="utf-8")
    grids = re.findall(r'<svg viewBox="0 0 7 7" preserveAspectRatio="none">(.*?)</svg>', report)
    assert grids and all(1 <= grid.count("<rect") <= 49 for grid in grids)


def test_captions_that_nobody_spoke_are_said(tmp_path, capsys):
    dataset = make_spoken(tmp_path, num_clips=16)
    written = Caption(video_id="v00", caption="only written", split="train")
    lost = Caption(video_id="v01", caption="lost", split="train", recording="gone")
    write_part(dataset.captions, 1, [written, lost], {})
    call = [*at(dataset), "--features", "resnet152", "--num-steps", "2", "--batch-size", "4"]
    assert train_main([*call, *options()]) == 1
    assert "2 of 18 captions: no recording in" in capsys.readouterr().err
    assert train_main([*call, *options(), "--objective", "taco"]) == 2
    assert "--encoder spoken: does not fit objective taco: it needs to know words" in capsys.readouterr().err
    assert train_main([*call, *options(), "--micro-batch-size", "2"]) == 2
    assert "must see the whole batch" in capsys.readouterr().err
