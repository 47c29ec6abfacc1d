"""Damaged and made-up files for every reader: ``hostile_bytes.py FIRST LAST FOLDER READER...`` tries these seeds.

It prints a line of JSON for each that gave anything but a line for the user, or took too long or too much memory, and
one for each reader with the numbers of files that it read and refused.
"""

import argparse
import contextlib
import faulthandler
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from vlalign.extract.encoders.text_tower import load_text_tower
from vlalign.preprocess.corpus_statistics import CaptionStatistics, CorpusCounter, SkippedInputs, format_statistics
from vlalign.preprocess.datasets import DATASETS, custom, subtitles
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.preprocess.first_pass import ChunkCounts, FirstPass, FirstPassLine, open_first_pass_log
from vlalign.preprocess.word_vector_formats import select_vectors
from vlalign.storage import FeatureStore
from vlalign.storage.captions.files import read_captions, read_captions_about
from vlalign.storage.captions.idf import read_idf
from vlalign.storage.captions.word_vectors import read_word_vectors
from vlalign.storage.cli.option_files import read_option_file
from vlalign.storage.common.errors import UserError, refuse_unreadable
from vlalign.storage.common.files import read_json, sha256_of
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.exchange.declared_profile import read_declared, read_durations
from vlalign.storage.exchange.exports import export_store
from vlalign.storage.exchange.published_features import PUBLISHED
from vlalign.storage.exchange.readers import source_videos
from vlalign.storage.profiles import PROFILES
from vlalign.storage.records import Caption, Weights
from vlalign.storage.remote.links import linked_address, trusted_address
from vlalign.storage.stores.maintenance import find_damage
from vlalign.storage.stores.store_info import describe
from vlalign.storage.stores.thumbnails import Thumbnail, ThumbnailStore, write_thumbnails

from helpers.annotation_files import VTT_LISTS, VTT_SENTENCES, data_json
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from helpers.feature_files import make_store
from helpers.toy import make_toy

MOST_SECONDS, MOST_BYTES = 10, 2 << 30
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
VALUES = [
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    2**70,
    1e308,
    -0.5,
    float("nan"),
    "",
    "x",
    "../x",
    "/etc/passwd",
    "\x1b[2J",
    "\ud800",
    [],
    {},
    [[]],
    [{}],
]
"""What may stand anywhere in a JSON file."""
RAW = [
    "1" * 5000,
    "1" * 10**6,
    "1e999",
    "-Infinity",
    "[" * 10**5,
    "[" * 900 + "]" * 900,
    '{"a":' * 10**5,
    '{"a": 1, "a": 2}',
    '"' + "x" * 10**6 + '"',
    '"' + "\\ud800" * 1000 + '"',
    "[" + "1," * 10**5 + "1]",
    "{" + ",".join(f'"{number}": 1' for number in range(10**4)) + "}",
]
"""The same, as text: long, deep or twice."""
RAW_PLACE = "@RAW@"


class TooLong(BaseException):
    """Not an ``Exception``: no reader takes it for its own."""


# What a reader must not do


FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
DONE: list[str] = []
"""What the reader did that none may do."""


def watch(folder: Path) -> None:
    """Note from now on what is written outside the folder, dialled, started, or run from the folder."""
    inside = (str(folder), tempfile.gettempdir(), "/dev/", "/proc/self/")
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)  # a name in an open folder is shown without that folder

    def is_outside(path: object) -> bool:
        path = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None
        return path is not None and not os.path.abspath(path).startswith(inside)

    def hook(event: str, args: tuple) -> None:
        if (
            event in FORBIDDEN
            or (event == "open" and isinstance(args[2], int) and args[2] & WRITING and is_outside(args[0]))
            or (event in CHANGES and any(map(is_outside, args[:2])))
            or (event == "pickle.find_class")
            or (event == "exec" and getattr(args[0], "co_filename", "").startswith(str(folder)))
        ):
            DONE.append(f"{event} {args!r}"[:300])

    sys.addaudithook(hook)


# Damage


def damage(content: bytes, chance: random.Random) -> bytes:
    """Bytes that are other ones, missing, there twice, or cut off; or nothing of the file but its first ones."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        place = (
            chance.randrange(len(changed) + 1)
            if chance.random() < 0.5
            else chance.randrange(min(len(changed), 600) + 1)
        )
        size = chance.choice([1, 1, 4, 8, 64])
        how = chance.randrange(5)
        if how == 0:
            changed[place : place + size] = chance.randbytes(len(changed[place : place + size]))
        elif how == 1:
            changed[place : place + size] = bytes([chance.choice([0, 0xFF, 0x7F, 0x80])]) * len(
                changed[place : place + size]
            )
        elif how == 2:
            del changed[place : place + size]
        elif how == 3:
            changed[place:place] = changed[place : place + size] or chance.randbytes(size)
        elif place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
    if chance.random() < 0.1:
        changed = changed[: chance.randrange(len(changed) + 1)]
    if chance.random() < 0.05:
        changed = changed[:16] + chance.randbytes(chance.randrange(2000))
    return bytes(changed)


def damage_json(content: bytes, chance: random.Random, *, lines_of: bool = False) -> bytes:
    """Values that are other ones, missing, or deeper than they should be. ``lines_of``: of JSON lines, one line is
    another."""
    if lines_of:
        lines = content.decode().splitlines()
        place = chance.randrange(len(lines))
        lines[place] = damage_json(lines[place].encode(), chance).decode(errors="surrogatepass")
        return "\n".join(lines).encode(errors="surrogatepass")
    value = json.loads(content)
    for _ in range(chance.choice([1, 1, 3])):
        value = _changed(value, chance)
    try:
        text = json.dumps(value)
    except RecursionError:  # deep in what was deep
        text = f'"{RAW_PLACE}"'
    return text.replace(f'"{RAW_PLACE}"', chance.choice(RAW)).encode()


def _changed(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        changed = value.copy()
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if chance.random() < 0.1:
            del changed[key]
        else:
            changed[key] = _changed(value[key], chance)
        return changed
    if chance.random() < 0.05:
        deep: Any = value
        for _ in range(chance.choice([3, 400, 900])):
            deep = [deep]
        return deep
    return RAW_PLACE if chance.random() < 0.1 else chance.choice(VALUES)


def bomb(path: Path, chance: random.Random) -> None:
    """A small file of the same format that unpacks to gigabytes."""
    if path.suffix == ".parquet":
        names = pq.ParquetFile(path).schema_arrow.names
        number = 10 ** chance.choice([3, 4, 6])
        kinds = {
            "text": pa.array(["x" * 10 ** chance.choice([1, 4, 6])]),
            "number": pa.array([0.0]),
            "list": pa.array([["y" * 10**4] * 100]),
            "rows": pa.array([[0.0] * 10**4]),
        }
        chosen = [kinds[chance.choice(list(kinds))] for _ in names]
        with pq.ParquetWriter(path, pa.schema(list(zip(names, (kind.type for kind in chosen), strict=True)))) as writer:
            indices = pa.array(np.zeros(min(number, 10**7 // max(kind.nbytes for kind in chosen) + 1), np.int64))
            writer.write_table(pa.table([kind.take(indices) for kind in chosen], names=names))
    elif path.suffix == ".npz":
        with zipfile.ZipFile(path, "w", chance.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])) as file:
            for name in chance.choice([["a"], ["words", "vectors", "about"]]):
                array = np.zeros(10**7, chance.choice(["f4", "U1", "f8"]))
                with file.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for number in range(chance.choice([1, 50])):
                file.create_dataset(f"v{number}", shape=(10**6, 64), dtype="f4", chunks=(10**4, 64), compression="gzip")
                file[f"v{number}"][: 10**4] = 0
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(b"1000000 30000\n" + b"a " + bytes(10**7), 1))
    elif path.suffix in (".csv", ".tsv"):
        path.write_text(",".join(f"c{number}" for number in range(chance.choice([300, 10**5]))) + "\n" + "a\n" * 10**5)
    else:
        path.write_bytes(chance.choice([b"(" * 10**6, b"\x00" * 10**6, b"1" * 10**6, b"a\n" * 10**5, b"{" * 10**6]))


def made_up_hdf5(path: Path, chance: random.Random) -> None:
    """Names of ours, with contents that are none of ours."""
    names = ["features", "videos", "thumbnails", "jpegs", "index", "rows", "start_seconds", "a", "b"]
    with h5py.File(path, "w") as file:
        for place in [file, *(file.create_group(f"g{n}") for n in range(chance.randrange(3)))]:
            for name in chance.sample(names, chance.randrange(4)):
                _made_up(place, name, chance)
            for name in ("profile", "weights", "format", "made_with"):
                if chance.random() < 0.3:
                    place.attrs[name] = chance.choice(["{}", "[]", 1, b"\xff", np.arange(3), "x" * 1000])


def _made_up(place: h5py.Group, name: str, chance: random.Random) -> None:
    how = chance.randrange(8)
    if how == 0:
        place.create_dataset(name, shape=(2**40, 4), dtype="f4", chunks=(1024, 4))
    elif how == 1:
        place.create_dataset(name, shape=(3, 2), dtype="f4", external=[("/etc/hostname", 0, 24)])
    elif how == 2:
        place[name] = h5py.ExternalLink("/etc/hostname", "/x")
    elif how == 3:
        place[name] = h5py.SoftLink(f"/{name}")
    elif how == 4:
        place.create_dataset(name, data=np.zeros((4, 3)), dtype="f2")
    elif how == 5:
        place[name] = np.array(
            [("v", 1.0, "s")],
            dtype=[("video_id", h5py.string_dtype()), ("seconds", "f8"), ("source", h5py.string_dtype())],
        )
    elif how == 6:
        place.create_dataset(name, shape=(2,), dtype=h5py.vlen_dtype(np.uint8))
    else:
        place.create_group(name)


# Readers


def read_store(folder: Path, path: Path) -> None:
    find_damage(path)
    store = FeatureStore(folder)
    describe(store)
    for video_id in store.video_ids()[:8]:
        store.get(video_id)


def read_thumbnails(folder: Path, path: Path) -> None:
    store = ThumbnailStore(folder)
    for video_id in ("v0", "v1", "v"):
        store.get(video_id)


def read_prepared(folder: Path, path: Path) -> None:
    if path.name == "idf.parquet":
        read_idf(path)
        return
    read_captions_about(folder)
    for caption in read_captions(folder):
        caption.caption.encode()


def read_videos(folder: Path, path: Path) -> None:
    dataset = DatasetFolder(folder.parent, folder.name)
    for video in dataset.read_videos():
        dataset.video_path(video)


def read_table(folder: Path, path: Path) -> None:
    list(custom.read(path, 0, Problems(quiet=True)))


def read_others(folder: Path, path: Path) -> None:
    with source_videos(path) as videos:
        for video in videos[:8]:
            try:
                video.read()
            except UserError:
                continue


def read_words(folder: Path, path: Path) -> None:
    read_word_vectors(path)


def read_settings(folder: Path, path: Path) -> None:
    actions = {name: argparse.ArgumentParser().add_argument(f"--{name}") for name in ("features", "batch-size")}
    read_option_file(path, actions, [])


def read_link(folder: Path, path: Path) -> None:
    if linked_address(folder) is None:
        raise UserError("no link")
    with contextlib.suppress(UserError):  # nobody confirmed it here
        trusted_address(folder)


def read_first_pass(folder: Path, path: Path) -> None:
    with open_first_pass_log(path, {"file": "x"}) as log:
        if not log.lines:
            raise UserError("begins anew")
        found = FirstPass(10)
        for line in log.lines:
            found.add_line(line, Problems(quiet=True))
        assert found.num_captions >= 0
        json.dumps(line.to_json())


def read_vectors(folder: Path, path: Path) -> None:
    select_vectors(path, {"salt"})


def read_summary(folder: Path, path: Path) -> None:
    with refuse_unreadable(path, "damaged"):
        statistics = CaptionStatistics.from_json(read_json(path))
    format_statistics(statistics)


def read_official(folder: Path, path: Path) -> None:
    name = folder.name if folder.name in DATASETS else "msrvtt"
    problems = Problems(quiet=True)
    for protocol in DATASETS[name].protocols:
        for record in DATASETS[name].read(Annotations(folder, DATASETS[name].published, problems), protocol):
            record.video_id.encode()
    if problems.count:
        raise UserError("a line for each row that was left out")


def read_import_options(folder: Path, path: Path) -> None:
    if path.suffix == ".csv":
        read_durations(path)
    else:
        read_declared(str(path), PUBLISHED).profile(1)


def read_run(folder: Path, path: Path) -> None:
    from vlalign.train.runs.load import open_run
    from vlalign.train.runs.run_json import features_note, read_labels, read_run

    about = read_run(folder)
    features_note(about["inputs"]["features"])
    read_labels(folder)
    open_run(folder)


def read_exported(folder: Path, path: Path) -> None:
    from vlalign.train import load_run

    run = load_run(folder)
    rows = {name: np.ones((2, profile.dimension), np.float32) for name, profile in run.profiles.items()}
    run.similarity(["cut the onion"], [rows])


def read_subtitles(folder: Path, path: Path) -> None:
    for place in (path, folder):
        problems = Problems(quiet=True)
        for caption in subtitles.read(place, "merged", 0, problems):
            caption.caption.encode()
        if problems.count:
            raise UserError("a line for each cue that was left out")


def read_index(folder: Path, path: Path) -> None:
    from vlalign.train.search.index import WindowIndex, open_index_shards

    shards = open_index_shards(folder)
    index = WindowIndex(shards, "{}", {f"v{number}": number for number in range(8)})
    for _, vectors in index.blocks(100):
        vectors.astype(np.float32).sum()
    index.vectors_of(index.whole_videos())


def read_codes(folder: Path, path: Path) -> None:
    from vlalign.train.search.coded_search import CodedIndex, CodeFolder
    from vlalign.train.search.index import WindowIndex, open_index_shards

    codes = CodeFolder(folder)
    index = WindowIndex(open_index_shards(folder), "{}", {f"v{number}": number for number in range(2)})
    quantizer = codes.quantizer()
    if quantizer is None or not index.shards:
        raise UserError("made anew by vlalign-index")
    of_shards = [codes.read(shard, quantizer) for shard in index.shards]
    if any(of_shard is None for of_shard in of_shards):
        raise UserError("made anew by vlalign-index")
    CodedIndex(index, quantizer, of_shards).search(np.ones(quantizer.sample.shape[1], np.float32)).best(5, None)


def read_clip(folder: Path, path: Path) -> None:
    weights = Weights(name="clip", sha256=sha256_of(folder / "model.safetensors"))
    load_text_tower(PROFILES["clip_vit_b32"], weights, folder).encode(["a red circle falls"])


def read_compared(folder: Path, path: Path) -> None:
    from vlalign.train.comparison.groups import list_runs
    from vlalign.train.comparison.paired_runs import compare_runs

    dataset = DatasetFolder(folder, "toy")
    if list_runs(dataset).num_unreadable:
        raise UserError("a line for each run that was left out")
    compare_runs(dataset, "one", "two")


READERS: dict[str, Callable[[Path, Path], None]] = {
    "store": read_store,
    "thumbnails": read_thumbnails,
    "prepared": read_prepared,
    "videos": read_videos,
    "table": read_table,
    "import": read_others,
    "words": read_words,
    "run": read_run,
    "default-run": read_run,
    "exported": read_exported,
    "subtitles": read_subtitles,
    "index": read_index,
    "codes": read_codes,
    "clip": read_clip,
    "compared": read_compared,
    "options": read_import_options,
    "settings": read_settings,
    "link": read_link,
    "first_pass": read_first_pass,
    "vectors": read_vectors,
    "summary": read_summary,
    "official": read_official,
}


# Whole files, which damage is done to


def originals(reader: str, folder: Path) -> list[Path]:
    """Files in ``folder`` that the reader takes; what else it needs lies beside them."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if reader in ("run", "default-run"):
        return [path for path in files if path.suffix in (".json", ".safetensors")]
    if reader == "exported":
        return [path for path in files if path.suffix in (".json", ".safetensors", ".parquet")]
    if reader == "compared":
        return [path for path in files if path.name in ("run.json", "metrics.json", "queries.jsonl")]
    return files


def train(root: Path, name: str, objective: str = "taco") -> None:
    from vlalign.train.cli.train import main

    call = ["--root", str(root), "--dataset", "toy", "--features", "s3d", "--run-name", name, "--num-steps", "1"]
    options = ["--batch-size", "2", "--objective", objective]
    with contextlib.redirect_stdout(sys.stderr):
        assert main([*call, *options, *(["--num-negatives", "1"] if objective == "taco" else [])]) == 0


def evaluate(root: Path, name: str) -> None:
    from vlalign.train.cli.evaluate import main

    with contextlib.redirect_stdout(sys.stderr):
        assert main(["--root", str(root), "--dataset", "toy", name]) == 0


def make_originals(reader: str, folder: Path) -> Path:
    """Returns the folder that the reader is given."""
    folder.mkdir(parents=True)
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    if reader in ("store", "prepared", "words", "run", "default-run", "exported", "compared"):
        toy = make_toy(folder / "toy", num_videos=8)
        if reader in ("run", "default-run"):
            train(folder / "toy", "run", "taco" if reader == "run" else "words")
            return toy.runs / "run"
        if reader == "exported":
            from vlalign.train import export_run

            train(folder / "toy", "run", "words")
            return export_run(toy.runs / "run", folder / "given")
        if reader == "compared":
            for name in ("one", "two"):
                train(folder / "toy", name)
                evaluate(folder / "toy", name)
            return folder / "toy"
        if reader == "store":
            return toy.features("s3d")
        shutil.move(toy.idf, toy.captions / "idf.parquet")
        if reader == "prepared":
            return toy.captions
        only = folder / "words"
        only.mkdir()
        shutil.move(toy.word_vectors, only / "words.npz")
        return only
    if reader == "thumbnails":
        jpeg = io.BytesIO()
        Image.new("RGB", (16, 9)).save(jpeg, "jpeg")
        write_thumbnails(folder, [Thumbnail(f"v{n}", float(n), jpeg.getvalue(), "s") for n in range(4)])
    elif reader == "videos":
        rows = [{"video_id": f"v{n}", "path": f"videos/v{n}.mp4"} for n in range(4)]
        (folder / "videos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif reader == "table":
        lines = [
            {"video_id": f"v{n}", "caption": f"a caption, {n}", "start": n, "end": f"{n}:05", "split": "train"}
            for n in range(6)
        ]
        (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for suffix, comma in (".csv", ","), (".tsv", "\t"):
            text = "\n".join(
                [comma.join(lines[0]), *(comma.join(f'"{value}"' for value in line.values()) for line in lines)]
            )
            (folder / f"a{suffix}").write_text(text)

        pq.write_table(pa.Table.from_pylist(lines), folder / "a.parquet")
    elif reader == "subtitles":
        times = [(f"00:00:0{n},000", f"00:00:0{n},900") for n in range(6)]
        cues = [f"{n}\n{start} --> {end}\nsome words, {n}" for n, (start, end) in enumerate(times)]
        (folder / "a.srt").write_text("\n\n".join(cues))
        (folder / "b.en.vtt").write_text("WEBVTT\n\n" + "\n\n".join(cues).replace(",0", ".0").replace(",9", ".9"))
        segments = [{"id": n, "start": n, "end": n + 0.9, "text": f" some words, {n}"} for n in range(6)]
        (folder / "c.mp4.json").write_text(json.dumps({"text": "", "segments": segments, "language": "en"}))
        paragraphs = "".join(f'<p begin="{n}s" end="{n}.9s">words<br/>{n}</p>' for n in range(6))
        for suffix in ("ttml", "dfxp"):
            (folder / f"d{suffix}.{suffix}").write_text(
                f'<tt xmlns="http://www.w3.org/ns/ttml"><body><div>{paragraphs}</div></body></tt>'
            )
    elif reader == "index":
        from vlalign.train.search.index import write_index_shard

        for videos in ({f"v{n}": n for n in range(3)}, {f"v{n}": n for n in range(3, 6)}):
            spans = [np.array([[0.0, 1.0], [1.0, 2.0]])] * len(videos)
            write_index_shard(folder, "{}", videos, spans, [rows[:2]] * len(videos))
    elif reader == "codes":
        from vlalign.train.search.coded_search import CodeFolder
        from vlalign.train.search.index import WindowIndex, open_index_shards, write_index_shard

        seconds = np.arange(12.0)
        spans, vectors = np.stack([seconds, seconds + 1], axis=1), np.random.default_rng(0).normal(size=(12, 8))
        write_index_shard(folder, "{}", {"v0": 0, "v1": 1}, [spans, spans], [vectors, -vectors])
        index = WindowIndex(open_index_shards(folder), "{}", {"v0": 0, "v1": 1})
        CodeFolder(folder).update(index)
    elif reader == "options":
        (folder / "a.json").write_text(PROFILES["s3d"].to_json())
        (folder / "a.csv").write_text("video_id,seconds\nv0,1.5\nv1,20\n")
    elif reader == "settings":
        (folder / "a.yaml").write_text("features: s3d\nbatch-size: 4\n")
        (folder / "b.yml").write_text("features: [s3d, clip]\n")
        if sys.version_info >= (3, 11):
            (folder / "a.toml").write_text('features = "s3d"\n')
    elif reader == "link":
        (folder / "elsewhere.json").write_text('{"url": "s3://bucket/place"}')
    elif reader == "first_pass":
        with open_first_pass_log(folder / "survey.jsonl", {"file": "x"}) as log:
            for number in range(4):
                counter = CorpusCounter()
                counter.add(Caption(video_id=f"v{number}", caption="a", split="train"))
                log.add(FirstPassLine([f"k{number}"], [ChunkCounts(counter, ["a problem"], Counter({"cut": 1}))]))
    elif reader == "vectors":
        lines = [f"w{number} " + " ".join(map(str, row)) for number, row in enumerate(rows)]
        (folder / "a.txt").write_text("\n".join(lines) + "\n")
        binary = b"5 4\n" + b"".join(b"w%d " % number + row.tobytes() + b"\n" for number, row in enumerate(rows))
        (folder / "a.bin").write_bytes(binary)
        (folder / "a.bin.gz").write_bytes(gzip.compress(binary))
        np.savez(folder / "a.npz", words=np.array(["a", "b", "c", "d", "e"]), vectors=rows)
    elif reader == "summary":
        counter = CorpusCounter()
        for number in range(4):
            counter.add(Caption(video_id=f"v{number}", caption="a", split=("train", "test")[number % 2]))
        found = counter.statistics(
            shared_texts={"train": 0, "test": None}, changed={"cut": 1}, left_out=SkippedInputs(count=0)
        )
        (folder / "summary.json").write_text(json.dumps(found.to_json()))
    elif reader == "official":
        (folder / "MSRVTT_data.json").write_text(json.dumps(data_json(VTT_SENTENCES)))
        for name, content in VTT_LISTS.items():
            (folder / name.replace("__", ".")).write_text(content)
    elif reader == "clip":
        save_clip(new_clip(tokenizer := word_tokenizer(["a red circle falls"]), width=8), tokenizer, folder)
    elif reader == "import":
        import pickle

        np.save(folder / "a.npy", rows)
        np.savez(folder / "a.npz", v0=rows, v1=rows[:2])
        with h5py.File(folder / "a.h5", "w") as file:
            file["v0"], file["g/features"] = rows, rows[:3]
        pq.write_table(pa.table({"id": ["v0"] * 5, "embedding": list(rows)}), folder / "a.parquet")
        store = make_store(folder.with_name("store"))
        export_store(store, folder / "ours", "parquet", Problems(quiet=True))
        for protocol in (2, 4):
            (folder / f"a{protocol}.pkl").write_bytes(
                pickle.dumps({"v0": rows, "v1": {"x": rows[:2]}, "v2": [rows[0]]}, protocol=protocol)
            )
    return folder


# One try


def inputs(reader: str, whole: Path, seeds: range, work: Path) -> Iterator[tuple[int, Path, Path]]:
    """(seed, the folder to read, the file in it that is damaged)."""
    files = originals(reader, whole)
    for seed in seeds:
        chance = random.Random(f"{reader} {seed}")
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(whole, work)
        target = work / chance.choice(files).relative_to(whole)
        kind = target.suffix
        if kind == ".h5" and chance.random() < 0.3:
            target.unlink()
            made_up_hdf5(target, chance)
        elif kind in (".json", ".jsonl") and chance.random() < 0.7:
            target.write_bytes(damage_json(target.read_bytes(), chance, lines_of=kind == ".jsonl"))
        elif chance.random() < 0.1:
            bomb(target, chance)
        elif chance.random() < 0.05:
            target.write_bytes(chance.randbytes(chance.randrange(5000)))
        else:
            target.write_bytes(damage(target.read_bytes(), chance))
        yield seed, work, target


def too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def try_reader(reader: str, seeds: range, folder: Path) -> None:
    """Try a reader with a file for each seed."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    whole = make_originals(reader, folder / "whole")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, most))
    work = whole.with_name("work")
    for path in originals(reader, whole):
        READERS[reader](whole, path)
    refused = read = 0
    for seed, place, target in inputs(reader, whole, seeds, work):
        signal.alarm(MOST_SECONDS)
        faulthandler.dump_traceback_later(2 * MOST_SECONDS, exit=True)  # a library that does not return to Python
        print(f"{reader}, seed {seed}", file=sys.stderr)
        DONE.clear()  # what making the files did
        try:
            READERS[reader](place, target)
            read += 1
        except (UserError, OSError):
            refused += 1
        except BaseException:
            signal.alarm(0)
            words = traceback.format_exc().splitlines()
            where = {"reader": reader, "seed": seed, "file": target.name}
            print(json.dumps({**where, "error": words[-1], "where": words[-3].strip()}), flush=True)
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        for what in DONE:
            print(json.dumps({"reader": reader, "seed": seed, "file": target.name, "error": what}), flush=True)
    print(json.dumps({"reader": reader, "read": read, "refused": refused}), flush=True)


def main(first: int, last: int, folder: Path, readers: list[str]) -> None:
    signal.signal(signal.SIGALRM, too_long)
    watch(folder)
    for reader in readers:
        try_reader(reader, range(first, last), folder / reader)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
