"""How near extraction comes to what the machine can do: ratios, each within one warm run.

    python tests/benchmarks/extraction.py FOLDER [overlap|hub|together|network|skipping|memory|startup ...]

FOLDER: videos, of a few minutes in all. Results that were kept, with their machines, stand in README.md beside this
file. Weights are random: they take as long as any.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import transformers
from vlalign.extract import load_extractor
from vlalign.extract.decoding import backends, frames
from vlalign.extract.decoding.decode import DecodingFinished
from vlalign.extract.decoding.messages import Request, ThumbnailFollows, WindowReady
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.decoding.sampling import sample_frames
from vlalign.extract.extractor import Extractor
from vlalign.extract.models import MODELS
from vlalign.extract.pipeline.engine import extract_videos
from vlalign.extract.pipeline.video_jobs import VideoJob, frame_spec_of
from vlalign.storage.common.system import available_cores

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "train")]

PROFILES = ("resnet152", "i3d_resnext101", "i3d_resnet152", "s3d")
HUB_MODELS = {
    "SigLIP, ViT-B/16, 1fps": lambda: (
        transformers.AutoModel.from_config(transformers.SiglipConfig()),
        transformers.SiglipImageProcessor(size={"height": 224, "width": 224}),
    ),
    "VideoMAE, ViT-B, 4fps": lambda: (
        transformers.AutoModel.from_config(transformers.VideoMAEConfig()),
        transformers.VideoMAEImageProcessor(),
    ),
}
SECONDS_OF_WORK = 90


def cpu_seconds() -> float:
    return time.process_time()


def drain(paths: list[Path], extractors: list[Extractor]) -> tuple[float, list[list[np.ndarray]]]:
    """CPU seconds that decoding for ``extractors`` takes, in its own process and in ours, and the windows of each."""
    specs, windows = [frame_spec_of(e.profile) for e in extractors], [[] for _ in extractors]
    process = DecodeProcess(specs)
    process.start(Request(str(paths[0]), specs, only_probe=True))  # start-up is paid once
    process.receive()
    before, child_before = cpu_seconds(), child_cpu_seconds(process)
    for path in paths:
        process.start(Request(str(path), specs))
        while not isinstance(message := process.receive(), DecodingFinished):
            if isinstance(message, WindowReady):
                frames = np.empty(message.shape, dtype=np.uint8)
                process.take_frames(message, frames)
                windows[message.spec_index].append(frames)
            elif isinstance(message, ThumbnailFollows):
                process.receive_bytes()
    seconds = cpu_seconds() - before + child_cpu_seconds(process) - child_before
    process.close()
    return seconds, windows


def child_cpu_seconds(process: DecodeProcess) -> float:
    """CPU seconds of a decoder's process and of those that it has forked, one of which decodes."""
    pids, ticks = [process._process.pid], 0
    while pids:
        folder = Path(f"/proc/{pids.pop()}")
        fields = folder.joinpath("stat").read_text().rsplit(") ", 1)[1].split()
        ticks += sum(map(int, fields[11:15]))  # its own time, and that of children that have ended
        pids += map(int, folder.joinpath(f"task/{folder.name}/children").read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


def model_cpu_seconds(extractor: Extractor, windows: list[np.ndarray]) -> float:
    """CPU seconds that the network takes for ``windows``, as many threads at once as there are cores."""
    batches: dict[tuple, list[list[np.ndarray]]] = {}
    for window in windows:
        of_shape = batches.setdefault(window.shape, [[]])
        if len(of_shape[-1]) == extractor.batch_size:
            of_shape.append([])
        of_shape[-1].append(window)
    stacked = [np.stack(batch) for of_shape in batches.values() for batch in of_shape]
    with ThreadPoolExecutor(available_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(extractor.features, stacked[:2]))
        before = cpu_seconds()
        list(pool.map(extractor.features, stacked))
        return cpu_seconds() - before


def extraction_seconds(paths: list[Path], extractors: list[Extractor]) -> float:
    """Wall seconds of a whole extraction, its processes' start included."""
    started = time.monotonic()
    for _ in extract_videos([VideoJob(str(i), path, extractors) for i, path in enumerate(paths)], extractors):
        pass
    return time.monotonic() - started


def enough(paths: list[Path], extractors: list[Extractor]) -> list[Path]:
    """``paths`` over and over, for about ``SECONDS_OF_WORK``."""
    seconds = extraction_seconds(paths, extractors)
    return paths * max(round(SECONDS_OF_WORK / seconds), 1)


def overlap(paths: list[Path]) -> None:
    """(a) wall x cores of an extraction against the CPU seconds of the model alone and of decoding alone, best of
    two."""
    for name in PROFILES:
        overlap_of(name, load_extractor(name, weights="random"), paths)


def hub(paths: list[Path]) -> None:
    """(a) for an image and a video model of transformers in their usual size, with random weights."""
    for name, make in HUB_MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            for part in make():
                part.save_pretrained(folder)
            overlap_of(name, load_extractor(f"hf:{folder}:{name.split(', ')[-1]}"), paths)


def overlap_of(name: str, extractor: Extractor, paths: list[Path]) -> None:
    """(a) for one network."""
    videos = enough(paths, [extractor])
    decodes, models, wholes, windows = [], [], [], []
    for _ in range(2):  # by turns: a shared machine is not as fast from one minute to the next
        decode, (windows,) = drain(videos, [extractor])
        decodes.append(decode)
        models.append(model_cpu_seconds(extractor, windows))
        wholes.append(extraction_seconds(videos, [extractor]) * available_cores())
    decode, model, whole = min(decodes), min(models), min(wholes)
    rate = len(windows) / whole * available_cores()
    print(
        f"a  {name:<16} {len(windows):5} windows: extraction {whole:6.1f} core s, model {model:6.1f} + decoding "
        f"{decode:5.1f}: ratio {whole / (model + decode):.3f} (at most 1.08); {rate:.2f} windows/s",
        flush=True,
    )


def together(paths: list[Path]) -> None:
    """(b) three sets of features in one call against the three models alone and one decode."""
    extractors = [load_extractor(name, weights="random") for name in ("resnet152", "i3d_resnext101", "s3d")]
    decodes, models, wholes = [], [], []
    for _ in range(2):  # by turns: a shared machine is not as fast from one minute to the next
        decode, windows = drain(paths, extractors)
        decodes.append(decode)
        models.append(sum(model_cpu_seconds(e, w) for e, w in zip(extractors, windows, strict=True)))
        wholes.append(extraction_seconds(paths, extractors) * available_cores())
    decode, models, whole = min(decodes), min(models), min(wholes)
    ratio = whole / (models + decode)
    print(
        f"b  three in one call {whole:.1f} core s, models {models:.1f} + one decode {decode:.1f}: ratio {ratio:.3f} "
        "(at most 1.08)"
    )


def plain_network(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The network as its authors' code runs it: fp32, batch norm of its own, as laid out by default, gradients
    recorded."""
    from helpers.networks import PlainResNet3D, PlainS3D
    from torchvision.models import resnet152

    if name == "resnet152":
        return resnet152().eval()
    state = MODELS[name]().state_dict()
    for entry, value in state.items():
        if value.is_floating_point() and "running" not in entry:
            value.requires_grad_()
    return PlainS3D(state) if name == "s3d" else PlainResNet3D(state)


def network(paths: list[Path]) -> None:
    """(c) windows a second of the best path against the plain fp32 module, each on all cores, by turns."""
    precision = "bf16" if torch.cpu._is_avx512_bf16_supported() else "fp32"
    torch.set_num_threads(available_cores())
    for name in PROFILES:
        extractor, plain = load_extractor(name, weights="random", precision=precision), plain_network(name)
        _, (windows,) = drain(paths[:2], [extractor])
        frames = np.stack([w for w in windows if w.shape == windows[0].shape][: 2 * extractor.batch_size])
        values = torch.from_numpy(frames[: extractor.batch_size]).float().movedim(-1, 1).contiguous() / 255
        batches = np.split(frames, 2) * 2
        slow, fast = [], []
        with ThreadPoolExecutor(available_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in range(5):
                slow.append(seconds_of(lambda plain=plain, values=values: plain(values)) / len(values))
                time.sleep(0.5)  # until the threads of the plain network have stopped spinning
                fast.append(
                    seconds_of(lambda pool=pool, e=extractor, b=batches: list(pool.map(e.features, b)))
                    / len(frames)
                    / 2
                )
        slow, fast = min(slow[1:]), min(fast[1:])
        print(
            f"c  {name:<16} plain {1 / slow:6.2f}/s, best path ({precision}) {1 / fast:6.2f}/s: ratio "
            f"{slow / fast:.2f}",
            flush=True,
        )


def seconds_of(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def skipping(paths: list[Path]) -> None:
    """(d) CPU of decoding at 1 fps with unneeded frames left out against all of them decoded; the pictures are the
    same."""
    seconds = {True: [], False: []}
    codecs = frames.SKIPPING_CODECS
    for _ in range(5):
        pictures = {}
        for skip in (True, False):
            frames.SKIPPING_CODECS = codecs if skip else set()
            before = cpu_seconds()
            pictures[skip] = [picture for path in paths for picture in at_1_fps(path)]
            seconds[skip].append(cpu_seconds() - before)
        assert all(np.array_equal(a, b) for a, b in zip(pictures[True], pictures[False], strict=True))
    frames.SKIPPING_CODECS = codecs
    skipped, every = (min(seconds[skip]) for skip in (True, False))
    print(
        f"d  1 fps: {skipped:.2f} CPU s, all frames decoded {every:.2f}: ratio {skipped / every:.2f}; pictures "
        "identical"
    )


def at_1_fps(path: Path) -> list[np.ndarray]:
    info = probe_video(path)
    wanted, _ = sample_frames(info.pts, info.end, info.time_base, 1)
    return [sizes[0] for _, sizes in backends.decode_with_pyav(backends.DecodePass(info, [backends.Size(224)]), wanted)]


MEASURED = """
import json, resource, sys, time
started = time.monotonic()
{body}
own, children = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([own + children, time.monotonic() - started]))
"""


def measured(body: str) -> tuple[float, float]:
    """Peak MB of a process and its largest child, and its seconds."""
    answer = subprocess.run(
        [sys.executable, "-c", MEASURED.format(body=body)], capture_output=True, text=True, check=True
    ).stdout
    return tuple(json.loads(answer.splitlines()[-1]))


def memory(paths: list[Path]) -> None:
    """(e) peak memory of s3d on the first 20 s of the longest video, above an idle process."""
    path = max(paths, key=lambda p: probe_video(p).duration_seconds)
    idle, _ = measured("")
    extract = (
        "from pathlib import Path; from vlalign.extract import load_extractor; "
        "from vlalign.extract.pipeline.engine import VideoJob, extract_videos\n"
        "e = load_extractor('s3d', weights='random'); "
        f"list(extract_videos([VideoJob('x', Path({str(path)!r}), [e], 20.0)], [e]))"
    )
    peak, _ = measured(extract)
    info = probe_video(path)
    what = f"{min(info.duration_seconds, 20):.0f} s of {info.width}x{info.height}"
    print(f"e  s3d, {what}: {peak - idle:,.0f} MB above an idle process (under 1,500)")


def startup(paths: list[Path]) -> None:
    """(f) many videos in one process against a process for each."""
    extract = (
        "from pathlib import Path; from vlalign.extract import load_extractor; "
        "from vlalign.extract.pipeline.engine import VideoJob, extract_videos\n"
        "e = load_extractor('resnet152', weights='random'); paths = {paths}\n"
        "list(extract_videos([VideoJob(p, Path(p), [e], 5.0) for p in paths], [e]))"
    )
    names = [str(path) for path in paths]
    apart = sum(measured(extract.format(paths=[name]))[1] for name in names)
    one = measured(extract.format(paths=names))[1]
    print(
        f"f  resnet152 on {len(names)} videos: one process {one:.1f} s, a process each {apart:.1f} s: ratio "
        f"{one / apart:.2f}"
    )


BENCHMARKS = {f.__name__: f for f in (overlap, hub, together, network, skipping, memory, startup)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("which", nargs="*", default=list(BENCHMARKS))
    args = parser.parse_args()
    paths = sorted(p for p in args.folder.rglob("*") if p.suffix in (".mp4", ".avi", ".mkv", ".webm"))
    seconds = sum(probe_video(path).duration_seconds for path in paths)
    print(
        f"{len(paths)} videos, {seconds:.0f} s; {available_cores()} cores, {platform.machine()}, torch "
        f"{torch.__version__}"
    )
    for name in args.which:
        BENCHMARKS[name](paths)


if __name__ == "__main__":
    main()
