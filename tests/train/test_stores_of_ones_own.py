"""Features in memory do all that those in a folder do, with the same numbers."""

import shutil

import pytest
from helpers.toy import make_toy
from vlalign.storage import FeatureStore, MemoryStore, UserError
from vlalign.storage.common.errors import SettingError
from vlalign.storage.stores.opening import open_features_writer
from vlalign.train import evaluate, open_search, train

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
    for stores in ({"s3d": object()}, "missing_module:Store"):
        with pytest.raises(UserError):
            train(toy.path, stores=stores, settings=SETTINGS)
    (tmp_path / "broken_stores.py").write_text("def opens(folder):\n    raise RuntimeError(folder.name)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match="RuntimeError s3d"):
        train(toy.path, stores="broken_stores:opens", settings=SETTINGS)


def test_a_store_without_a_writer_is_not_extracted_into(tmp_path):
    from dataclasses import replace

    toy = make_toy(tmp_path)
    dataset = replace(toy, stores={"s3d": FeatureStore(toy.features("s3d"))})
    with pytest.raises(SettingError, match="write"):
        open_features_writer(dataset, "s3d")
