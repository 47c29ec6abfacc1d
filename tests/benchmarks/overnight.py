"""A night on a cluster in which all goes wrong: ``python tests/benchmarks/overnight.py FOLDER``.

FOLDER is empty or from an earlier call. Three raylets of one core each extract made videos, first undisturbed. Then one
has no mount of the videos (a mount namespace of its own with an empty folder), one computes ten times slower, the
worker of the third is killed each minute, and the driver is killed twice and started again with the same command. It
prints what each driver said, and compares all rows with those of the calm run.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from helpers.clusters import IMPORT_HOOK, PORT, SCRIPTS, Cluster, descendants
from ray_data import FEATURES, hooked_environment, kill_all, make_films, workers
from vlalign.storage import FeatureStore
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.trusted_folders import allow_folder

KILL_WORKER_EVERY, KILL_DRIVER_AFTER, LIMIT_SECONDS = 60.0, (60.0, 150.0), 1500.0
HOOKS = (
    IMPORT_HOOK
    + """
def slow_down(module):
    count_rows(module)
    features = module.Extractor.features
    def slow(self, frames):
        started = time.monotonic()
        found = features(self, frames)
        time.sleep((float(os.environ["SLOW"]) - 1) * (time.monotonic() - started))
        return found
    module.Extractor.features = slow

if "SLOW" in os.environ:
    PATCHES["vlalign.extract.extractor"] = slow_down
"""
)
EMPTY_MOUNT = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']


def run(films: DatasetFolder, folder: Path, *, is_disturbed: bool) -> float:
    """Extract all videos; return the seconds that it took."""
    shutil.rmtree(folder, ignore_errors=True)
    environment = hooked_environment(folder, HOOKS)
    dataset = DatasetFolder(folder, "demo")
    dataset.write_videos([replace(video, path=str(films.video_path(video))) for video in films.read_videos()])
    allow_folder(dataset, films.path)
    cluster = Cluster([], environment)
    cluster.start(1)
    if is_disturbed:
        cluster.add_machine([*EMPTY_MOUNT, str(films.path)])
        cluster.add_machine(SLOW="10")
    else:
        cluster.add_machine()
        cluster.add_machine()
    asked = ["--root", str(folder), "--dataset", "demo", "--features", FEATURES, "--weights", "random"]
    command = [sys.executable, str(SCRIPTS / "extract_howto100m.py"), "--address", f"127.0.0.1:{PORT}", *asked]
    command += ["--cpus-per-worker", "1"]

    def start(number: int) -> subprocess.Popen:
        with (folder / f"log{number}.txt").open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    started = time.monotonic()
    driver, kills, driver_kills, last = start(0), 0, 0, started
    try:
        while driver.poll() is None and time.monotonic() - started < LIMIT_SECONDS:
            time.sleep(0.5)
            now = time.monotonic()
            if is_disturbed and now - last > KILL_WORKER_EVERY:
                of_the_head = [pid for pid in workers(cluster) if pid in descendants(cluster.machines[0])]
                kill_all(of_the_head[:1])
                kills, last = kills + len(of_the_head[:1]), now
            if is_disturbed and driver_kills < 2 and now - started > KILL_DRIVER_AFTER[driver_kills]:
                os.kill(driver.pid, signal.SIGKILL)
                driver.wait()
                driver_kills += 1
                driver = start(driver_kills)
        seconds = time.monotonic() - started
        code = "not ended" if driver.poll() is None else driver.returncode
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        cluster.stop()
    computed = sum(map(int, (folder / "rows.txt").read_text().split()))
    print(
        f"\n{folder.name}: exit {code}, {seconds:.0f} s, {kills} workers and {driver_kills} drivers killed, "
        f"{computed} rows computed",
        flush=True,
    )
    for number in range(driver_kills + 1):
        print(f"-- driver {number}")
        lines = (folder / f"log{number}.txt").read_text().splitlines()
        print("\n".join(line[:400] for line in lines if "raylet" not in line))
    return seconds


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    films = make_films(folder)
    calm = run(films, folder / "calm", is_disturbed=False)
    night = run(films, folder / "night", is_disturbed=True)
    stores = [FeatureStore(DatasetFolder(folder / name, "demo").features(FEATURES)) for name in ("calm", "night")]
    ids = sorted(stores[0].video_ids())
    assert sorted(stores[1].video_ids()) == ids, "other videos"
    num_rows = 0
    for video_id in ids:
        ours, theirs = ([np.asarray(store.get(video_id).features)] for store in stores)
        assert np.array_equal(ours, theirs), video_id
        num_rows += len(ours[0])
    shard_videos = sum(len(part.videos) for part in stores[1].shard_parts())
    print(f"\n{len(ids)} videos, {num_rows} rows: the same in both runs; in shards of the night: {shard_videos} videos")
    print(f"wall time: {calm:.0f} s calm, {night:.0f} s disturbed ({night / calm:.1f} times)")


if __name__ == "__main__":
    main()
