"""Many videos at once: the same rows whatever else runs, and decoders that crash, hang or grow in their own
processes."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from helpers.extractors import Means, run, stub
from helpers.needs import PROGRAM, need, shared
from helpers.networks import CLIPS
from helpers.videos import scene
from helpers.zoo import VIDEOS
from torch import nn
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.extractor import Extractor
from vlalign.extract.models.s3d import S3D
from vlalign.extract.pipeline.engine import extract_videos
from vlalign.extract.pipeline.pending_work import VideoTask
from vlalign.extract.pipeline.shard_writing import VideoOutcome, extract_into_stores
from vlalign.extract.pipeline.video_jobs import Extracted, VideoJob
from vlalign.extract.settings import WorkerSettings
from vlalign.extract.videos.demo import render_video
from vlalign.storage import FeatureStore, VideoFeatures, write_shard
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.trusted_folders import allow_folder
from vlalign.storage.records import VideoRecord
from vlalign.storage.stores import shard_writer


def cosine(a: VideoFeatures, b: VideoFeatures) -> float:
    """The least of any row."""
    a, b = (torch.from_numpy(v.features).double() for v in (a, b))
    return float(nn.functional.cosine_similarity(a, b).min())


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[Path]:
    """Seven of different lengths, sizes and rates."""
    folder = tmp_path_factory.mktemp("several")
    paths = [folder / f"v{i}.mp4" for i in range(7)]
    for i, path in enumerate(paths):
        wide = {"width": 240, "height": 180} if i % 2 else {"width": 180, "height": 240}
        render_video(scene(0.3 + 0.4 * i, fps=("25", "30")[i % 2], **wide), path)
    return paths


def test_a_batch_has_rows_of_one_video_and_results_are_assigned_to_it(videos):
    sizes = []

    class Watched(Means):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    watched = replace(stub(batch_size=4), network=Watched())
    together = run([VideoJob(p.stem, p, [watched]) for p in videos], [watched])
    assert sorted(together) == [p.stem for p in videos]
    num_rows = [len(result.features["s3d"].features) for result in together.values()]
    assert sorted(sizes) == sorted(min(4, n - first) for n in num_rows for first in range(0, n, 4))
    for path in videos:
        alone = extract_video(path, [stub(batch_size=1)])["s3d"]
        np.testing.assert_allclose(together[path.stem].features["s3d"].features, alone.features, rtol=1e-6)
        np.testing.assert_array_equal(together[path.stem].features["s3d"].start_seconds, alone.start_seconds)


@pytest.fixture(scope="module")
def small_s3d() -> Extractor:
    """The whole network on small pictures. Its values depend on the size of a batch, and on the number of threads, in
    their last digits."""
    extractor = load_extractor("s3d", weights="random")
    small = replace(extractor.profile, short_side_px=64, crop_px=64)
    return replace(extractor, profile=small, batch_size=4)


@pytest.fixture(scope="module")
def rows_alone(videos, small_s3d) -> dict[str, bytes]:
    """Of each video where nothing else is extracted, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = {path.stem: extract_video(path, [small_s3d])["s3d"].features.tobytes() for path in videos}
    torch.set_num_threads(before)
    return rows


@pytest.mark.parametrize(
    "num_threads, num_cores, turned",
    [
        pytest.param(1, 1, True, marks=pytest.mark.slow),
        (2, 1, False),
        (3, 12, True),
        pytest.param(16, 4, False, marks=pytest.mark.slow),
    ],
)
def test_rows_are_the_same_bytes_on_any_number_of_cores_and_in_any_order(
    videos, small_s3d, rows_alone, num_threads, num_cores, turned, request
):
    before = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(num_threads)
    jobs = [VideoJob(path.stem, path, [small_s3d]) for path in (videos[::-1] if turned else videos)]
    made = {
        job.video_id: result.features["s3d"] for job, result in extract_videos(jobs, [small_s3d], num_cores=num_cores)
    }
    assert {video_id: video.features.tobytes() for video_id, video in made.items()} == rows_alone


def test_rows_are_the_same_bytes_beside_other_videos_and_features(videos, small_s3d, rows_alone):
    others = stub("resnet152")
    jobs = [VideoJob("first", videos[5], [others])]
    for path in videos:
        jobs += [VideoJob(path.stem, path, [others, small_s3d]), VideoJob(f"{path.stem} again", path, [small_s3d])]
    made = run(jobs, [small_s3d, others])
    for path in videos:
        for video_id in (path.stem, f"{path.stem} again"):
            assert made[video_id].features["s3d"].features.tobytes() == rows_alone[path.stem]


def test_a_stopped_run_that_goes_on_stores_the_same_bytes(videos, small_s3d, tmp_path, monkeypatch):
    # In float16 most rows were the same before, too.
    monkeypatch.setattr(shard_writer, "write_shard", partial(write_shard, dtype="float32"))

    def extract(dataset: DatasetFolder, paths: list[Path], most: int | None = None) -> None:
        allow_folder(dataset, paths[0].parent)
        records = (VideoRecord(video_id=path.stem, path=str(path)) for path in paths)
        tasks = (VideoTask(video, ["s3d"]) for video in records)
        worker = WorkerSettings(dataset=dataset, weights={"s3d": "random"})
        events = extract_into_stores(worker, {"s3d": small_s3d}, tasks)
        for _ in islice((event for event in events if isinstance(event, VideoOutcome)), most):
            pass
        events.close()

    def rows(dataset: DatasetFolder) -> dict[str, bytes]:
        store = FeatureStore(dataset.features("s3d"))
        return {video_id: store.get(video_id, dtype=None).features.tobytes() for video_id in store.video_ids()}

    whole, stopped = DatasetFolder(tmp_path, "whole"), DatasetFolder(tmp_path, "stopped")
    extract(whole, videos)
    extract(stopped, videos[::-1], most=4)
    done = rows(stopped)
    assert 0 < len(done) < len(videos)
    extract(stopped, [path for path in videos if path.stem not in done])
    assert rows(stopped) == rows(whole)
    first, second = (FeatureStore(dataset.features("s3d")).rows_checksum() for dataset in (whole, stopped))
    assert first == second


def test_each_job_gets_its_own_extractors(videos):
    s3d, univl = stub("s3d"), stub("s3d_univl")
    made = run(
        [VideoJob("a", videos[3], [s3d]), VideoJob("b", videos[3], [univl, s3d]), VideoJob("c", videos[4], [univl])],
        [s3d, univl],
    )
    assert [sorted(made[name].features) for name in "abc"] == [["s3d"], ["s3d", "s3d_univl"], ["s3d_univl"]]
    np.testing.assert_array_equal(made["a"].features["s3d"].features, made["b"].features["s3d"].features)


def test_only_the_beginning_is_read_on_request(videos):
    whole, beginning = (
        run([VideoJob("x", videos[6], [stub()], seconds)], [stub()])["x"].features["s3d"] for seconds in (None, 1.4)
    )
    assert len(beginning.features) == 3 < len(whole.features)
    np.testing.assert_array_equal(beginning.features[:2], whole.features[:2])
    assert beginning.duration_seconds == pytest.approx(1.4)


def test_no_process_is_started_without_work():
    assert list(extract_videos([], [stub()])) == []


def test_broken_videos_fail_and_others_are_unchanged(videos, tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"not a video" * 1000)
    made = run(
        [
            VideoJob(f"{p.stem}-{i}", p, [stub()])
            for i, p in enumerate([broken, videos[0], broken, tmp_path / "gone", videos[1]])
        ],
        [stub()],
    )
    assert {name: result.kind for name, result in made.items() if isinstance(result, VideoError)} == {
        "broken-0": "unreadable",
        "broken-2": "unreadable",
        "gone-3": "missing",
    }
    assert {name for name, result in made.items() if isinstance(result, Extracted)} == {"v0-1", "v1-4"}


# Real networks on videos as they are


def videos_of(source: str) -> list[Path]:
    """Three made-up videos, or three of MSR-VTT."""
    if source == "made up":
        return [VIDEOS / name for name in ("ok_h264.mp4", "odd_444.mp4", "vp9.webm")]
    return sorted(shared("data/msrvtt/videos").glob("*.mp4"))[:3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["resnet152", "clip_vit_b32", "i3d_resnext101", "s3d", "r2plus1d"],
)
@pytest.mark.parametrize("source", ["made up", "MSR-VTT"])
def test_videos_have_the_same_bytes_alone_and_beside_others(name, source):
    extractor = load_extractor(name, weights="random")
    paths = videos_of(source)
    together = run([VideoJob(p.stem, p, [extractor], seconds=2) for p in paths], [extractor])
    for path in paths[:2]:
        alone = run([VideoJob(path.stem, path, [extractor], seconds=2)], [extractor])[path.stem]
        assert alone.features[name].features.tobytes() == together[path.stem].features[name].features.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["resnet152", "i3d_resnext101", "s3d", *CLIPS, "r2plus1d"],
)
def test_real_videos_in_bf16(name, monkeypatch):
    # At the gain that the demo uses, S3D's random gates saturate, and any rounding grows from block to block (cosine
    # 0.96 to 0.998); those of a trained network do not, nor do these.
    monkeypatch.setattr(S3D, "random_gain", 3.0)
    path = videos_of("MSR-VTT")[1]
    made = {}
    for precision in ("fp32", "bf16"):
        extractor = load_extractor(name, weights="random", precision=precision)
        made[precision] = run([VideoJob("x", path, [extractor], seconds=1)], [extractor])["x"].features[name]
    assert cosine(made["fp32"], made["bf16"]) >= 0.999


# Decoders that do not survive


REFUSING = """
import os, signal, time
from vlalign.extract.decoding import backends, child, decode

def failing(backend):
    def pictures(decoding, wanted):
        for index, sizes in backends.decode_with_pyav(decoding, wanted):
            yield index, sizes
            if index >= 20 and "bad" in decoding.info.path.name and backend in {which!r}:
                {what}
    return pictures

decode.BACKENDS = {{name: failing(name) for name in decode.BACKENDS}}
child.main()
"""


ENDS = {
    "crash": "signal.raise_signal(signal.SIGSEGV)",
    "hang": "time.sleep(1000)",
    "killed": "signal.raise_signal(signal.SIGKILL)",
    "out of memory": "raise MemoryError",
}


@pytest.fixture
def failing_decoders(monkeypatch):
    """Has the child's decoders do something drastic in the middle of videos called "bad"."""

    def use(what: str, which: set[str]) -> None:
        monkeypatch.setattr(decode_process, "COMMAND", REFUSING.format(what=ENDS[what], which=which))
        if what == "hang":  # long enough for a decoder that starts on a busy machine
            monkeypatch.setattr(decode_process, "SILENCE_SECONDS", 5.0)

    return use


@pytest.mark.parametrize(
    "what, kind",
    [
        ("crash", "crashed"),
        pytest.param("hang", "timeout", marks=pytest.mark.slow),
        pytest.param("killed", "out_of_memory", marks=pytest.mark.slow),
        pytest.param("out of memory", "out_of_memory", marks=pytest.mark.slow),
    ],
)
def test_a_video_that_kills_every_decoder_fails_and_others_continue(videos, tmp_path, failing_decoders, what, kind):
    failing_decoders(what, {"decord", "PyAV", "ffmpeg"})
    shutil.copy(videos[5], tmp_path / "bad.mp4")
    jobs = [VideoJob(p.stem, p, [stub()]) for p in (videos[2], tmp_path / "bad.mp4", videos[3], videos[4])]
    made = run(jobs, [stub()])
    assert isinstance(made["bad"], VideoError) and made["bad"].kind == kind
    for path in videos[2:5]:
        np.testing.assert_allclose(
            made[path.stem].features["s3d"].features, extract_video(path, [stub()])["s3d"].features, rtol=1e-6
        )


@pytest.mark.parametrize("what", ENDS)
def test_after_a_decoder_died_the_next_one_is_tried(videos, tmp_path, failing_decoders, monkeypatch, what):
    expected = extract_video(videos[5], [stub()])["s3d"]
    assert expected.decoder.startswith(("decord", "PyAV"))
    failing_decoders(what, {expected.decoder.split()[0]})
    shutil.copy(videos[5], tmp_path / "bad.mp4")
    made = run([VideoJob("bad", tmp_path / "bad.mp4", [stub()])], [stub()])["bad"]
    if isinstance(made, VideoError):
        assert expected.decoder.startswith("PyAV") and shutil.which("ffmpeg") is None
        need(PROGRAM, ["ffmpeg"])
    assert made.features["s3d"].decoder.split()[0] != expected.decoder.split()[0]
    np.testing.assert_allclose(made.features["s3d"].features, expected.features, rtol=1e-6)


def children() -> set[int]:
    """Process ids of the decoders that this process has started and that run."""
    lines = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    ).stdout
    return {int(line.split()[0]) for line in lines.splitlines() if "decoding.child" in line}


def test_no_process_is_left_when_a_run_ends_early(videos):
    results = extract_videos([VideoJob(str(i), videos[6], [stub()]) for i in range(20)], [stub()])
    next(results)
    assert len(children()) == 1
    results.close()
    assert children() == set()


def test_one_process_decodes_many_videos(videos):
    results = extract_videos([VideoJob(str(i), videos[i % 7], [stub()]) for i in range(12)], [stub()])
    seen = set()
    for _ in results:
        seen |= children()
    assert len(seen) == 1


def test_a_new_process_takes_over_after_so_many_videos(videos, monkeypatch):
    monkeypatch.setattr(decode_process, "MAX_VIDEOS_PER_PROCESS", 3)
    seen = set()
    for _, result in extract_videos([VideoJob(str(i), videos[0], [stub()]) for i in range(8)], [stub()]):
        assert isinstance(result, Extracted)
        seen |= children()
    assert len(seen) >= 2


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    list(extract_videos([], [stub()]))
    assert torch.get_num_threads() == before


LONG_RUN = """
import resource, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from helpers.extractors import stub
from vlalign.extract.pipeline.video_jobs import VideoJob
from vlalign.extract.pipeline.engine import extract_videos
e = [stub("i3d_resnext101", batch_size=4), stub("resnet152")]
((_, made),) = extract_videos([VideoJob("x", Path({path!r}), e)], e)
own, child = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(len(made.features["i3d_resnext101"].features), own, child)
"""


def repeat_packets(source: Path, target: Path, times: int) -> None:
    """The same pictures over and over, with times that go on."""
    with av.open(str(source)) as read, av.open(str(target), "w") as written:
        packets = [p for p in read.demux(video=0) if p.dts is not None]
        template = read.streams.video[0]
        stream = written.add_stream_from_template(template)
        shown, decoded = [p.pts for p in packets], [p.dts for p in packets]
        length = max(shown) + packets[-1].duration
        for start in range(0, times * length, length):
            for packet, pts, dts in zip(packets, shown, decoded, strict=True):
                packet.stream, packet.time_base = stream, template.time_base
                packet.pts, packet.dts = start + pts, start + dts
                written.mux(packet)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_a_video(tmp_path):
    render_video(scene(60.0, width=32, height=24, fps="24"), tmp_path / "minute.mp4")
    repeat_packets(tmp_path / "minute.mp4", tmp_path / "two_hours.mp4", 120)
    peaks = {}
    for name, num_rows in (("minute", 90), ("two_hours", 120 * 90)):
        program = LONG_RUN.format(tests=str(Path(__file__).parents[2]), path=str(tmp_path / f"{name}.mp4"))
        answer = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
        assert int(answer[0]) == num_rows
        peaks[name] = float(answer[1]) + float(answer[2])
    print(f"peak memory: {peaks['minute']:.0f} MB for a minute, {peaks['two_hours']:.0f} MB for two hours")
    assert peaks["two_hours"] < peaks["minute"] + 300
