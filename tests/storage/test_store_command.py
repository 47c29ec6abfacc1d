"""vlalign-store as it is called: what it prints, what it leaves, what it says to a mistake."""

import json
import os
import re
import time

import numpy as np
import pytest
from helpers.stores import PROFILE, WEIGHTS, video, write
from vlalign.storage import FeatureStore, Weights
from vlalign.storage.cli.store import main
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Failure
from vlalign.storage.stores.failure_log import FailureLog, read_failures


@pytest.fixture
def dataset(tmp_path) -> DatasetFolder:
    """A store of three shards; the last replaces a video of the first."""
    dataset = DatasetFolder(tmp_path, "mine")
    write(dataset.features("s3d"), video("a", 5), video("b", 3, base=10, partial="the end is missing"))
    write(dataset.features("s3d"), video("c", 4, base=20))
    write(dataset.features("s3d"), video("a", 2, base=30))
    return dataset


@pytest.fixture
def call(dataset, capsys):
    """(exit code, standard output, standard error) of a call about the data set."""

    def call(*args, dataset_args=("--root", str(dataset.root), "--dataset", "mine")):
        code = main([*map(str, args), *dataset_args])
        return code, *capsys.readouterr()

    return call


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


def rows(folder):
    store = FeatureStore(folder)
    return {video_id: store.get(video_id).features[:, 0].tolist() for video_id in store.video_ids()}


WHOLE = {"a": [30, 31], "b": [10, 11, 12], "c": [20, 21, 22, 23]}


@pytest.mark.parametrize("named", ["by path", "by data set", "all of the data set"])
def test_info_for_people(call, dataset, named):
    folder = dataset.features("s3d")
    code, out, err = {
        "by path": lambda: call("info", folder, dataset_args=()),
        "by data set": lambda: call("info", "s3d"),
        "all of the data set": lambda: call("info"),
    }[named]()
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert out.startswith(f"{folder}\n")
    assert "3 (1 partial or damaged, 1 replaced), 0.00 hours" in lines["videos"]
    assert "9 of 4 values, float16" in lines["rows"] and "3 shards" in lines["on"]
    assert lines["origin"].split()[1:] == ["extracted"] and PROFILE.hash in lines["profile"]
    assert "tiny.pth" in lines["weights"] and WEIGHTS.sha256 in out
    assert lines["fps"].split() == ["fps", "24"] and lines["dimension"].split() == ["dimension", "4"]
    assert "av 1.2, vlalign 0.1.0" in out and "PyAV 1.2 (3 videos)" in out


def test_info_for_programs(call, dataset):
    code, out, err = call("info", "--json")
    assert (code, err) == (0, "")
    [about] = json.loads(out)
    assert about["profile"] == json.loads(json.dumps(PROFILE.facts()))
    said = {
        "schema": 1,
        "origin": "extracted",
        "profile_hash": PROFILE.hash,
        "weights": "tiny.pth",
        "weights_sha256": WEIGHTS.sha256,
    }
    assert {name: about[name] for name in said} == said
    assert (about["videos"], about["rows"], about["shards"]) == (3, 9, 3)
    assert about["made_with"] == {"av": ["1.2"], "vlalign": ["0.1.0"]} and about["decoders"] == {"PyAV 1.2": 3}
    assert about["partial_videos"] == 1 and about["replaced_videos"] == 1 and about["types"] == ["float16"]
    assert about["hours"] == pytest.approx(9 / 1.5 / 3600, abs=1e-6)
    assert about["bytes"] == sum(p.stat().st_size for p in dataset.features("s3d").iterdir())


def test_ls(call):
    code, out, _ = call("ls", "s3d")
    assert code == 0
    # The headings are a promise: other programs read this table.
    assert [line.split("\t") for line in out.splitlines()] == [
        ["video_id", "rows", "seconds", "decoder", "partial"],
        ["a", "2", "1.33", "PyAV 1.2", ""],
        ["b", "3", "2.00", "PyAV 1.2", "the end is missing"],
        ["c", "4", "2.67", "PyAV 1.2", ""],
    ]


def test_verify_and_repair(call, dataset):
    folder = dataset.features("s3d")
    code, out, err = call("verify")
    assert (code, err) == (0, "") and out.startswith(f"{folder}: 3 shards") and out.count("\n") == 1
    first, second, _ = sorted(folder.iterdir())
    shard = FeatureStore(folder).locate("b")[0]
    flip(first, shard.offsets["features"] + 5 * 8 + 3)  # in the first row of b, which follows five of a
    flip(second, 300)
    code, out, err = call("verify")
    assert code == 1
    assert f"{folder}: 2 of 3 shards" in out and f"vlalign-store repair {folder}" in out
    damaged, unreadable = err.splitlines()
    assert damaged.startswith(f"warning: {first}: ") and damaged.endswith(": b")
    assert unreadable.startswith(f"warning: {second}: ")
    code, out, err = call("repair")
    assert code == 0 and f"{folder}: 2 of 3 " in out and "vlalign-extract" in out
    assert "1 video " in err and f"{first}: " in err and f"{second}: " in err
    assert rows(folder) == {"a": WHOLE["a"]}
    assert call("verify")[0] == 0


def test_verify_reports_unfinished_files(call, dataset):
    folder = dataset.features("s3d")
    left = folder / ".1.h5.99-abc.partial"
    left.write_bytes(b"half")
    assert call("verify")[2] == "", "its writer may still be at work"
    os.utime(left, (time.time() - 7200,) * 2)
    code, _, err = call("verify")
    assert code == 0 and err.startswith(f"note: {folder}: 1 unfinished file ")
    call("repair")
    assert not left.exists() and rows(folder) == WHOLE


def test_compact(call, dataset):
    folder = dataset.features("s3d")
    code, out, _ = call("compact")
    assert code == 0 and re.search(r": 3 shards\D* 1\b", out)
    assert rows(folder) == WHOLE and len(list(folder.iterdir())) == 1
    assert re.search(r": 1 shard\D* 1\b", call("compact")[1])


def test_merge(call, dataset, tmp_path):
    other = tmp_path / "other"
    write(other, video("b", 1, base=90), video("d", 1, base=40))
    into = tmp_path / "into"
    code, out, _ = call("merge", dataset.features("s3d"), other, "--into", into, dataset_args=())
    assert code == 0 and "4 shards " in out and "4 videos " in out
    assert rows(into) == WHOLE | {"b": [90], "d": [40]}
    code, out, _ = call("merge", dataset.features("s3d"), other, "--into", into, dataset_args=())
    assert code == 0 and "0 shards " in out and "4 videos " in out
    assert rows(dataset.features("s3d")) == WHOLE


def test_merge_of_other_weights_is_refused_with_both_shown(call, dataset, tmp_path):
    write(tmp_path / "other", video("d", 1), weights=Weights(name="other.pth", sha256="cd" * 32))
    code, _, err = call(
        "merge", dataset.features("s3d"), tmp_path / "other", "--into", tmp_path / "into", dataset_args=()
    )
    assert code == 2 and "tiny.pth" in err and "other.pth" in err and "Traceback" not in err
    assert not (tmp_path / "into").exists()


def test_rm(call, dataset):
    code, out, _ = call("rm", "s3d", "a", "c")
    assert code == 0 and "2 videos " in out
    assert rows(dataset.features("s3d")) == {"b": WHOLE["b"]}, "and the a that was replaced does not come back"
    code, out, err = call("rm", "s3d", "a", "nobody")
    assert code == 1 and "'nobody'" in err and "0 videos " in out
    assert rows(dataset.features("s3d")) == {"b": WHOLE["b"]}


@pytest.mark.parametrize("has_shards", [True, False])
def test_rm_forgets_failures(call, dataset, has_shards):
    log = FailureLog(dataset.features("s3d") / "failures.jsonl")
    failed = {video: Failure(video_id=video, path=f"{video}.mp4", kind="unreadable", message="no") for video in "xya"}
    log.append(failed)
    log.append({"a": None})
    if not has_shards:
        for path in dataset.features("s3d").glob("*.h5"):
            path.unlink()
    code, out, err = call("rm", "s3d", "x", "nobody")
    assert code == 1 and "'nobody'" in err and "'x'" not in err and "1 video removed" in out
    assert list(read_failures(log.path)) == ["y"]
    assert "x.mp4" not in log.path.read_text() and "a.mp4" not in log.path.read_text(), "superseded lines are gone"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["info", "r152"], "r152"),
        (["verify", "/no/such"], "/no/such: "),
        (["export", "r152", "{empty}", "--form", "npy"], "r152: "),
        (["import", "{empty}", "--profile", "s3d"], "empty: "),
        (["import", "{empty}", "--profile", "s4d"], "s4d"),
    ],
)
def test_a_mistake_gets_one_line(call, tmp_path, args, complaint):
    (tmp_path / "empty").mkdir()
    code, _, err = call(*(arg.format(empty=tmp_path / "empty") for arg in args))
    assert code == 2 and complaint in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("args", [["info"], ["import", "x", "--profile", "s3d"]])
def test_a_missing_store_or_data_set_names_the_option_to_pass(call, args):
    code, _, err = call(*args, dataset_args=())
    assert code == 2 and "--dataset" in err and len(err.splitlines()) == 1


def test_features_are_imported_and_exported(call, dataset, tmp_path):
    """HowTo100M's own way of naming files, and back."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    wrote = {f"v{n}": np.random.default_rng(n).random((5 + n, 1024)).astype(np.float16) for n in range(3)}
    for video_id, features in wrote.items():
        np.save(theirs / f"{video_id}.mp4.npy", features)
    code, out, err = call("import", theirs, "--profile", "s3d_univl")
    assert code == 0 and "3 videos " in out and "0 problems" in out, err
    _, out, _ = call("info", "s3d_univl")
    assert re.search(r"origin +imported", out) and "s3d_univl" in out
    for form in ("npy", "npz", "webdataset"):
        code, out, _ = call("export", "s3d_univl", tmp_path / form, "--form", form)
        assert code == 0 and "3 of 3 videos" in out
        assert (
            main(["import", str(tmp_path / form), "--profile", "s3d_univl", "--root", str(tmp_path), "--dataset", form])
            == 0
        )
        store = FeatureStore(tmp_path / form / "features" / "s3d_univl")
        for video_id, features in wrote.items():
            np.testing.assert_array_equal(store.get(video_id, dtype=None).features, features)
    np.testing.assert_array_equal(np.load(tmp_path / "npy" / "v1.npy"), wrote["v1"])


@pytest.mark.parametrize("action", ["info", "ls", "verify", "repair", "compact", "merge", "rm", "import", "export"])
def test_help_has_an_example(action, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([action, "--help"])
    out = capsys.readouterr().out
    assert stopped.value.code == 0 and f"vlalign-store {action}" in out.split("example:")[1] and "--dataset" in out
