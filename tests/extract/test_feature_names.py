"""``--features`` is written the same way for every command."""

import re

import pytest
from helpers.toy import make_toy
from vlalign.extract.cli.extract import main as extract_main
from vlalign.storage import FeatureStore, Weights, write_shard
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.errors import UserError
from vlalign.storage.profiles import PROFILES, split_features
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.stores import choose_features

WEIGHTS = Weights(name="toy", sha256="0" * 64)


@pytest.fixture
def dataset(tmp_path):
    made = make_toy(tmp_path / "root")
    write_shard(made.features("i3d_resnext101"), PROFILES["i3d_resnext101"], WEIGHTS, [], made_with={})
    return made


@pytest.mark.parametrize(
    "text, expected",
    [
        ("s3d", ["s3d"]),
        ("s3d,resnet152", ["s3d", "resnet152"]),
        ("s3d+resnet152", ["s3d", "resnet152"]),
        ("resnet152, s3d+resnet152", ["resnet152", "s3d"]),
        ("i3d,i3d_resnext101+s3d", ["i3d_resnext101", "s3d"]),
        ("", [""]),
    ],
)
def test_both_spellings_give_the_same_names_in_their_order(text, expected):
    assert split_features(text) == expected


def test_a_users_store_takes_precedence_over_an_alias(dataset):
    assert choose_features(dataset, "i3d+s3d") == "i3d_resnext101+s3d"
    write_shard(dataset.features("i3d"), PROFILES["s3d"], WEIGHTS, [], made_with={})
    assert choose_features(dataset, "i3d+s3d") == "i3d+s3d"


@pytest.mark.parametrize("text", ["s3d,i3d", "s3d+i3d", "s3d+i3d,s3d"])
def test_training_takes_both_spellings(dataset, text):
    assert choose_features(dataset, text) == "s3d+i3d_resnext101"


def test_training_names_all_features_that_are_not_there(dataset, capsys):
    with pytest.raises(UserError, match=r"tsn.* i3d_resnext101, s3d"):
        choose_features(dataset, "tsn")
    assert train_main(["--root", str(dataset.root), "--dataset", "toy", "--features", "c3d,s3d,tsn"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--features c3d,s3d,tsn: " in said and "'c3d' and 'tsn'" in said


@pytest.mark.parametrize("names", [["s3d,i3d"], ["s3d+i3d"], ["s3d", "i3d"]])
def test_stores_are_named_as_features_are(dataset, capsys, names):
    assert store_main(["verify", "--root", str(dataset.root), "--dataset", "toy", *names]) == 0
    printed = capsys.readouterr().out
    assert [line.split(":")[0].rpartition("/")[2] for line in printed.splitlines()] == ["s3d", "i3d_resnext101"]


def test_several_stores_are_refused_where_one_is_expected(dataset, capsys):
    assert store_main(["rm", "--root", str(dataset.root), "--dataset", "toy", "s3d+i3d", "v000"]) == 2
    assert re.search(r"s3d\+i3d: .*\b2\b", capsys.readouterr().err)
    assert "v000" in FeatureStore(dataset.features("s3d"))


def test_extraction_takes_both_spellings(tmp_path, capsys):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").write_bytes(b"no video")
    call = [
        "--root",
        str(tmp_path),
        "--dataset",
        "mine",
        "--videos",
        str(tmp_path / "videos"),
        "--plan",
        "--weights",
        "random",
    ]
    found = []
    for text in ("s3d,i3d", "s3d+i3d,s3d"):
        extract_main([*call, "--features", text])
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] and "i3d_resnext101" in found[0]
