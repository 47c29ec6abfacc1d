"""Features in memory do all that those in a folder do, with the same numbers."""

import re
import shutil
import sys
from dataclasses import replace

import pytest
from helpers.toy import make_toy
from vlalign.storage import FeatureStore, MemoryStore, UserError
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.common.plugins import loaded_plugin
from vlalign.storage.stores.opening import open_features, open_features_writer
from vlalign.train import evaluate, open_search, train
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import load_named_parts
from vlalign.train.cli.train import main as train_main

SETTINGS = {"features": "s3d", "num_steps": 2, "batch_size": 4}


def in_memory(folder):
    store = FeatureStore(folder)
    videos = [store.get(video_id, dtype=None) for video_id in store.video_ids()]
    return MemoryStore(store.profile, store.weights, videos)


def test_a_store_in_memory_gives_the_numbers_of_its_folder(tmp_path):
    usual = make_toy(tmp_path / "a")
    own = make_toy(tmp_path / "b")
    stores = {"s3d": in_memory(own.features("s3d"))}
    shutil.rmtree(own.features(""))
    runs = [train(usual.path, settings=SETTINGS), train(own.path, stores=stores, settings=SETTINGS)]
    files = [(run.folder / "run.json").read_text() for run in runs]
    assert files[0].partition('"result"')[0] == files[1].partition('"result"')[0], "settings and inputs"
    results = [evaluate(runs[0].folder).metrics, evaluate(runs[1].folder, stores=stores).metrics]
    assert results[0] == results[1]
    searches = [open_search(run=runs[0].folder), open_search(run=runs[1].folder, stores=stores)]
    found = [[(m.video_id, m.start_seconds, m.score) for m in search("cut the onion")] for search in searches]
    assert found[0] == found[1] != []
    encoder = searches[1].encoder
    assert encoder.identity == searches[0].encoder.identity and encoder.identity["features"]
    checksums = [encoder.checksum(video_id) for video_id in encoder.video_ids()]
    assert len({*checksums}) == len(checksums) == 24
    with pytest.raises(UserError):  # what is only in memory is nowhere else
        evaluate(runs[1].folder)


def test_what_is_no_store_is_refused_by_name(tmp_path, monkeypatch):
    toy = make_toy(tmp_path)
    for stores in ({"s3d": object()}, "missing_module:Store", in_memory(toy.features("s3d"))):
        with pytest.raises(UserError):
            train(toy.path, stores=stores, settings=SETTINGS)
    (tmp_path / "broken_stores.py").write_text("def opens(folder):\n    raise RuntimeError(folder.name)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match="RuntimeError s3d"):
        train(toy.path, stores="broken_stores:opens", settings=SETTINGS)


def test_a_store_without_a_writer_is_not_extracted_into(tmp_path):
    toy = make_toy(tmp_path)
    dataset = replace(toy, stores={"s3d": FeatureStore(toy.features("s3d"))})
    with pytest.raises(SettingError, match="write"):
        open_features_writer(dataset, "s3d")


OWN = """
from pathlib import Path

import numpy as np
from vlalign.storage import FeatureStore, RowTimes, Store

class Own(Store):
    def __init__(self, folder):
        self.shards = FeatureStore(folder)
        self.profile, self.weights, self.origin = self.shards.profile, self.shards.weights, self.shards.origin

    def video_ids(self):
        return self.shards.video_ids()

    def about(self, video_id):
        return self.shards.about(video_id)

    def row_times(self, video_id):
        return self.shards.row_times(video_id)

    def get_rows(self, ranges):
        return [rows.copy() for rows in self.shards.get_rows(ranges)]

class NotFinite(Own):
    def get_rows(self, ranges):
        found = super().get_rows(ranges)
        for rows in found:
            rows[:1] = np.nan
        return found

class Narrow(Own):
    def get_rows(self, ranges):
        return [rows[:, :5] for rows in super().get_rows(ranges)]

class Exits(Own):
    def get_rows(self, ranges):
        raise SystemExit(0)

class Raises(Own):
    def row_times(self, video_id):
        return {}["times"]
"""
BROKEN = {"NotFinite": "NaN", "Narrow": r"\[\d+, 5\]; expected .*1024\]", "Exits": "SystemExit", "Raises": "KeyError"}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A data set with a finished run that has the place of a module of stores on the import path."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "stores_of_mine.py").write_text(OWN)
    sys.path.insert(0, str(folder))
    toy = make_toy(folder / "data")
    train(toy.path, stores="stores_of_mine:Own", settings=SETTINGS, run_name="r", device="cpu")
    yield toy
    sys.path.remove(str(folder))


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", ["train", "evaluate", "search"])
def test_a_store_that_breaks_a_promise_ends_each_command_with_one_line(own, capsys, command, name):
    at = ["--root", str(own.path.parent), "--dataset", own.name, "--device", "cpu"]
    at += ["--stores", f"stores_of_mine:{name}"]
    options = {
        "train": (train_main, ["--features", "s3d", "--num-steps", "1", "--batch-size", "4", "--run-name", name]),
        "evaluate": (evaluate_main, ["r"]),
        "search": (search_main, ["r", "cut the onion"]),
    }
    main, more = options[command]
    assert main([*more, *at]) in (1, 2)
    err = capsys.readouterr().err
    [line] = [line for line in err.splitlines() if " error: " in line]
    assert "Traceback" not in err and f"store stores_of_mine:{name} of s3d: " in line
    assert re.search(BROKEN[name], line)


def test_features_under_another_name_are_said(own, capsys):
    store = in_memory(own.features("s3d"))
    open_features(replace(own, stores={"mine": store}), "mine")
    assert "s3d in memory is opened as mine" in capsys.readouterr().err


PAIRS = {**SETTINGS, "num_steps": 3, "objective": "mil-nce", "encoder": "gated"}  # without dropout


@pytest.fixture(scope="module")
def losses_of_the_folder(own):
    """The losses of one process that reads the folder."""
    return losses_of(train(own.path, settings=PAIRS, run_name="alone", device="cpu"))


def losses_of(run):
    return [event["loss"] for event in read_jsonl(run.folder / "events.jsonl")]


@pytest.mark.parametrize("case", ["name", "in memory", "object"])
def test_two_processes_read_stores_of_ones_own_as_one_reads_the_folder(own, losses_of_the_folder, case):
    import stores_of_mine

    folder = own.features("s3d")
    stores = {"name": "stores_of_mine:Own", "in memory": {"s3d": in_memory(folder)}}
    stores["object"] = {"s3d": stores_of_mine.Own(folder)}  # of a module that is not on the import path of a process
    run_name = case.replace(" ", "-")
    run = train(own.path, stores=stores[case], settings=PAIRS, run_name=run_name, device="cpu,cpu")
    assert len(losses_of(run)) == 3 and losses_of(run) == pytest.approx(losses_of_the_folder, rel=1e-4)


def test_a_module_that_only_the_calls_folder_has_is_loaded_before_the_stores_are_opened(tmp_path, capsys):
    """As on a cluster, whose processes run in folders of their own."""
    (tmp_path / "stores_elsewhere.py").write_text("class Mine: pass\n")
    argv = ["--dataset", "d", "--stores", "stores_elsewhere:Mine"]
    with pytest.raises(SystemExit):
        load_named_parts(argv)
    assert "stores_elsewhere.py" in capsys.readouterr().err
    load_named_parts(argv, str(tmp_path))
    assert loaded_plugin("stores", "stores_elsewhere:Mine").folder == str(tmp_path)
