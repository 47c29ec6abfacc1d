"""NCL's Tables 1 to 3 and CMCM's Table 1 from video files: frames, trainings of a small CLIP, and the table."""

import pytest
from helpers.clips_of_text import save_clip_with_processor, save_wide_clip
from helpers.frames import make_frames
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.datasets import demo
from vlalign.storage.captions.files import read_captions, read_captions_about, write_captions_about
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord
from vlalign.train.cli.train import main as train_main

TABLES = [("ncl-table1", "activitynet"), ("ncl-table2", "msvd"), ("ncl-table3", "msrvtt"), ("cmcm-table1", "msrvtt")]
NUM_TRAIN, NUM_OTHERS = 10, 4


def make_videos(root, name: str) -> DatasetFolder:
    """Make a data set of video files with a caption each."""
    made = make_frames(root / "made", num_train=NUM_TRAIN, num_others=NUM_OTHERS).dataset
    dataset = DatasetFolder(root, name)
    made.path.rename(dataset.path)
    scenes = demo.plan_scenes(1, {"train": NUM_TRAIN, "validation": NUM_OTHERS, "test": NUM_OTHERS})
    (dataset.path / "videos").mkdir()
    for number, (_, scene) in enumerate(scenes):
        render_video(scene, dataset.path / "videos" / f"v{number:03d}.mp4")
    records = [VideoRecord(video_id=f"v{n:03d}", path=f"videos/v{n:03d}.mp4") for n in range(len(scenes))]
    dataset.write_videos(records)
    protocol = {"msrvtt": "1k-A"}.get(name, "")
    write_captions_about(dataset.captions, read_captions_about(dataset.captions) | {"protocol": protocol})
    return dataset


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "name"), TABLES)
def test_a_table_is_two_commands_from_its_videos(tmp_path, capsys, suite, name):
    dataset = make_videos(tmp_path, name)
    at = ["--root", str(tmp_path), "--dataset", name]
    assert extract_main([*at, "--features", "clip_vit_b32_frames"]) == 0
    texts = [caption.caption for caption in read_captions(dataset.captions)]
    tower = "clip_vit_b32_map" if suite.startswith("cmcm") else "clip_vit_b32"
    short = {
        "--num-steps": 2,
        "--batch-size": 4,
        "--micro-batch-size": 2,
        "--validate-every": 2,
        "--max-video-tokens": 3,
    }
    short |= {"--text-encoder": save_wide_clip(texts, tmp_path / "texts", 512)}
    short |= {"--video-tower": f"{tower}={save_clip_with_processor(tmp_path / 'tower')}"}
    given = [str(word) for pair in short.items() for word in pair]
    assert train_main([*at, "--suite", suite, "--device", "cpu", *given]) == 0
    shown = capsys.readouterr().out
    rows = ("Our Baseline", "Proposed") if suite.startswith("cmcm") else ("CLIP4Clip", "NCL (Ours)")
    for row in rows:
        [line] = [line for line in shown.splitlines() if line.startswith(row) and " ours " in line]
        assert "nan" not in line
