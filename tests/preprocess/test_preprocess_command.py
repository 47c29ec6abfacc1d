"""vlalign-preprocess: what it writes, prints and refuses."""

import contextlib
import io
import json
import shutil
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from helpers.captions import call, caption_file
from helpers.idf import idf_by_word, loop_idf
from vlalign.preprocess.cli import main
from vlalign.storage import VideoRecord, read_captions, read_idf
from vlalign.storage.captions.transcripts import Transcript, TranscriptSegment, TranscriptStore
from vlalign.storage.dataset.folder import DatasetFolder

GOOD = {"video_id": "v1", "caption": "a man cooks", "start_seconds": 1, "end_seconds": 2, "split": "train"}


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """Return (root, data set, exit code, stdout, stderr) of a call on captions with two unusable rows."""
    root = tmp_path_factory.mktemp("mine")
    rows = [
        {"video_id": f"v{n % 5}", "caption": f"{text} {n}", "start_seconds": n // 5, "end_seconds": n // 5 + 1}
        for n, text in enumerate(
            [
                "a small red circle falls!",
                "the man cooks rice",
                "two dogs run in a green park",
                "she quickly opens a door",
            ]
            * 3
        )
    ]
    rows.insert(2, rows[0] | {"caption": ""})
    rows.insert(5, rows[0] | {"end_seconds": "x"})
    path = caption_file(root, rows)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(root, "--dataset", "mine", "--annotations", path)
    return root, DatasetFolder(root, "mine"), code, out.getvalue(), err.getvalue()


def test_a_call_with_unusable_rows_does_the_rest_and_reports_them(mine):
    root, dataset, code, _, err = mine
    assert code == 1
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert [line.split(": ")[1] for line in warnings] == [f"{root / 'captions.csv'}, line {n}" for n in (4, 7)]
    assert err.splitlines()[-1] == f"{dataset.captions}: 12 captions; 2 problems, see above"
    assert len(read_captions(dataset.captions)) == 12


def test_own_captions_with_the_name_of_several_files_name_two_of_them(tmp_path, capsys):
    dataset = DatasetFolder(tmp_path, "mine")
    ids = ("a/v", "b/v", "w", "sound")
    suffixes = {"sound": ".wav"}
    dataset.write_videos([VideoRecord(video_id=x, path=f"/videos/{x}{suffixes.get(x, '.mp4')}") for x in ids])
    rows = [{"video_id": name, "caption": "a man cooks", "split": "train"} for name in ("v.mp4", "w")]
    assert call(tmp_path, "--dataset", "mine", "--annotations", caption_file(tmp_path, rows)) == 1
    told = capsys.readouterr().err
    assert f"'v.mp4': {dataset.videos_file} lists 2 videos with this file name, such as 'a/v' and 'b/v'; " in told
    assert "note: 2 of 3 listed videos have no captions: 'a/v', 'b/v'\n" in told


def test_a_call_that_did_everything_says_what_to_call_next(tmp_path, monkeypatch, capsys):
    path = caption_file(tmp_path, [{"video_id": "v1", "caption": "a man cooks", "split": "train"}])
    monkeypatch.setenv("VLALIGN_ROOT", str(tmp_path / "mine"))
    assert call(tmp_path / "mine", "--dataset", "mine", "--annotations", path) == 0
    assert capsys.readouterr().err.endswith("\nnow: vlalign-extract --dataset mine\n")
    DatasetFolder(tmp_path / "mine", "mine").features("s3d").mkdir(parents=True)
    monkeypatch.delenv("VLALIGN_ROOT")
    assert call(tmp_path / "mine", "--dataset", "mine", "--annotations", path) == 0
    assert capsys.readouterr().err.endswith(f"\nnow: vlalign-train --root {tmp_path / 'mine'} --dataset mine\n")


def test_no_other_files_are_written(mine):
    _, dataset, *_ = mine
    files = [path for path in dataset.path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    written = sorted(str(path.relative_to(dataset.path)) for path in files)
    assert written == [
        "captions/about.json",
        "captions/captions.safetensors",
        "captions/counts/part-00000.parquet",
        "captions/part-00000.parquet",
        "captions/summary.json",
        "idf.parquet",
        "idf.png",
    ]


def test_tables_on_disk_equal_a_plain_loop(mine):
    _, dataset, *_ = mine
    captions = read_captions(dataset.captions)
    assert {c.split for c in captions} == {"train", "validation", "test"}
    assert idf_by_word(read_idf(dataset.idf)) == loop_idf(captions)
    for caption in captions:
        for word, start in zip(caption.words, caption.word_starts, strict=True):
            assert caption.caption[start : start + len(word)] == word


def test_the_summary_equals_a_plain_loop(mine):
    _, dataset, _, out, _ = mine
    counts = {}
    for row in pq.read_table(dataset.captions / "part-00000.parquet").to_pylist():
        of_split = counts.setdefault(
            row["split"],
            {"videos": set(), "clips": set(), "captions": 0, "words": 0, "nouns": 0, "verbs": 0, "adjectives": 0},
        )
        of_split["videos"].add(row["video_id"])
        of_split["clips"].add((row["video_id"], row["start_seconds"], row["end_seconds"]))
        of_split["captions"] += 1
        for tag in row["pos_tags"]:
            of_split["words"] += tag != "PUNCT"
            of_split["nouns"] += tag == "NOUN"
            of_split["verbs"] += tag == "VERB"
            of_split["adjectives"] += tag == "ADJ"
    for of_split in counts.values():
        of_split["videos"], of_split["clips"] = len(of_split["videos"]), len(of_split["clips"])
    names = ("videos", "clips", "captions", "shared_texts", "words", "nouns", "verbs", "adjectives")
    counts = {split: {name: of_split.get(name, 0) for name in names} for split, of_split in counts.items()}
    said = json.loads((dataset.captions / "summary.json").read_text())
    assert said["splits"] == counts
    assert said["left_out"]["count"] == 2 and "line 4" in said["left_out"]["first"][0]
    header, *lines = out.splitlines()
    assert header.split() == ["split", *" ".join(names).replace("_", " ").split()]
    assert {line.split()[0]: [int(n) for n in line.split()[1:]] for line in lines} == {
        s: list(c.values()) for s, c in counts.items()
    }
    assert [line.split()[0] for line in lines] == ["train", "validation", "test"]


AGAIN = """
import sys
from vlalign.preprocess.cli import main
code = main(sys.argv[1:])
print("spaCy was imported" if "spacy" in sys.modules else "no spaCy")
sys.exit(code)
"""


def test_a_second_call_changes_no_file_and_does_not_import_spacy(mine):
    root, dataset, code, out, _ = mine

    def files():
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(dataset.path.rglob("*"))
            if path.is_file()
        }

    before = files()
    argv = ["--root", str(root), "--dataset", "mine", "--annotations", str(root / "captions.csv")]
    again = subprocess.run([sys.executable, "-c", AGAIN, *argv], capture_output=True, text=True, timeout=100)
    assert files() == before
    assert again.returncode == code
    assert again.stdout == out + "no spaCy\n"
    assert f"{dataset.captions}: " in again.stderr


VIDEOS = [VideoRecord(video_id="v1", path="a.mp4"), VideoRecord(video_id="v2", path="b.mp4")]


@pytest.mark.parametrize("protocol", ["text", "extended", None])
def test_captions_whose_transcripts_are_gone_are_named(tmp_path, capsys, protocol):
    dataset = DatasetFolder(tmp_path, "mine", protocol or "")
    dataset.write_videos([VideoRecord(video_id="a", path="a.mp4")])
    folder = dataset.text_in_frames if protocol == "text" else dataset.transcripts
    segment = TranscriptSegment(0.0, 1.0, "an onion is cut", 0.9)
    made = Transcript(video_id="a", source="1-a", model="0" * 16, duration_seconds=1.0, segments=(segment,))
    TranscriptStore(folder).add(made)
    argv = ["--root", str(tmp_path), "--dataset", "mine", *(["--protocol", protocol] if protocol else [])]
    assert main(argv) == 0
    shutil.rmtree(folder)
    capsys.readouterr()
    assert main(argv) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"the captions of an earlier call stay in {dataset.captions}; remove this folder" in line
    shutil.rmtree(dataset.captions)
    assert main(argv) == 2 and "earlier call" not in capsys.readouterr().err


def test_captions_of_unlisted_videos_are_reported_once_per_video(tmp_path, capsys):
    """The videos were extracted before, and the captions use another name for one of them."""
    dataset = DatasetFolder(tmp_path, "mine")
    dataset.write_videos(VIDEOS)
    path = caption_file(
        tmp_path,
        [{"video_id": v, "caption": text} for v in ("v1", "V2.mp4", "v2") for text in ("a man cooks", "a dog runs")],
    )
    assert call(tmp_path, "--dataset", "mine", "--annotations", path) == 1
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "'V2.mp4'" in warnings[0] and str(dataset.videos_file) in warnings[0]
    assert len(read_captions(dataset.captions)) == 6
    assert dataset.read_videos() == VIDEOS


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        pytest.param([], ["--dataset", "demo"], id="no data set"),
        pytest.param(
            ["--dataset", "mine"], ["'mine'", "demo", "--annotations FILE", "video_id, caption"], id="no annotations"
        ),
        pytest.param(
            ["--dataset", "mine", "--annotations", "missing.csv"],
            ["--annotations missing.csv: ", ".csv"],
            id="annotations that are not there",
        ),
        pytest.param(
            ["--dataset", "mine", "--annotations", "{root}"],
            ["{root}: ", ".json, .vtt, .srt"],
            id="a folder without subtitles",
        ),
        pytest.param(["--dataset", "../mine", "--annotations", "{file}"], ["'../mine'"], id="a path as data set"),
        pytest.param(
            ["--dataset", "demo", "--annotations", "{file}"],
            ["--annotations {file}: "],
            id="annotations of the demo",
        ),
        pytest.param(["--dataset", "mine", "--annotations", "{bad}"], ["error: mine: "], id="no good row"),
        pytest.param(
            ["--dataset", "demo", "--spacy-model", "no_such"],
            ["'no_such'", "-m spacy download no_such"],
            id="no such spaCy model",
        ),
    ],
)
def test_mistakes_in_options(tmp_path, capsys, argv, named):
    places = {"root": tmp_path, "file": caption_file(tmp_path, [GOOD]), "bad": tmp_path / "bad.jsonl"}
    places["bad"].write_text('{"video_id": "v", "caption": ""}\n')
    before = sorted(tmp_path.rglob("*"))
    assert call(tmp_path, *(word.format(**places) for word in argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [*warnings, error] = err.splitlines()
    assert error.startswith("vlalign-preprocess: error: "), error
    assert all(each.format(**places) in error for each in named), error
    assert len(warnings) == ("{bad}" in argv)
    assert sorted(tmp_path.rglob("*")) == before
