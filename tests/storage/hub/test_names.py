"""Names of encoders that a library loads, and the names of their stores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.validation import DATASET_NAME
from vlalign.storage.hub.names import HubName, is_hub_name, read_hub_name
from vlalign.storage.profiles import split_encoders, split_features

NAMES = {
    "hf:facebook/dinov2-base": ("facebook--dinov2-base", HubName("facebook/dinov2-base")),
    "hf:a/b@main": ("a--b", HubName("a/b", "main")),
    "hf:a/b@refs/pr/1:tokens": ("a--b--tokens", HubName("a/b", "refs/pr/1", "tokens")),
    "hf:a/b:mean:2fps": ("a--b--mean--2fps", HubName("a/b", None, "mean", 2)),
    "hf:a/b:mean:whole": ("a--b--mean--whole", HubName("a/b", None, "mean", is_whole=True)),
    "hf:a/b:7.5fps": ("a--b--7.5fps", HubName("a/b", None, None, 7.5)),
    "hf:/models/my-clip": ("my-clip", HubName("/models/my-clip")),
    "hf:./my-clip:first": ("my-clip--first", HubName("./my-clip", None, "first")),
    "timm:resnet18.a1_in1k": ("timm--resnet18.a1_in1k", HubName("timm/resnet18.a1_in1k")),
    "hf:my-clip": ("my-clip", HubName("my-clip")),
}


@pytest.mark.parametrize("text", NAMES)
def test_a_name_is_read_and_written(text):
    store, expected = NAMES[text]
    name = read_hub_name(text)
    assert (name, name.store, name.text) == (expected, store, text.replace("timm:", "hf:timm/"))
    assert is_hub_name(text) and name.is_folder == ("clip" in text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("hf:", "hf:ORG/MODEL, timm:NAME"),
        ("hf:a/b:half", "'half'"),
        ("hf:a/b:mean:first", "'first'"),
        ("hf:a/b:2fps:whole", ":whole.*:2fps|:whole "),
        ("hf:a/b:0fps", "'0fps'"),
        (f"hf:a/b:{'9' * 400}fps", "9fps' is not known"),
        ("hf:a/b@", "hf:ORG/MODEL, timm:NAME"),
        ("hf:models/mine/clip", r"\./models/mine/clip"),
        ("hf:./clip@main", r"^features hf:\./clip@main: "),
        ("hf:./my clip", "'my clip'"),
        ("hf:..", r"'\.\.'"),
    ],
)
def test_other_forms_are_refused(text, named):
    with pytest.raises(SettingError, match=named) as refused:
        read_hub_name(text)
    assert "\n" not in str(refused.value)


@given(st.text(alphabet="abf/:@.~- 1é", max_size=20))
def test_a_name_is_refused_or_has_a_store_that_is_a_folder(text):
    try:
        name = read_hub_name(f"hf:{text}")
    except SettingError:
        return
    assert DATASET_NAME.fullmatch(name.store) and "/" not in name.store
    assert read_hub_name(name.text) == name


def test_features_are_split_into_encoders_and_stores():
    text = "i3d, s3d+hf:a/b:2fps,s3d"
    assert split_encoders(text) == ["i3d_resnext101", "s3d", "hf:a/b:2fps"]
    assert split_features(text) == ["i3d_resnext101", "s3d", "a--b--2fps"]
