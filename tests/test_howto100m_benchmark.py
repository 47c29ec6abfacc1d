"""The benchmark of HowTo100M: its checks find what is lost or twice, and it survives kills."""

import json
import random
import re
import shutil
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from benchmarks.howto100m.checks import check_captions, check_features
from benchmarks.howto100m.run import main, table_of
from benchmarks.howto100m.stages import Killer, Measured, Stage
from benchmarks.howto100m.synthetic import FEATURES, FRAME_SECONDS, MODULE, TAGGER, SyntheticDataset, write_stubs
from helpers.clusters import TOP, network
from vlalign.extract.cli.extract import main as extract_main
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.storage.captions.files import part_path
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder

__all__ = ["network"]  # a fixture


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    """Seven videos that the plain commands extracted and prepared."""
    folder = tmp_path_factory.mktemp("howto100m")
    dataset, made = DatasetFolder(folder / "data", "howto100m"), SyntheticDataset(7, 0)
    profile = write_stubs(folder / "stubs")
    assert made.write(dataset) == sum(len(video.clips) for video in made)
    call = ["--root", str(dataset.root), "--dataset", "howto100m"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "stubs")
        assert extract_main([*call, "--features", str(profile), "--trust", MODULE]) == 0
        assert preprocess_main([*call, "--spacy-model", TAGGER, "--workers", "1"]) == 0
    return dataset, made


@pytest.fixture
def done(extracted, tmp_path):
    """A copy of it, to be damaged."""
    dataset, made = extracted
    shutil.copytree(dataset.path, tmp_path / dataset.name)
    return DatasetFolder(tmp_path, dataset.name), made


def test_the_data_set_has_the_statistics_of_howto100m():
    videos = [SyntheticDataset(300, 1).video(number) for number in range(300)]
    clips = [clip for video in videos for clip in video.clips]
    assert len(clips) / len(videos) == pytest.approx(113, rel=0.05)
    assert sum(len(clip.text.split()) for clip in clips) / len(clips) == pytest.approx(4, rel=0.05)
    assert sum(clip.end_seconds - clip.start_seconds for clip in clips) / len(clips) == pytest.approx(4, rel=0.05)
    assert len({bytes(video.colours) for video in videos}) == 300


def test_every_caption_begins_before_its_video_ends():
    """That of video 11 would not if its start were rounded up."""
    for video in map(SyntheticDataset(12, 0).video, range(12)):
        assert video.clips[-1].start_seconds < FRAME_SECONDS * len(video.colours)


def test_what_is_whole_passes_all_checks(extracted):
    assert "7 videos once each" in check_features(*extracted)
    assert "once each and in order" in check_captions(*extracted)


@pytest.mark.parametrize("damage", ["lost", "twice", "other"])
def test_a_video_that_is_lost_twice_or_another_is_found(done, damage):
    dataset, made = done
    (shard,) = dataset.features(FEATURES).glob("*.h5")
    if damage == "lost":
        made = SyntheticDataset(8, 0)
    elif damage == "twice":
        shutil.copy(shard, shard.with_name(f"{1:020d}-00000000.h5"))
    else:
        made = SyntheticDataset(7, 1)
    with pytest.raises(UserError, match="checksum of v0" if damage == "other" else "videos in all shards"):
        check_features(dataset, made)


@pytest.mark.parametrize("damage", ["lost", "twice", "swapped", "word"])
def test_a_caption_that_is_lost_twice_swapped_or_wrong_is_found(done, damage):
    dataset, made = done
    path = part_path(dataset.captions, 0)
    table = pq.read_table(path)
    rows = list(range(len(table)))
    if damage == "word":
        at = table.schema.get_field_index("words")
        words = table["words"].to_pylist()
        words[100] = [*words[100][:-1], "else"]
        table = table.set_column(at, table.schema.field(at), [words])
    else:
        rows = {"lost": rows[:-1], "twice": [*rows, rows[-1]], "swapped": [*rows[:5], 6, 5, *rows[7:]]}[damage]
    pq.write_table(table.take(rows), path)
    with pytest.raises(UserError, match=r"caption [\d,after]+.*expected"):
        check_captions(dataset, made)


def test_kills_that_came_too_late_are_left_to_the_next_stage():
    stages = [Stage(name, "x", [], 1, "videos", 10.0) for name in ("plan", "extract", "train")]
    killer = Killer(9, stages, random.Random(0))
    counts = [len(killer.moments(stage)) for stage in stages]
    assert sum(counts) == 9
    killer.num_left_over = 2
    moments = killer.moments(stages[0])
    assert len(moments) == counts[0] + 2 and moments == sorted(moments) and 0 <= moments[0] <= moments[-1] <= 10.0
    assert killer.num_left_over == 0


def test_the_table_has_what_was_measured_and_what_the_real_thing_takes():
    names = ("plan", "extract", "preprocess", "train", "index", "evaluate")
    stages = [Stage(name, "x", [], 500, "videos", 10.0) for name in names]
    measured = [Measured(stage, 50.0, 70.0, 2 * 10**9, 113_000, ["driver", "worker", "driver"]) for stage in stages]
    rows = [line.split(" | ") for line in table_of(measured, 1000).splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {13} and [row[0].strip("| ") for row in rows[2:]] == list(names)
    extract, preprocess = rows[3], rows[4]
    assert extract[1:7] == ["50 s", "70 s", "2.0 GB", "0 MB", "10.0 videos/s", "2 drivers, 1 worker"]
    assert extract[7:12] == ["5.1 h on 64 machines", "0.2 GB in the driver", "1.5 TB", "327", "432"]
    assert preprocess[9] == f"{136_000_000 * 113 / 1e9:.0f} GB"


def test_a_folder_with_something_in_it_is_refused(tmp_path, capsys):
    (tmp_path / "mine").touch()
    assert main(["--folder", str(tmp_path)]) == 2
    assert f"{tmp_path}: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_two_thousand_videos_survive_four_kills(tmp_path, network):
    folder = tmp_path / "work"
    command = [sys.executable, str(TOP / "tests/benchmarks/howto100m/run.py"), "--videos", "2000", "--kills", "4"]
    done = subprocess.run(
        [*network, *command, "--folder", str(folder)], capture_output=True, text=True, timeout=3600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| (?:plan|extract|preprocess|train|index|evaluate) \|.*", done.stdout, re.MULTILINE)
    kills = sum(int(count) for row in rows for count in re.findall(r"(\d+) (?:driver|worker)s?\b", row))
    late = re.search(r"note: (\d+) of 4 kills were not made", done.stderr)
    assert len(rows) == 6 and kills + (int(late[1]) if late else 0) == 4 and kills >= 3
    for line in ("features: 2,000 videos once each", "index: 2,000 videos once each", "once each and in order"):
        assert line in done.stdout, json.dumps(done.stdout)
    assert not folder.exists()
