"""Reading ahead from a slow S3 server: ``python tests/benchmarks/reading_ahead.py FOLDER``, three minutes.

Trains on a store in a bucket of a server on loopback that answers each request for a shard only after a while. Each
step needs shards that are not here yet. Shown is the share of the time that training waited for its inputs: without
anything ahead, with inputs that are made ahead by one thread, and with rows that are read ahead, too, of one step at a
time or of several, as training does. They are trained in turn, in one process.
"""

import argparse
import contextlib
import io
import os
import shutil
import statistics
import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[1])
sys.path[:0] = [TESTS]

import captions
from helpers.s3_server import Fault, S3Server, running_server
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.remote.store import RemoteStore, is_stub, link_store
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.examples import Examples
from vlalign.train.loop import prefetch as ahead

SHARDS, SHARD_VIDEOS, BATCH, STEPS, ROUNDS = 600, 3, 6, 60, 2
DELAYS = 0.05, 0.2
ADDRESS = "s3://films/s3d"
SETTINGS = ["--objective", "ssml", "--encoder", "gated", "--embedding-size", "2048", "--batch-size", str(BATCH)]
SETTINGS += ["--num-steps", str(STEPS), "--validate-every", str(STEPS)]
WAYS = {
    "nothing ahead": (1, 1, 0),
    "inputs made ahead": (1, 2, 0),
    "rows read ahead, of one step at a time": (16, 2, 1),
    "rows read ahead": (ahead.NUM_PREFETCHED_READS, ahead.NUM_PREFETCHED_BATCHES, ahead.NUM_READER_THREADS),
}
"""{name: NUM_PREFETCHED_READS, NUM_PREFETCHED_BATCHES and NUM_READER_THREADS; 0 at once if no rows are read ahead}"""


def make_dataset(folder: Path) -> DatasetFolder:
    """Write captions, and a store of many small shards."""
    captions.NUM_VIDEOS = captions.KINDS = SHARDS * SHARD_VIDEOS
    captions.VOCABULARY = 1000
    dataset = DatasetFolder(folder, "slow")
    captions.make_captions(dataset, 4 * captions.NUM_VIDEOS)
    captions.SHARD_VIDEOS = SHARD_VIDEOS
    captions.make_features(dataset.features("s3d"))
    return dataset


def waited(dataset: DatasetFolder, remote: RemoteStore, way: str) -> tuple[float, float]:
    """Train with no shard here. Return the share of waiting, and the seconds of the training."""
    for path in remote.folder.glob("*.h5"):
        if not is_stub(path):
            remote._make_stub(path)
    shutil.rmtree(dataset.runs, ignore_errors=True)
    ahead.NUM_PREFETCHED_READS, ahead.NUM_PREFETCHED_BATCHES, at_once = WAYS[way]
    ahead.NUM_READER_THREADS, prefetch = max(at_once, 1), Examples.prefetch
    if not at_once:
        Examples.prefetch = lambda *_: None
    try:
        call = ["--root", str(dataset.root), "--dataset", dataset.name, "--features", "s3d", "--run-name", "run"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert train_main([*call, *SETTINGS]) == 0
    finally:
        Examples.prefetch = prefetch
    result = read_json(dataset.runs / "run" / "run.json")["result"]
    return result["waited_share"], result["seconds"]


def measure(dataset: DatasetFolder, server: S3Server) -> None:
    remote = link_store(dataset.features("s3d"), ADDRESS)
    remote.send()
    for delay in DELAYS:
        server.fail(Fault(what="slow", methods="GET HEAD", path=r"\.h5", seconds=delay))
        found = [(way, *waited(dataset, remote, way)) for _ in range(ROUNDS) for way in WAYS]
        server.fail()
        for way in WAYS:
            shares, seconds = zip(*(of_run for name, *of_run in found if name == way), strict=True)
            step = statistics.median((1 - share) * total / STEPS for share, total in zip(shares, seconds, strict=True))
            share, total = statistics.median(shares), statistics.median(seconds)
            figures = f"{share:.0%} waiting, {total:.1f} s, a step without waiting {1e3 * step:.0f} ms"
            print(f"{1e3 * delay:.0f} ms a request, {way}: {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute() / "vlalign_benchmark"
    os.environ["PYTHONPATH"] = TESTS  # of the server
    with running_server() as server:
        own = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        os.environ |= {**own, "XDG_STATE_HOME": str(folder / "state")}
        server.make_bucket("films")
        measure(make_dataset(folder), server)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
