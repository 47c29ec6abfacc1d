"""``--thumbnails-every``: more thumbnails replace fewer ones, and what is not decoded keeps its own, with a note."""

import numpy as np
import pytest
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from helpers.videos import extract_two_shapes, scene
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.settings import ExtractionSettings
from vlalign.extract.videos.demo import render_video
from vlalign.storage.common.errors import SettingError
from vlalign.storage.stores.thumbnails import ThumbnailStore


def test_more_thumbnails_replace_fewer_ones_when_videos_are_decoded(tmp_path, capsys):
    tokenizer = word_tokenizer(["red ball"])
    clip = str(save_clip(new_clip(tokenizer), tokenizer, tmp_path / "clip"))
    mine = extract_two_shapes(tmp_path, "--features", "clip_vit_b32", "--weights", clip)
    before = ThumbnailStore(mine.thumbnails).seconds("v0")
    assert len(before) == 3
    again = ["--root", str(tmp_path), "--dataset", "mine", "--weights", clip, "--features"]
    assert extract_main([*again, "clip_vit_b32", "--thumbnails-every", "1"]) == 0
    assert "--thumbnails-every 1: 2 videos had all features before" in capsys.readouterr().err
    assert ThumbnailStore(mine.thumbnails).seconds("v0").tolist() == before.tolist()
    assert extract_main([*again, "clip_vit_b32_map", "--thumbnails-every", "1"]) == 0
    assert "had all features before" not in capsys.readouterr().err
    dense = ThumbnailStore(mine.thumbnails).seconds("v0")
    assert len(dense) >= 4 and np.diff(dense).max() <= 1.0
    assert extract_main([*again, "clip_vit_b32_map", "--thumbnails-every", "1"]) == 0
    assert "had all features before" not in capsys.readouterr().err, "they are dense already"


def test_thumbnails_are_looked_at_once_and_only_where_there_may_be_some(tmp_path, monkeypatch):
    tokenizer = word_tokenizer(["red ball"])
    clip = str(save_clip(new_clip(tokenizer), tokenizer, tmp_path / "clip"))
    mine = extract_two_shapes(tmp_path, "--features", "clip_vit_b32", "--weights", clip)
    render_video(scene(4.0), tmp_path / "videos" / "v2.mp4")
    looks, look = [], ThumbnailStore.__init__
    monkeypatch.setattr(ThumbnailStore, "__init__", lambda *given: looks.append(1) or look(*given))
    again = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(tmp_path / "videos"), "--weights", clip]
    assert extract_main([*again, "--features", "clip_vit_b32"]) == 0
    shards = sorted(mine.thumbnails.iterdir())
    assert len(shards) == 2 and not looks, "of the new video there can be none"
    assert extract_main([*again, "--features", "clip_vit_b32_map"]) == 0
    assert sorted(mine.thumbnails.iterdir()) == shards and len(looks) == 1, "none are written twice"


@pytest.mark.parametrize("every", [0, 0.5, -1, float("nan"), float("inf")])
def test_thumbnails_are_a_second_apart_at_least(tmp_path, every):
    with pytest.raises(SettingError, match=r"thumbnails-every|thumbnails_every"):
        ExtractionSettings(dataset=tmp_path / "mine", features="s3d", thumbnails_every=every)
