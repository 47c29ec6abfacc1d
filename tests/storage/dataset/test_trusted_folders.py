"""What is sent is a file that was opened once, in a folder that may be read, whatever its name leads to by then."""

import os
import threading

import pytest
from vlalign.extract.decoding.input_file import open_regular
from vlalign.storage import VideoRecord
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.trusted_folders import AllowedFolders, allow_folder, how_to_allow, refuse_other_folders

SECRET, CONTENT = b"the secret of another folder", b"a video"


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "videos").mkdir(parents=True)
    (root / "videos" / "a.mp4").write_bytes(CONTENT)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.mp4").write_bytes(SECRET)
    (tmp_path / "root-of-another").mkdir()
    (tmp_path / "root-of-another" / "a.mp4").write_bytes(SECRET)
    return root


def read(folders: AllowedFolders, path) -> bytes:
    descriptor, _ = folders.open(path)
    with open(descriptor, "rb") as file:
        return file.read()


def test_files_and_links_within_are_opened(root):
    (root / "link.mp4").symlink_to("videos/a.mp4")
    (root / "folder").symlink_to("videos")
    os.link(root / "videos" / "a.mp4", root / "hard.mp4")  # not told from a copy
    for name in ("videos/a.mp4", "link.mp4", "folder/a.mp4", "hard.mp4"):
        assert read(AllowedFolders([str(root)]), root / name) == CONTENT
    assert AllowedFolders([str(root)]).open(root / "link.mp4")[1] == os.path.realpath(root / "videos" / "a.mp4")
    assert read(AllowedFolders(["/"]), root / "link.mp4") == CONTENT


def test_a_folder_that_cannot_be_listed_is_passed_through(root):
    (root / "videos").chmod(0o111)
    try:
        assert read(AllowedFolders([str(root)]), root / "videos" / "a.mp4") == CONTENT
    finally:
        (root / "videos").chmod(0o755)


LEADING_OUT = {
    "secret": "../outside/a.mp4",
    "passwd": "/etc/passwd",
    "environment": "/proc/self/environ",
    "memory": "/proc/self/mem",
    "device": "/dev/zero",
    "terminal": "/dev/tty",
    "circle": "x.mp4",
    "folder": "videos",
    "nothing": "videos/nothing.mp4",
    "a similar name": "../root-of-another/a.mp4",
    "through a file": "videos/a.mp4/../../../outside/a.mp4",
}


@pytest.mark.parametrize("target", LEADING_OUT.values(), ids=LEADING_OUT)
def test_what_leads_out_or_is_no_file_is_refused(root, target):
    (root / "x.mp4").symlink_to(target)
    num_open = len(os.listdir("/dev/fd"))
    for path in (root / "x.mp4", root / target):
        with pytest.raises(OSError):
            AllowedFolders([str(root)]).open(path)
        with pytest.raises(OSError):
            open_regular(path, [str(root)])
    assert len(os.listdir("/dev/fd")) == num_open


def test_pipes_and_links_in_parents_are_refused(root):
    os.mkfifo(root / "pipe.mp4")
    (root / "out").symlink_to(root.parent / "outside")
    (root / "videos" / "up").symlink_to("../..")
    for name in ("pipe.mp4", "out/a.mp4", "videos/up/outside/a.mp4"):
        with pytest.raises(OSError):
            AllowedFolders([str(root)]).open(root / name)


@pytest.mark.parametrize("swapped", ["root/videos", "root/videos/a.mp4"])
def test_a_link_that_comes_between_check_and_opening_is_not_followed(root, monkeypatch, swapped):
    """A parent, or the file, becomes a link right after its real path was found."""
    here, outside = root.parent / swapped, root.parent / "outside"
    real = os.path.realpath

    def then_swapped(path, **options):
        found = real(path, **options)
        if str(path).endswith("a.mp4"):
            here.rename(root.parent / "kept")
            here.symlink_to(outside / here.name if here.suffix else outside)
        return found

    allowed = AllowedFolders([str(root)])
    monkeypatch.setattr(os.path, "realpath", then_swapped)
    with pytest.raises(OSError):
        allowed.open(root / "videos" / "a.mp4")


@pytest.mark.parametrize("part", ["folder", "its parent"])
def test_a_permission_does_not_move_with_a_link(tmp_path, root, part):
    """Neither does it when the folder is passed to a child process."""
    dataset, allowed = DatasetFolder(tmp_path / "data", "d"), root / "videos"
    allow_folder(dataset, allowed)
    (root / "link").symlink_to("videos")
    assert read(AllowedFolders.of(dataset), root / "link" / "a.mp4") == CONTENT
    swapped = allowed if part == "folder" else root
    swapped.rename(tmp_path / "kept")
    outside = tmp_path / "outside"
    if part == "its parent":
        (outside / "videos").mkdir()
        outside = (outside / "a.mp4").rename(outside / "videos" / "a.mp4").parent.parent
    swapped.symlink_to(outside)
    folders = AllowedFolders.of(dataset)
    with pytest.raises(OSError):
        folders.open(allowed / "a.mp4")
    with pytest.raises(OSError):
        open_regular(allowed / "a.mp4", folders.folders)
    with pytest.raises(UserError, match="a link to"):
        refuse_other_folders(dataset, [VideoRecord(video_id="a", path=str(allowed / "a.mp4"))])
    allow_folder(dataset, allowed)  # the user passes it again
    assert read(AllowedFolders.of(dataset), allowed / "a.mp4") == SECRET


@pytest.mark.parametrize(
    ("folders", "options"),
    [
        (["/srv/b", "/srv/a", "/srv/a/c"], "--allow-folder /srv/a --allow-folder /srv/b once"),
        (
            [f"/srv/videos/{number}" for number in range(9)],
            "--allow-folder /srv/videos once, which allows everything in it",
        ),
        (
            ["/etc", *(f"/home/me/{number}" for number in range(9))],
            "--allow-folder once for each of the 10 folders, such as",
        ),
        (["/", "/etc"], "--allow-folder / once"),
    ],
)
def test_a_message_proposes_no_folder_of_the_system(folders, options):
    assert options in how_to_allow(folders)
    assert ("--allow-folder / " in how_to_allow(folders)) == ("/" in folders)


def test_a_folder_that_is_swapped_all_the_time_gives_nothing_of_another(root):
    allowed, stop, outcomes = AllowedFolders([str(root)]), threading.Event(), set()
    videos, kept, link = root / "videos", root / "kept", root / "link"
    link.symlink_to(root.parent / "outside")

    def swap() -> None:
        while not stop.is_set():
            videos.rename(kept)
            link.rename(videos)
            videos.rename(link)
            kept.rename(videos)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(3000):
            try:
                outcomes.add(read(allowed, videos / "a.mp4"))
            except OSError:
                outcomes.add(b"refused")
    finally:
        stop.set()
        thread.join()
    assert SECRET not in outcomes and CONTENT in outcomes
