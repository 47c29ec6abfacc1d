"""How fast frames get from a decoder to a batch: ``python tests/benchmarks/frames.py [ROUNDS]``.

S3D's windows ([16, 224, 224, 3] bytes) come from a decoder that decodes nothing, go through the engine, and end at a
network that computes nothing. By turns with that, the same windows go through a socket as messages. Windows are
counted by the second, and by the second of processor time of the thread that receives them: a busy machine changes
the former more.
"""

import multiprocessing
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.extractor import Extractor
from vlalign.extract.pipeline.engine import extract_videos
from vlalign.extract.pipeline.video_jobs import Extracted, VideoJob
from vlalign.storage import Weights
from vlalign.storage.profiles import PROFILES

NUM_WINDOWS, BATCH_SIZE = 1000, 16
WINDOW = (16, 224, 224, 3)
STUB_DECODER = """
from fractions import Fraction
from pathlib import Path
import numpy as np
from vlalign.extract.decoding import child, decode, request_handler
from vlalign.extract.decoding.probe import VideoInfo

decoded = np.random.default_rng(0).integers(0, 256, (24, 224, 224, 3), dtype=np.uint8)

def probe(path, heartbeat):
    num_frames = {num_windows} * 16
    facts = dict(codec="h264", containers=frozenset(), offset=0, height=224, width=224, timed=True, plain=True)
    facts |= dict(pts=np.arange(num_frames), packet_bytes=np.ones(num_frames), end=num_frames)
    return VideoInfo(path=path, time_base=Fraction(1, 24), **facts)

def pictures(decoding, wanted):
    for index in wanted.tolist():
        decoding.delivered.append(index)
        yield index, [decoded[index % 24]]

request_handler.probe_video = probe
request_handler.is_image = lambda path: False
decode.THUMBNAIL_POSITIONS = ()
decode.BACKENDS["PyAV"] = pictures
child.main()
"""


class NoNetwork(Extractor):
    """An extractor that computes nothing."""

    def features(self, frames: Tensor) -> Tensor:
        return torch.zeros(len(frames), 2)


def now() -> np.ndarray:
    """Seconds, and processor seconds of this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


def through_engine(extractor: Extractor) -> np.ndarray:
    """Windows a second and a processor second, once the decoder has started."""
    started = now()
    jobs = [VideoJob(str(number), Path(__file__), [extractor]) for number in range(2)]
    for _, result in extract_videos(jobs, [extractor], num_cores=1):
        assert isinstance(result, Extracted), result
        assert len(result.features["s3d"].features) == NUM_WINDOWS
        seconds, started = now() - started, now()
    return NUM_WINDOWS / seconds


def send(connection: Connection) -> None:
    window = torch.zeros(WINDOW, dtype=torch.uint8).numpy()
    for _ in range(NUM_WINDOWS + 1):
        connection.send_bytes(b'{"type": "Window", "spec_index": 0, "shape": [16, 224, 224, 3]}')
        connection.send_bytes(window.data.cast("B"))


def through_socket() -> np.ndarray:
    """Windows a second and a processor second, as messages over a socket, into batches."""
    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.Process(target=send, args=(theirs,))
    sender.start()
    started = now()
    batches = [torch.zeros(BATCH_SIZE, *WINDOW, dtype=torch.uint8) for _ in range(2)]
    for number in range(NUM_WINDOWS + 1):
        ours.recv_bytes()
        into = batches[number // BATCH_SIZE % 2][number % BATCH_SIZE]
        ours.recv_bytes_into(into.numpy().data.cast("B"))
        if number == 0:
            started = now()
    seconds = now() - started
    sender.join()
    return NUM_WINDOWS / seconds


def main(num_rounds: int) -> None:
    decode_process.COMMAND = STUB_DECODER.format(num_windows=NUM_WINDOWS)
    profile = replace(PROFILES["s3d"], dimension=2)
    weights = Weights(name="stub", sha256="0" * 64)
    extractor = NoNetwork(profile, weights, None, torch.device("cpu"), BATCH_SIZE)
    rounds = [(through_engine(extractor), through_socket()) for _ in range(num_rounds)]
    for number, unit in enumerate(("second", "processor second")):
        engine, socket = (np.array([rates[way][number] for rates in rounds]) for way in range(2))
        for what, rates in (("engine", engine), ("socket", socket)):
            print(f"{what}: {np.median(rates):,.0f} windows a {unit} ({rates.min():,.0f} to {rates.max():,.0f})")
        ratios = engine / socket
        print(f"engine / socket: {np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
