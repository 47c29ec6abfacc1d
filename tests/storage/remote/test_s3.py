"""Stores in a bucket of a real S3 server, which fails in all ways that servers do."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.s3_server import ROUGH, Fault, S3Server, running_server, use_server
from helpers.sounds import sound_of_one_second
from helpers.store_life import make
from helpers.stores import video, write
from helpers.toy import make_toy
from helpers.training import TWO_STEPS
from s3fs import S3FileSystem
from vlalign.extract import ExtractionSettings
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.pipeline import address_sizes, plan
from vlalign.extract.pipeline import download as fetch
from vlalign.extract.pipeline import shard_writing as run
from vlalign.extract.pipeline.address_sizes import sizes_on_s3
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.remote import file_systems as opening
from vlalign.storage.remote import files
from vlalign.storage.remote import store as module
from vlalign.storage.remote.store import RemoteStore, is_stub, link_store
from vlalign.storage.stores import maintenance
from vlalign.storage.stores.failure_log import read_failures
from vlalign.train.cli.train import main as train_main

ADDRESS = "s3://films/all"
LITTLE_AT_ONCE = (
    "import sys; from vlalign.extract.cli import extract; from vlalign.extract.pipeline import shard_writing; "
    "shard_writing.SHARD_VIDEOS = 2; sys.exit(extract.main(sys.argv[1:]))"
)
"""vlalign-extract, with a shard for every two videos."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_server() as server:
        yield server


@pytest.fixture
def s3(server, monkeypatch) -> Iterator[S3Server]:
    """A server with an empty bucket, which clients here find through the environment, and do not wait for long."""
    use_server(server, monkeypatch)
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(module, "FREE_SHARE", 0.0)  # however full the disk of this machine is
    server.fail()
    server.make_bucket("films")
    yield server
    server.fail()
    server.delete_bucket("films")
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def hasty(monkeypatch) -> None:
    """Clients that give up soon."""
    monkeypatch.setattr(opening, "S3_CLIENT", {"read_timeout": 0.5, "retries": {"total_max_attempts": 1}})
    monkeypatch.setattr(files, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(fetch, "PATIENCE_SECONDS", 2.0)


def films(root: Path, short_video: Path, num_videos: int) -> DatasetFolder:
    dataset = DatasetFolder(root, "mine")
    dataset.path.mkdir(parents=True)
    for number in range(num_videos):
        path = shutil.copy(short_video, dataset.path / f"{number}.mp4")
        os.utime(path, (1e9, 1e9))
    dataset.write_videos([VideoRecord(video_id=f"v{n}", path=f"{n}.mp4") for n in range(num_videos)])
    return dataset


def options(dataset: DatasetFolder, *more: str) -> list[str]:
    call = ["--root", str(dataset.root), "--dataset", dataset.name, "--features", "s3d", "--weights", "random"]
    return [*call, *more]


def assert_same(folder: Path, expected: Path) -> None:
    one, other = FeatureStore(folder, check_rows=True), FeatureStore(expected)
    assert sorted(one.video_ids()) == sorted(other.video_ids())
    for video_id in other.video_ids():
        a, b = one.get(video_id), other.get(video_id)
        assert a.features.tobytes() == b.features.tobytes() and a.start_seconds.tobytes() == b.start_seconds.tobytes()
        assert (a.source, a.partial, a.duration_seconds) == (b.source, b.partial, b.duration_seconds)


def local_store(folder: Path) -> Path:
    for number in range(6):
        write(folder, *(video(f"v{number}-{n}", 800, base=number * 10 + n) for n in range(4)))
    return folder


def error_of(capsys) -> str:
    """The only error line of a command."""
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error:" in line or "Traceback" in line]
    return line


def test_a_store_in_a_bucket_is_sent_read_and_verified_though_requests_fail(tmp_path, s3, capsys):
    expected, here, there = local_store(tmp_path / "expected"), tmp_path / "here", tmp_path / "there"
    shutil.copytree(expected, here)
    s3.fail(*ROUGH)
    url = f"{ADDRESS}/s3d"
    assert store_main(["link", str(here), url]) == store_main(["link", str(there), url]) == 0
    fetched = [sum(not is_stub(path) for path in folder.glob("*.h5")) for folder in (here, there)]
    assert max(fetched) <= 1  # the one that was read back
    assert_same(there, expected)
    assert store_main(["verify", str(here)]) == 0
    assert "6 shards, all checksums match" in capsys.readouterr().out
    assert sorted(s3.keys("films")) == sorted(f"all/s3d/{path.name}" for path in expected.glob("*.h5"))


@pytest.mark.slow
def test_a_model_is_trained_from_a_bucket_as_from_a_disk(tmp_path, s3):
    local = make_toy(tmp_path / "local")
    shutil.copytree(local.root, tmp_path / "remote")
    remote = DatasetFolder(tmp_path / "remote", local.name)
    link_store(remote.features("s3d"), f"{ADDRESS}/s3d").send()
    s3.fail(*ROUGH)
    losses = []
    for dataset in (local, remote):
        assert train_main(["--root", str(dataset.root), "--dataset", dataset.name, *TWO_STEPS]) == 0
        [log] = dataset.path.glob("runs/*/events.jsonl")
        losses.append([event["loss"] for event in read_jsonl(log) if "loss" in event])
    assert losses[0] == losses[1] and losses[0]


REFUSALS = {
    "missing bucket": ("s3://elsewhere/all", (), 2, "The specified bucket does not exist"),
    "listing denied": (ADDRESS, [("AccessDenied", 403, "GET", "list-type")], 2, "listed"),
    "writing denied": (ADDRESS, [("AccessDenied", 403, "PUT", "")], 2, "written"),
    "reading denied": (ADDRESS, [("AccessDenied", 403, "GET", r"/\.check")], 2, "read"),
    "key unknown": (ADDRESS, [("InvalidAccessKeyId", 403, "GET PUT", "")], 2, "listed"),
    "hang": (ADDRESS, [("hang", 0, "GET", "")], 1, " 3 "),
    "trickle": (ADDRESS, [("trickle", 0, "GET", "")], 1, "it takes too long); tried 3 times"),
    "reset": (ADDRESS, [("reset", 0, "GET", "")], 1, "Connection was closed"),
    "web": ("https://127.0.0.1/all", (), 2, "s3://"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_an_address_that_cannot_be_written_is_one_line_before_work_begins(
    tmp_path, s3, hasty, short_video, capsys, case, monkeypatch
):
    address, faults, code, named = REFUSALS[case]
    s3.fail(*(Fault(what=what, status=status, methods=m, path=path) for what, status, m, path in faults))
    monkeypatch.setattr("vlalign.extract.pipeline.dataset.choose_videos", pytest.fail)
    dataset = films(tmp_path / "root", short_video, 1)
    assert extract_main(options(dataset, "--stores", address)) == code
    error = error_of(capsys)
    assert named in error and f"{address}/s3d" in error
    assert not dataset.features("s3d").exists(), "another address can be passed the next time"
    assert s3.keys("films") == []


def test_a_closed_port_is_one_line_before_work_begins(tmp_path, s3, hasty, short_video, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    dataset = films(tmp_path / "root", short_video, 1)
    assert extract_main(options(dataset, "--stores", ADDRESS)) == 1
    assert "Could not connect to the endpoint URL" in error_of(capsys)


DISASTERS = {
    "denies": ("AccessDenied", 403, "refused (AccessDenied as told)"),
    "hangs": ("hang", 0, "no valid answer (it takes too long)"),
    "vanishes": ("NoSuchBucket", 404, "not found"),
    "is overloaded": ("SlowDown", 503, "no valid answer ([Errno 16] SlowDown as told)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("disaster", DISASTERS)
def test_what_was_extracted_is_kept_if_the_bucket_fails_in_the_middle(
    tmp_path, s3, hasty, short_video, capsys, disaster, monkeypatch
):
    """Once it is back, the rest is sent, and no video is extracted twice."""
    what, status, words = DISASTERS[disaster]
    monkeypatch.setattr(run, "SHARD_VIDEOS", 2)
    dataset = films(tmp_path / "root", short_video, 5)
    send = RemoteStore.put

    def put(store, path):
        if s3.keys("films"):  # after the first shard
            s3.fail(Fault(what=what, status=status, methods="PUT"))
        send(store, path)

    monkeypatch.setattr(RemoteStore, "put", put)
    assert extract_main(options(dataset, "--stores", ADDRESS)) == 1
    assert words in (error := error_of(capsys)) and f"{ADDRESS}/s3d/" in error
    store = dataset.features("s3d")
    assert len(s3.keys("films")) == 1 and not (store / "failures.jsonl").exists()
    kept = sorted(path.name for path in (store / module.OUTGOING).glob("*.h5"))
    assert kept, "the rows stay here until they can be sent"
    monkeypatch.setattr(RemoteStore, "put", send)
    s3.fail()
    assert extract_main(options(dataset)) == 0
    assert "5 of 5 videos have features" in capsys.readouterr().err
    sent = [key.rpartition("/")[2] for key in s3.keys("films")]
    assert set(kept) <= set(sent) and not list((store / module.OUTGOING).glob("*.h5"))
    assert sum(len(shard.videos) for shard in FeatureStore(store).shards) == 5
    assert maintenance.verify(store) == []


REFUSED_VIDEOS = {
    "denies": ("AccessDenied", 403),
    "says that the token has expired": ("ExpiredToken", 400),
    "is overloaded": ("SlowDown", 503),
    "has lost its bucket": ("NoSuchBucket", 404),
    "hangs": ("hang", 0),
    "sends a byte now and then": ("trickle", 0),
}
EACH_TROUBLE = [
    pytest.param(trouble, marks=pytest.mark.slow if trouble == "sends a byte now and then" else ())
    for trouble in REFUSED_VIDEOS
]


@pytest.mark.parametrize("trouble", EACH_TROUBLE)
@pytest.mark.usefixtures("hasty")
def test_videos_in_a_bucket_that_fails_for_a_while_are_extracted_by_the_same_command(
    tmp_path, s3, capsys, monkeypatch, trouble
):
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.01)
    files_there = S3FileSystem()
    for number in range(3):
        files_there.pipe_file(f"films/{number}.wav", sound_of_one_second())
    dataset = DatasetFolder(tmp_path / "root", "mine")
    paths = {f"v{n}": f"s3://films/{n}.wav" for n in range(3)} | {"gone": "s3://films/gone.wav"}
    dataset.write_videos([VideoRecord(video_id=video_id, path=path) for video_id, path in paths.items()])
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "logmel"]
    what, status = REFUSED_VIDEOS[trouble]
    s3.fail(Fault(what=what, status=status))
    assert extract_main(call) == 1
    listed = {row["video_id"]: row["kind"] for row in read_jsonl(dataset.features("logmel") / "failures.jsonl")}
    assert listed == dict.fromkeys(paths, "unreachable")
    error = capsys.readouterr().err
    assert "4 videos" in error and "unreachable 4" in error and "s3://films/0.wav: " in error
    assert "secret" not in error

    s3.fail()
    assert extract_main(call) == 1
    assert sorted(FeatureStore(dataset.features("logmel")).video_ids()) == ["v0", "v1", "v2"]
    failed = read_failures(dataset.features("logmel") / "failures.jsonl")
    assert {video_id: failure.kind for video_id, failure in failed.items()} == {"gone": "missing"}


def bucket_of_videos(num_videos: int) -> list[str]:
    """Objects of different sizes, beside many others."""
    files_there = S3FileSystem()
    for number in range(num_videos):
        files_there.pipe_file(f"films/all/{number:03}.wav", bytes(number + 1))
        files_there.pipe_file(f"films/between/{number:03}.txt", b"x")
    files_there.pipe_file("films/z.wav", bytes(7))
    return ["s3://films/z.wav", *(f"s3://films/all/{number:03}.wav" for number in range(num_videos))]


def test_sizes_of_videos_come_from_pages_of_the_listing(s3, monkeypatch):
    monkeypatch.setattr(address_sizes, "PAGE_KEYS", 20)
    urls = [*bucket_of_videos(50), "s3://films/all/gone.wav"]
    before = len(s3.seen())
    sizes = sizes_on_s3(urls)
    assert sizes == {"s3://films/z.wav": 7} | {f"s3://films/all/{number:03}.wav": number + 1 for number in range(50)}
    assert len(s3.seen()) - before <= 8


@pytest.mark.parametrize("trouble", EACH_TROUBLE)
@pytest.mark.usefixtures("hasty")
def test_sizes_are_unknown_if_the_bucket_cannot_be_listed(s3, capsys, trouble):
    urls, (what, status) = bucket_of_videos(3), REFUSED_VIDEOS[trouble]
    s3.fail(Fault(what=what, status=status))
    assert sizes_on_s3(urls) == {}
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("note: the sizes of 4 videos on S3 are not known") and "secret" not in line


def test_a_bucket_that_never_answers_is_waited_for_no_longer_than_stated(s3, capsys, monkeypatch):
    urls = bucket_of_videos(3)
    monkeypatch.setattr(address_sizes, "MAX_SECONDS", 1.0)
    s3.fail(Fault(what="hang"))
    started = time.monotonic()
    assert sizes_on_s3(urls) == {} and time.monotonic() - started < 10
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_plan_counts_videos_in_a_bucket_and_extrapolates_from_a_few(tmp_path, s3, capsys, monkeypatch):
    monkeypatch.setattr(plan, "NUM_FETCHED", 2)
    dataset, sound = DatasetFolder(tmp_path / "root", "mine"), sound_of_one_second()
    for number in range(6):
        S3FileSystem().pipe_file(f"films/{number}.wav", sound)
    dataset.write_videos([VideoRecord(video_id=f"v{n}", path=f"s3://films/{n}.wav") for n in range(6)])
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "logmel"]
    made = plan.plan_extraction(ExtractionSettings(dataset=dataset.path, features="logmel"))
    assert made.addresses is not None and made.speed is not None
    assert (made.addresses.num_videos, made.addresses.num_bytes) == (6, 6 * len(sound))
    assert made.addresses.hours == pytest.approx(6 / 3600, rel=0.05) and made.addresses.num_fetched == 2
    assert extract_main([*call, "--plan"]) == 0
    out = capsys.readouterr().out
    assert "6 videos to download: 0.00 GB; about 0.00 hours, extrapolated from 2 videos" in out and "(h:mm:ss)" in out
    assert [path.name for path in dataset.path.iterdir()] == ["videos.jsonl"]

    s3.fail(Fault(what="AccessDenied", status=403))
    monkeypatch.setattr(fetch, "PAUSE_SECONDS", 0.01)
    assert extract_main([*call, "--plan"]) == 1
    printed = capsys.readouterr()
    assert "without 6 of unknown size; their duration is not known" in printed.out
    assert "s3://films/0.wav: " in printed.err and "sizes of 6 videos" in printed.err
    assert "s3://films/3.wav" not in printed.err, "no other is tried"

    s3.fail()
    assert extract_main(call) == 0 and extract_main([*call, "--plan"]) == 0
    assert "nothing left to extract" in capsys.readouterr().out


def test_a_shard_is_kept_here_until_the_bucket_has_the_same_bytes(tmp_path, s3, capsys):
    store = tmp_path / "here"
    shard = write(store, video("v", 800))
    content, call = shard.read_bytes(), ["link", str(store), f"{ADDRESS}/s3d"]
    s3.fail(Fault(what="damage", methods="PUT", path=r"\.h5"))
    assert store_main(call) == 1
    s3.fail()
    kept = store / module.OUTGOING / shard.name
    assert (error := error_of(capsys)).count(f"{ADDRESS}/s3d/{shard.name}: ") == 1 and str(kept) in error
    assert kept.read_bytes() == content and not shard.exists()
    assert store_main(call) == 1 and kept.read_bytes() == content, "what is there is not replaced"
    S3FileSystem().rm_file(f"films/all/s3d/{shard.name}")
    assert store_main(call) == 0 and not kept.exists()
    assert shard.read_bytes() == content and maintenance.verify(store) == []


@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_file_is_read_back_if_the_server_does_not_tell_its_checksum(tmp_path, s3, monkeypatch, has_checksum):
    info = S3FileSystem._info

    async def in_parts(*args, **options):
        return await info(*args, **options) | ({} if has_checksum else {"ETag": f'"{"0" * 32}-2"'})

    monkeypatch.setattr(S3FileSystem, "_info", in_parts)
    monkeypatch.setattr(files, "CHECKED_BYTES", 1000)
    path, remote = tmp_path / "a.h5", files.RemoteFiles(ADDRESS)
    path.write_bytes(bytes(2500))
    remote.send(path)
    num_before = len(s3.seen())
    assert remote.holds(path)
    assert sum(seen.startswith("GET /films/all/a.h5") for seen in s3.seen()[num_before:]) == (0 if has_checksum else 3)
    for other in (bytes(2499), bytes(2501), bytes(2499) + b"1"):
        path.write_bytes(other)
        assert not remote.holds(path)


def test_a_missing_bucket_is_not_an_empty_store(tmp_path, s3, capsys):
    here = local_store(tmp_path / "here")
    link_store(here, f"{ADDRESS}/s3d").send()
    s3.fail(Fault(what="NoSuchBucket", status=404))
    for call in (["info", str(here)], ["verify", str(here)]):
        assert store_main(call) == 1
        assert "not found (NoSuchBucket as told)" in error_of(capsys)


def test_an_upload_that_is_not_taken_ends(tmp_path, s3, monkeypatch):
    path = tmp_path / "large.h5"
    path.write_bytes(bytes(64 << 20))
    monkeypatch.setattr(files, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(files, "SLOWEST_BYTES_PER_SECOND", 1e9)
    s3.fail(Fault(what="hang", methods="PUT"))
    with pytest.raises(OSError, match=r"large\.h5: .*\b3\b"):
        files.RemoteFiles(ADDRESS).send(path)
    s3.fail()
    monkeypatch.setattr(files, "ANSWER_SECONDS", 60.0)
    files.RemoteFiles(ADDRESS).send(path)
    assert s3.keys("films") == ["all/large.h5"]


@pytest.mark.slow
def test_a_writer_that_is_killed_loses_nothing(tmp_path, s3):
    def command(folder: Path, address: str) -> list[str]:
        return [sys.executable, "-m", "helpers.bucket_writer", str(folder), f"{address}/s3d", "6"]

    write(tmp_path / "expected", *(make(f"v{number}") for number in range(6)))
    survive(3, 30, s3, command, lambda number: tmp_path / f"round{number}", tmp_path / "expected")


@pytest.mark.slow
def test_an_extraction_into_a_bucket_that_is_killed_30_times_loses_nothing(tmp_path, s3, short_video):
    def command(folder: Path, address: str) -> list[str]:
        dataset = DatasetFolder(folder.parents[2], "mine")
        return [sys.executable, "-c", LITTLE_AT_ONCE, *options(dataset, "--stores", address)]

    expected = films(tmp_path / "expected", short_video, 12)
    assert extract_main(options(expected)) == 0
    survive(
        30,
        20,
        s3,
        command,
        lambda number: films(tmp_path / f"round{number}", short_video, 12).features("s3d"),
        expected.features("s3d"),
    )


def survive(
    num_kills: int,
    longest: int,
    s3: S3Server,
    command: Callable[[Path, str], list[str]],
    new_folder: Callable[[int], Path],
    expected: Path,
) -> None:
    """Run a command that fills a store, kill it at any of its first ``longest`` requests, which fail now and then, and
    repeat it. If it comes to its end before, a new store is filled."""
    s3.fail(*ROUGH)
    rng, kills, rounds, unsent = random.Random(num_kills), 0, 0, 0
    while kills < num_kills:
        rounds += 1
        address, folder, before = f"{ADDRESS}/{rounds}", new_folder(rounds), set()
        ended = False
        while not ended:
            with subprocess.Popen(command(folder, address), stderr=subprocess.PIPE, text=True) as process:
                ended = kills == num_kills or not killed_at(process, s3, rng.randint(1, longest))
                _, messages = process.communicate()
            kills += not ended
            assert process.returncode == (0 if ended else -signal.SIGKILL), messages
            now = {key for key in s3.keys("films") if key.startswith(f"all/{rounds}/s3d/") and key.endswith(".h5")}
            assert before <= now
            before, unsent = now, unsent + bool(list((folder / module.OUTGOING).glob("*.h5")))
        assert_same(folder, expected)
        assert maintenance.verify(folder) == [] and not list((folder / module.OUTGOING).glob("*.h5"))
        assert sum(len(shard.videos) for shard in FeatureStore(folder).shards) == len(FeatureStore(expected))
    print(f"{kills} kills in {rounds} rounds; {unsent} of them left a shard that was not sent")


def killed_at(process: subprocess.Popen, s3: S3Server, number: int) -> bool:
    """Kill a process at its request of that number. False if it ended before."""
    first = len(s3.seen())
    while process.poll() is None:
        if len(s3.seen()) - first >= number:
            process.kill()
            process.wait()
            return process.returncode < 0
        time.sleep(0.01)
    return False
