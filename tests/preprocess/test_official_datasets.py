"""vlalign-preprocess with official files: folders, protocols and mistakes."""

import json

import pytest
from helpers.annotation_files import howto_video
from helpers.captions import call
from helpers.readers import write
from helpers.spoken_files import PLACES_TRAIN, PLACES_VAL, places_files
from vlalign.preprocess import prepare as preparing
from vlalign.preprocess.datasets import howto100m
from vlalign.storage import read_captions, read_idf
from vlalign.storage.captions.files import choose_protocol, read_captions_about
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord


def official(folder, *, clips=2):
    """Write files in the format of YouCook2."""
    database = {
        f"{subset}{n}": {
            "subset": subset,
            "duration": 90.0,
            "recipe_type": "101",
            "annotations": [
                {"id": i, "segment": [10 * i, 10 * i + 5], "sentence": f"cut {n} onions {i}"} for i in range(clips)
            ],
        }
        for subset in ("training", "validation")
        for n in range(3)
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "youcookii_annotations_trainval.json").write_text(json.dumps({"database": database}))
    rows = ["end,start,task,text,video_id", *(f"{5},{0},101,cut {n} onions 0,validation{n}" for n in range(2))]
    (folder / "validation_youcook.csv").write_text("\n".join(rows))
    return database


def test_official_files_are_read_from_the_default_folder(tmp_path, capsys):
    official(tmp_path / "youcook2" / "annotations")
    assert call(tmp_path, "--dataset", "youcook2") == 0
    out, _ = capsys.readouterr()
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [["train", "3", "6", "6"], ["test", "2", "2", "2"]]
    dataset = DatasetFolder(tmp_path, "youcook2")
    assert read_captions_about(dataset.captions)["protocol"] == "retrieval"
    assert {c.task for c in read_captions(dataset.captions)} == {"101"}


def test_protocols_are_kept_side_by_side(tmp_path):
    official(tmp_path / "there")
    for protocol in ("retrieval", "all"):
        assert call(tmp_path, "--dataset", "youcook2", "--annotations", tmp_path / "there", "--protocol", protocol) == 0
    usual = DatasetFolder(tmp_path, "youcook2")
    assert choose_protocol(usual, "") == choose_protocol(usual, "retrieval") == usual
    other = choose_protocol(usual, "all")
    assert other.features("s3d") == usual.features("s3d"), "and share the features"
    assert [sum(c.split == "test" for c in read_captions(d.captions)) for d in (usual, other)] == [2, 6]
    assert other.idf != usual.idf and len(read_idf(other.idf)) == len(read_idf(usual.idf))
    with pytest.raises(UserError, match="--protocol none"):
        choose_protocol(usual, "none")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (
            ["--dataset", "youcook2"],
            ["youcook2/annotations: ", "youcookii_annotations_trainval.json", "http://youcook2"],
        ),
        (
            ["--dataset", "youcook2", "--annotations", "{empty}"],
            [
                "/empty: ",
                " youcookii_annotations_trainval.json (http://youcook2",
                "validation_youcook.csv (https://github.com",
            ],
        ),
        (["--dataset", "youcook2", "--protocol", "1k"], ["--protocol 1k: ", "retrieval, all"]),
        (["--dataset", "mine", "--protocol", "1k"], ["--protocol 1k: ", "'mine'"]),
        (["--dataset", "youcook2", "--annotations", "{there}", "--workers", "0"], ["--workers 0: ", "1"]),
    ],
)
def test_mistakes_with_official_data_sets(tmp_path, capsys, argv, named):
    (tmp_path / "empty").mkdir()
    official(tmp_path / "there")
    assert call(tmp_path, *(word.format(empty=tmp_path / "empty", there=tmp_path / "there") for word in argv)) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert all(each in error for each in named), error


@pytest.mark.parametrize("strict", [False, True])
def test_unusable_rows_are_counted_or_stop_a_strict_call(tmp_path, capsys, strict):
    database = official(tmp_path / "there")
    database["training1"]["annotations"][0]["segment"] = [9, 3]
    database["training2"]["annotations"][1]["sentence"] = "  "
    path = tmp_path / "there" / "youcookii_annotations_trainval.json"
    path.write_text(json.dumps({"database": database}))
    code = call(
        tmp_path, "--dataset", "youcook2", "--annotations", tmp_path / "there", *(["--strict"] if strict else [])
    )
    err = capsys.readouterr().err
    assert f"{path}, video 'training1', clip 0: " in err and "9.0" in err and "3.0" in err
    dataset = DatasetFolder(tmp_path, "youcook2")
    if strict:
        assert code == 2 and "--strict" in err and err.count("\n") == 1 and not dataset.captions.exists()
    else:
        assert code == 1 and len(read_captions(dataset.captions)) == 6
        summary = json.loads((dataset.captions / "summary.json").read_text())
        assert summary["left_out"]["count"] == 2 and len(summary["left_out"]["first"]) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"database": []}',
        '{"database": {"v": {}}}',
        '{"database": {"v": {"subset": "training", "annotations": [3]}}}',
        b"\xff",
    ],
)
def test_other_files_with_official_names_are_rejected_in_one_line(tmp_path, capsys, content):
    official(tmp_path / "there")
    path = tmp_path / "there" / "youcookii_annotations_trainval.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert call(tmp_path, "--dataset", "youcook2", "--annotations", tmp_path / "there") == 2
    [error] = capsys.readouterr().err.splitlines()
    assert str(path) in error


def list_videos(dataset, *ids):
    dataset.write_videos([VideoRecord(video_id=video_id, path=f"/videos/{video_id}.mp4") for video_id in ids])


def changed(dataset):
    return json.loads((dataset.captions / "summary.json").read_text())["changed"]


MATCHED = "matched to a video in a subfolder by its file name"


def test_official_captions_are_matched_to_videos_in_subfolders_by_unique_file_names(tmp_path, capsys):
    official(tmp_path / "there")
    dataset, argv = DatasetFolder(tmp_path, "youcook2"), ["--dataset", "youcook2", "--annotations", tmp_path / "there"]
    assert call(tmp_path, *argv) == 0, "nothing is listed yet"
    plain = {c.video_id for c in read_captions(dataset.captions)}
    assert plain == {"training0", "training1", "training2", "validation0", "validation1"} and changed(dataset) == {}
    list_videos(
        dataset,
        "raw/training/101/training0",
        "training1",
        "copy/training1",
        "a/training2",
        "b/training2",
        "validation/101/validation0",
        "validation/101/validation1",
        "training/validation1x",
    )
    capsys.readouterr()
    assert call(tmp_path, *argv) == 1
    out, err = capsys.readouterr()
    assert f"{MATCHED}: 4\n" in out and changed(dataset) == {MATCHED: 4}
    [warning] = [line for line in err.splitlines() if "warning" in line]
    assert warning.startswith(
        f"warning: captions of video 'training2': {dataset.videos_file} lists 2 videos with this "
    )
    assert "'a/training2' and 'b/training2'" in warning
    [note] = [line for line in err.splitlines() if "have no captions" in line]
    assert note == (
        "note: 4 of 8 listed videos have no captions, such as 'a/training2', 'b/training2', 'copy/training1'"
    )
    assert {(c.video_id, c.split, c.task) for c in read_captions(dataset.captions)} == {
        ("raw/training/101/training0", "train", "101"),
        ("training1", "train", "101"),
        ("training2", "train", "101"),
        ("validation/101/validation0", "test", "101"),
        ("validation/101/validation1", "test", "101"),
    }
    assert call(tmp_path, *argv) == 1 and changed(dataset) == {MATCHED: 4}


def test_names_in_another_case_are_reported_also_if_nothing_matches(tmp_path, capsys):
    official(tmp_path / "there")
    dataset, argv = DatasetFolder(tmp_path, "youcook2"), ["--dataset", "youcook2", "--annotations", tmp_path / "there"]
    for matched in ([], ["training0"]):
        list_videos(dataset, "a/Validation1", "x/training2", "y/training2", *matched)
        assert call(tmp_path, *argv) == 1
        warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: captions of ")]
        ambiguous, other_case, *others = warnings
        assert "'training2'" in ambiguous and "'x/training2' and 'y/training2'" in ambiguous
        assert f"'validation1': {dataset.videos_file} lists 'a/Validation1', which differs in upper or" in other_case
        assert len(others) == 2 * bool(matched) and all("does not list it" in line for line in others)


def test_ids_with_folders_are_not_matched_by_their_names(tmp_path):
    """A recording of S-MiT or Places may have the name of its image."""
    dataset, folder = DatasetFolder(tmp_path, "places"), places_files(tmp_path / "there", PLACES_TRAIN, PLACES_VAL)
    list_videos(dataset, "k/kitchen/a.b", "wavs/1/utt1", "audio/b/beach/c", "images/b/beach/d")
    assert call(tmp_path, "--dataset", "places", "--annotations", folder) == 1
    captions = read_captions(dataset.captions)
    assert {c.video_id for c in captions} == {"k/kitchen/a.b", "b/beach/c", "b/beach/d"} and changed(dataset) == {}
    assert {c.recording for c in captions} == {"wavs/1/utt1", "wavs/1/utt3", "wavs/0/utt2", "wavs/0/utt4"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_read_in_chunks_is_matched_to_the_list_of_today(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(preparing, "BYTES_PER_PROCESS", 1)
    monkeypatch.setattr(howto100m, "CHUNK_CHARACTERS", 1)
    videos = {name: howto_video((0, 9, "cut the onion")) for name in ("a", "b", "c")}
    folder = write(tmp_path / "there", {"caption.json": json.dumps(videos)})
    dataset = DatasetFolder(tmp_path, "howto100m")
    for ids in ([], ["1/a", "2/b", "c"], ["1/a", "b", "3/c"]):
        if ids:
            list_videos(dataset, *ids)
        argv = ["--dataset", "howto100m", "--annotations", folder, "--workers", workers]
        assert call(tmp_path, *argv) == 0
        assert {c.video_id for c in read_captions(dataset.captions)} == set(ids or ["a", "b", "c"])
        num_matched = sum("/" in video_id for video_id in ids)
        assert changed(dataset) == ({MATCHED: num_matched} if num_matched else {})
