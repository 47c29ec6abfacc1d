"""Changing files where somebody else may have put links."""

import os
import sys
from pathlib import Path

import pytest
from helpers.needs import SYSTEM, skip_without
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.writing import (
    atomic_write,
    check_folders,
    make_folder,
    move,
    open_to_write,
    remove_empty_folder,
    remove_file,
    remove_tree,
    restrict_writes,
)
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.trusted_folders import allow_folder


@pytest.fixture
def home(tmp_path) -> Path:
    """A folder of the user's."""
    home = tmp_path / "home"
    (home / "empty").mkdir(parents=True)
    (home / "tree").mkdir()
    (home / "tree" / "file").write_text("precious")
    (home / "file").write_text("precious")
    return home


@pytest.fixture
def dataset(tmp_path) -> DatasetFolder:
    dataset = DatasetFolder(tmp_path / "root", "evil")
    dataset.runs.mkdir(parents=True)
    return dataset


def contents(folder: Path) -> dict[str, str | None]:
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else None for path in folder.rglob("*")}


def write_whole(path: Path) -> None:
    with atomic_write(path) as unfinished:
        unfinished.write_text("new")


def append(path: Path) -> None:
    with open_to_write(path, "a") as file:
        file.write("new")


def move_in(path: Path) -> None:
    own = path.parent.parent / "own"
    own.write_text("new")
    move(own, path)


CHANGES = {
    "write": lambda folder: write_whole(folder / "file"),
    "write below": lambda folder: write_whole(folder / "new" / "folder" / "file"),
    "append": lambda folder: append(folder / "file"),
    "create": lambda folder: append(folder / "new"),
    "make a folder": lambda folder: make_folder(folder / "new"),
    "remove": lambda folder: remove_file(folder / "file"),
    "remove an empty folder": lambda folder: remove_empty_folder(folder / "empty"),
    "remove a tree": lambda folder: remove_tree(folder / "tree"),
    "move out": lambda folder: move(folder / "file", folder.parent / "stolen"),
    "move in": lambda folder: move_in(folder / "file"),
}


@pytest.mark.portable
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_changed_through_a_folder_that_leads_out_of_the_root(dataset, home, change):
    before = contents(home)
    (dataset.runs / "r").symlink_to(home)
    with pytest.raises(UserError, match=f"--allow-folder {home}") as refused:
        CHANGES[change](dataset.runs / "r")
    assert str(refused.value).startswith(str(dataset.runs / "r")) and "\n" not in str(refused.value)
    assert contents(home) == before


@pytest.mark.parametrize("change", CHANGES)
def test_everything_is_changed_in_a_folder_that_was_allowed(dataset, home, change):
    before = contents(home)
    (dataset.runs / "r").symlink_to(home)
    allow_folder(dataset, home)
    CHANGES[change](dataset.runs / "r")
    assert contents(home) != before


@pytest.mark.parametrize("change", CHANGES)
def test_everything_is_changed_in_the_root(dataset, tmp_path, home, change):
    elsewhere = dataset.root / "big disk"
    home.rename(elsewhere)
    before = contents(elsewhere)
    (dataset.runs / "r").symlink_to(elsewhere)
    CHANGES[change](dataset.runs / "r")
    assert contents(elsewhere) != before


def test_a_folder_is_named_where_the_link_is(dataset, home):
    dataset.captions.symlink_to(home)
    with pytest.raises(UserError) as refused:
        check_folders(dataset.captions / "counts" / "deep")
    assert str(refused.value).startswith(f"{dataset.captions}: a link to {home}")


def test_a_folder_that_is_guarded_without_a_check_keeps_what_is_written(tmp_path, home):
    (tmp_path / "export").mkdir()
    restrict_writes(tmp_path / "export")
    (tmp_path / "export" / "data").symlink_to(home)
    with pytest.raises(UserError, match=f"{tmp_path / 'export' / 'data'}: .*{home}.*{tmp_path / 'export'}"):
        write_whole(tmp_path / "export" / "data" / "file")
    write_whole(tmp_path / "export" / "file")


@skip_without(SYSTEM, [] if sys.platform == "linux" else ["folders that are used as they are open"])
def test_a_folder_that_becomes_a_link_while_a_file_is_written_leads_nowhere(dataset, home):
    before = contents(home)
    folder = dataset.runs / "r"
    with atomic_write(folder / "file") as unfinished:
        folder.rename(dataset.runs / "kept")
        folder.symlink_to(home)
        unfinished.write_text("new")
    assert contents(home) == before
    assert contents(dataset.runs / "kept") == {"file": "new"}


@skip_without(SYSTEM, [] if Path("/proc/self/fd").exists() else ["/proc"])
@pytest.mark.parametrize("change", ["append", "remove", "remove an empty folder", "move out"])
def test_a_folder_that_becomes_a_link_after_it_was_checked_leads_nowhere(dataset, home, monkeypatch, change):
    """The link is put there when the folder has been judged: the worst moment."""
    from vlalign.storage.common import writing

    before = contents(home)
    folder, kept = dataset.runs / "r", dataset.runs / "kept"
    (folder / "empty").mkdir(parents=True)
    (folder / "file").write_text("own")
    judge = writing._check

    def exchanged(path: Path, real_path: str) -> None:
        judge(path, real_path)
        if path == folder and not kept.exists():
            folder.rename(kept)
            folder.symlink_to(home)

    monkeypatch.setattr(writing, "_check", exchanged)
    CHANGES[change](folder)
    assert contents(home) == before


@pytest.mark.portable
def test_errors_name_the_file_and_not_how_its_folder_was_opened(tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        remove_file(tmp_path / "missing")
    assert missing.value.filename == str(tmp_path / "missing")
    with pytest.raises(OSError) as odd:
        make_folder(tmp_path / "new" / ("x" * 300))
    assert str(tmp_path / "new") in str(odd.value)
    (tmp_path / "new").rmdir()
    with pytest.raises(FileExistsError, match="not a folder"):
        (tmp_path / "a file").touch()
        make_folder(tmp_path / "a file" / "below")
    (tmp_path / "folder" / "file").mkdir(parents=True)
    with pytest.raises(OSError, match="file") as error:
        write_whole(tmp_path / "folder" / "file")
    assert str(tmp_path / "folder" / "file") in str(error.value) and "/proc" not in str(error.value)
    assert os.listdir(tmp_path / "folder") == ["file"]


def test_a_data_set_whose_name_is_refused_guards_nothing(tmp_path, home):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "linked").symlink_to(home)
    with pytest.raises(UserError, match="data set name"):
        DatasetFolder(tmp_path / "root", "../other")
    write_whole(tmp_path / "other" / "linked" / "file")
