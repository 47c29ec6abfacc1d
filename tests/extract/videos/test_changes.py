"""What changed in folders, decided without a file: ids follow contents."""

import random
from dataclasses import dataclass, field

import pytest
from vlalign.extract.videos.changes import Changes, Known, find_changes
from vlalign.extract.videos.folder_look import FolderLook, FoundFile, kept_paths
from vlalign.storage.dataset.synced import RemovedVideo, SyncedFolder
from vlalign.storage.records import VideoRecord


@dataclass
class Disk:
    """Folders of made files, and a data set that follows them."""

    folders: tuple[str, ...] = ("/v",)
    files: dict[str, str] = field(default_factory=dict)
    """{path: content}"""
    times: dict[str, int] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    """Folders that cannot be reached."""
    forgotten: set[str] = field(default_factory=set)
    videos: list[VideoRecord] = field(default_factory=list)
    known: dict = field(default_factory=dict)
    removed: dict[str, RemovedVideo] = field(default_factory=dict)
    num_read: int = 0
    """Files whose content was read."""

    def looks(self) -> list[FolderLook]:
        looks = []
        for folder in self.folders:
            files = [
                FoundFile(
                    path=path,
                    name=path[len(folder) + 1 :],
                    size=len(content),
                    mtime_ns=self.times.get(path, 0),
                    changed_ns=0,
                    mount="",
                )
                for path, content in sorted(self.files.items())
                if path.startswith(f"{folder}/") and folder not in self.away
            ]
            of_folder = SyncedFolder(path=folder)
            looks.append(FolderLook(folder=of_folder, files=files, unreachable="away" if folder in self.away else ""))
        return looks

    def read(self, path: str) -> str:
        self.num_read += 1
        return self.files[path]

    def sync(self) -> Changes:
        path_of, looks = {video.video_id: video.path for video in self.videos}, self.looks()
        known = Known(
            videos=self.videos, path_of=path_of, files=self.known, removed=self.removed, source_of=lambda _: ""
        )
        kept = kept_paths(path_of.values(), looks, [SyncedFolder(path=path) for path in self.forgotten], self.known)
        changes = find_changes(known, looks, kept, identity=self.read, is_copy=lambda *_: True)
        listed = {video.video_id for video in changes.videos}
        self.videos, self.known = changes.videos, changes.files
        self.removed = {i: v for i, v in self.removed.items() if i not in listed}
        self.removed |= {video.video_id: video for video in changes.removed}
        return changes

    def content_of(self, video_id: str) -> str:
        [path] = [video.path for video in self.videos if video.video_id == video_id]
        return self.files[path]


def disk(**files: str) -> Disk:
    """A synchronised folder with files named by letters."""
    made = Disk(files={f"/v/{name}.mp4": content for name, content in files.items()})
    assert made.sync().new == sorted(files)
    return made


def ids(changes: Changes) -> dict[str, str]:
    return {video.video_id: video.path for video in changes.videos}


def test_nothing_changed_and_nothing_is_read():
    made = disk(a="aa", b="bbb")
    made.num_read = 0
    changes = made.sync()
    assert (len(changes.unchanged), changes.new, changes.changed, changes.removed, made.num_read) == (2, [], [], [], 0)


def test_a_touched_file_is_read_and_unchanged():
    made = disk(a="aa", b="bbb")
    made.num_read, made.times = 0, {"/v/a.mp4": 5}
    changes = made.sync()
    assert (len(changes.unchanged), changes.changed, made.num_read) == (2, [], 1)
    assert len(made.sync().unchanged) == 2 and made.num_read == 1, "the new time is remembered"


def test_a_renamed_file_keeps_its_id():
    made = disk(a="aa", b="bbb")
    made.files = {"/v/c.mp4": "aa", "/v/b.mp4": "bbb"}
    changes = made.sync()
    [renamed] = changes.renamed
    assert (renamed.video_id, renamed.old_path, renamed.new_path) == ("a", "/v/a.mp4", "/v/c.mp4")
    assert ids(changes) == {"a": "/v/c.mp4", "b": "/v/b.mp4"} and changes.removed == [] and changes.new == []
    made.files["/v/a.mp4"] = "another"
    changes = made.sync()
    assert changes.new == ["a.mp4"] == list(changes.other_ids.values()), "the id of its name belongs to another"


def test_two_files_that_exchange_their_names_exchange_nothing_else():
    made = disk(a="aa", b="bb")
    made.files, made.times = {"/v/a.mp4": "bb", "/v/b.mp4": "aa"}, {"/v/a.mp4": 1, "/v/b.mp4": 1}
    changes = made.sync()
    assert ids(changes) == {"a": "/v/b.mp4", "b": "/v/a.mp4"} and not changes.changed and not changes.new


def test_a_file_that_is_overwritten_keeps_its_id():
    made = disk(a="aa", b="bb")
    made.files["/v/a.mp4"] = "other"
    changes = made.sync()
    assert changes.changed == ["a"] and ids(changes) == {"a": "/v/a.mp4", "b": "/v/b.mp4"}


def test_deleted_and_returned():
    made = disk(a="aa", b="bb")
    del made.files["/v/a.mp4"]
    assert [video.video_id for video in made.sync().removed] == ["a"] and "a" in made.removed
    made.files["/v/new name.mp4"] = "aa"
    changes = made.sync()
    assert changes.returned == ["a"] and ids(changes)["a"] == "/v/new name.mp4" and made.removed == {}


def test_of_two_copies_one_is_listed_and_the_other_takes_its_place():
    made = disk(a="aa", b="bb")
    made.files["/v/z.mp4"] = "aa"
    changes = made.sync()
    assert changes.copies == {"/v/z.mp4": "/v/a.mp4"} and set(ids(changes)) == {"a", "b"}
    assert made.sync().copies == {"/v/z.mp4": "/v/a.mp4"}
    del made.files["/v/a.mp4"]
    changes = made.sync()
    assert ids(changes)["a"] == "/v/z.mp4" and not changes.removed and not changes.copies


def test_files_that_only_look_like_copies_are_both_listed():
    path_of = {"a": "/v/a.mp4"}
    made = Disk(files={"/v/a.mp4": "aa", "/v/b.mp4": "aa"})
    known = Known(
        videos=[VideoRecord(video_id="a", path="/v/a.mp4")],
        path_of=path_of,
        files={},
        removed={},
        source_of=lambda _: "aa",
    )
    changes = find_changes(known, made.looks(), set(), identity=made.read, is_copy=lambda *_: False)
    assert changes.new == ["b"] and not changes.copies


def test_a_folder_that_is_away_keeps_its_videos():
    made = Disk(folders=("/v", "/w"), files={"/v/a.mp4": "aa", "/w/b.mp4": "bb", "/w/copy.mp4": "aa"})
    assert made.sync().new == ["a", "b"]
    made.away = {"/v"}
    changes = made.sync()
    assert ids(changes) == {"a": "/v/a.mp4", "b": "/w/b.mp4"} and not changes.removed and not changes.renamed
    assert changes.copies == {"/w/copy.mp4": "/v/a.mp4"}, "a backup is no move"
    made.files["/w/moved.mp4"] = made.files.pop("/v/a.mp4")
    made.files.pop("/w/copy.mp4")
    assert ids(made.sync())["a"] == "/w/moved.mp4", "but a video that comes up elsewhere is"


@pytest.mark.parametrize("folders", [("/v", "/v/sub"), ("/v/sub", "/v")])
def test_a_followed_folder_in_another_one_that_is_away_keeps_its_videos(folders):
    made = Disk(folders=folders, files={"/v/a.mp4": "aa", "/v/sub/b.mp4": "bb"})
    made.sync()
    made.away = {"/v/sub"}
    del made.files["/v/sub/b.mp4"]
    changes = made.sync()
    assert set(ids(changes).values()) == {"/v/a.mp4", "/v/sub/b.mp4"} and not changes.removed


def test_videos_of_a_folder_that_is_not_followed_any_more_stay():
    made = Disk(folders=("/v", "/w"), files={"/v/a.mp4": "aa", "/w/b.mp4": "bb"})
    made.sync()
    made.folders = ("/v",)
    for _ in range(2):
        changes = made.sync()
        assert ids(changes) == {"a": "/v/a.mp4", "b": "/w/b.mp4"} and not changes.removed
    made.files["/v/c.mp4"] = made.files.pop("/w/b.mp4")
    assert ids(made.sync())["b"] == "/v/c.mp4", "but a video that comes up elsewhere is followed"


def test_what_lies_only_in_a_forgotten_folder_is_removed():
    made = Disk(folders=("/v", "/w", "/w/sub"), files={"/v/a.mp4": "a", "/w/b.mp4": "b", "/w/sub/c.mp4": "c"})
    made.sync()
    made.folders, made.forgotten, made.away = ("/v", "/w/sub"), {"/w"}, {"/w/sub"}
    changes = made.sync()
    assert [video.video_id for video in changes.removed] == ["b"], "the other one lies in a followed folder, too"


def test_files_of_the_same_name_have_ids_of_their_own():
    made = Disk(folders=("/v", "/w"), files={"/v/a.mp4": "1", "/v/a.webm": "22", "/w/a.mp4": "333"})
    assert ids(made.sync()) == {"a": "/v/a.mp4", "a.webm": "/v/a.webm", "w/a": "/w/a.mp4"}
    made.files["/w/a.mkv"] = "4444"
    assert made.sync().new == ["w/a (2)"]


def test_videos_of_other_places_are_left_alone():
    made = disk(a="aa")
    others = [
        VideoRecord(video_id="far", path="https://example.org/x.mp4"),
        VideoRecord(video_id="else", path="/elsewhere/y.mp4"),
    ]
    made.videos += others
    assert made.sync().videos[1:] == others


@pytest.mark.parametrize("seed", range(40))
def test_after_any_changes_each_content_is_listed_once_and_keeps_its_id(seed):
    rng, made = random.Random(seed), Disk(folders=("/v", "/w"))
    id_of: dict[str, str] = {}
    num_made = 0
    for _ in range(12):
        for _ in range(rng.randrange(4)):
            action, paths = (
                rng.choice(("add", "add", "move", "delete", "change", "touch", "copy", "swap")),
                [*made.files],
            )
            target = f"{rng.choice(made.folders)}/{rng.choice('abcdefgh')}.mp4"
            path = rng.choice(paths) if paths else ""
            if action == "add" and target not in made.files:
                num_made += 1
                made.files[target] = f"content {num_made}"
            elif path and action == "move":
                made.files[target] = made.files.pop(path)
            elif path and action == "copy" and target not in made.files:
                made.files[target] = made.files[path]
            elif path and action == "delete":
                del made.files[path]
            elif path and action == "change":
                num_made += 1
                made.files[path] = f"content {num_made}"
            elif path and action == "swap" and target in made.files:
                made.files[path], made.files[target] = made.files[target], made.files[path]
            if path:
                made.times[path] = made.times[target] = rng.randrange(10**6)
        before = id_of
        made.sync()
        listed = [video.video_id for video in made.videos]
        contents = [made.content_of(video_id) for video_id in listed]
        assert len(set(listed)) == len(listed)
        assert len({video.path for video in made.videos}) == len(listed), "each path is listed once"
        assert set(contents) == set(made.files.values()), "each content is listed"
        id_of = dict(zip(contents, listed, strict=True))
        assert {content: before[content] for content in before.keys() & id_of.keys()}.items() <= id_of.items()


@pytest.mark.parametrize("moves", [[("b", "a")], [("b", "a"), ("c", "b")]])
def test_a_file_moved_over_another_replaces_it(moves):
    made = disk(a="A", b="B", c="C")
    for old, new in moves:
        made.files[f"/v/{new}.mp4"] = made.files.pop(f"/v/{old}.mp4")
        made.times[f"/v/{new}.mp4"] = 1
    changes = made.sync()
    assert [video.video_id for video in changes.removed] == ["a"]
    assert sorted(video.video_id for video in changes.renamed) == sorted(old for old, _ in moves)
    assert (changes.new, changes.changed) == ([], [])
    assert sorted(video.video_id for video in made.videos) == ["b", "c"]
    assert {video_id: made.content_of(video_id) for video_id in ("b", "c")} == {"b": "B", "c": "C"}
    changes = made.sync()
    assert not (changes.new or changes.changed or changes.renamed or changes.removed)
