"""What the packages name as public may be called as Python's users call things."""

import importlib
import inspect
import typing
from pathlib import Path

import pytest
from vlalign.extract import ExtractionSettings, TranscriptionSettings
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import SyncSettings

PACKAGES = ("extract", "preprocess", "train", "storage", "ray_jobs")
FUNCTIONS = [
    (f"{package}.{name}", function)
    for package in PACKAGES
    for module in [importlib.import_module(f"vlalign.{package}")]
    for name in module.__all__
    if inspect.isfunction(function := getattr(module, name))
]


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_a_path_may_be_a_text(name, function):
    for parameter, annotation in typing.get_type_hints(function).items():
        kinds = typing.get_args(annotation) or (annotation,)
        assert parameter == "return" or Path not in kinds or str in kinds, parameter


def test_folders_and_settings_take_texts(tmp_path):
    dataset = DatasetFolder(str(tmp_path), "mine")  # pyright: ignore[reportArgumentType]: a user without type checks
    settings = ExtractionSettings(
        dataset=dataset.path,
        features="s3d",
        videos="videos",  # pyright: ignore[reportArgumentType]
        allow_folder=["a"],  # pyright: ignore[reportArgumentType]
    )
    assert (dataset.path, settings.videos, settings.allow_folder) == (tmp_path / "mine", Path("videos"), [Path("a")])


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (ExtractionSettings, "weights"),
        (ExtractionSettings, "accept_failures"),
        (ExtractionSettings, "allow_folder"),
        (TranscriptionSettings, "video_ids"),
        (SyncSettings, "folders"),
        (SyncSettings, "forget"),
    ],
)
def test_a_single_text_is_no_list(tmp_path, settings, name):
    with pytest.raises(SettingError, match=r"such as \['ab'\]"):
        settings(dataset=tmp_path, **{name: "ab"})
