"""A run that is given away: its folder alone gives the scores that it gave in its data set."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from helpers.toy import make_toy
from helpers.training import GATED
from vlalign.storage import Caption, FeatureStore, UserError, read_captions
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import EvaluationSettings, evaluate, export_run, load_run, open_search, train
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.data.clips import Clip
from vlalign.train.recipes.train_config import TrainConfig
from vlalign.train.runs.load import open_run
from vlalign.train.scoring.scorer import stage_scores
from vlalign.train.settings import FeatureRows

SHORT = {"features": "s3d", "batch_size": 4, "num_steps": 2, "validate_every": 1}
CASES = {
    "words": {"objective": "words", "encoder": "words"},
    "taco": {"objective": "taco", "num_negatives": 2},
    "mil-nce": {"objective": "mil-nce", **GATED},
    "ncl": {"objective": "ncl", "normalized_loss": True, "query_queue": 20, "temperature": 0.1},
    "ssb": {"objective": "hard-triplet", "encoder": "ssb"},
}
IN_A_NEW_PROCESS = """
import sys
import numpy as np
from vlalign.storage import read_captions, FeatureStore
from vlalign.train import load_run
folder, videos = sys.argv[1:3]
made = np.load(videos, allow_pickle=False)
texts = made["texts"].tolist()
rows = [{"s3d": made[f"rows{number}"]} for number in range(int(made["count"]))]
run = load_run(folder, device="cpu")
np.savez(sys.argv[3], texts=run.encode_text(texts), videos=run.encode_video(rows), scores=run.similarity(texts, rows))
"""


def trained_and_evaluated(root: Path, case: str) -> tuple[DatasetFolder, Path]:
    toy = make_toy(root)
    run = train(toy.path, run_name="mine", device="cpu", settings=SHORT | CASES[case])
    evaluate(run.folder, settings=EvaluationSettings(device="cpu"))
    return toy, run.folder


@pytest.fixture(scope="module", params=CASES)
def each(request, tmp_path_factory):
    """A data set with a run of each kind, evaluated."""
    return trained_and_evaluated(tmp_path_factory.mktemp("here") / "root", request.param)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data set with a run, evaluated."""
    return trained_and_evaluated(tmp_path_factory.mktemp("one") / "root", "taco")


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def of_test(toy):
    """Return the captions of the test split and the rows of their videos."""
    captions = [caption for caption in read_captions(toy.captions) if caption.split == "test"]
    store = FeatureStore(toy.features("s3d"))
    return captions, [store.get(caption.video_id).features for caption in captions]


def test_a_new_process_without_the_data_set_has_the_same_scores(each, tmp_path):
    toy, run = each
    captions, rows = of_test(toy)
    texts = [caption.caption for caption in captions]
    here = load_run(run, device="cpu")
    videos = [{"s3d": of_video} for of_video in rows]
    expected = here.encode_text(texts), here.encode_video(videos), here.similarity(texts, videos)
    opened = open_run(run, device_name="cpu")
    search = open_search(toy.path, run=run, device="cpu")
    one = search.encoder.encode_text(texts[0])

    folder = tmp_path / "elsewhere" / "given"
    folder.parent.mkdir()
    copied = tmp_path / "copied"  # the data set is deleted below, and other cases of the run still need it
    shutil.copytree(toy.root, copied)
    export_run(copied / "toy" / "runs" / "mine", folder)
    shutil.rmtree(copied)
    np.savez(
        tmp_path / "asked.npz", texts=np.array(texts), count=len(rows), **{f"rows{n}": r for n, r in enumerate(rows)}
    )
    subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS, folder, tmp_path / "asked.npz", tmp_path / "answer.npz"],
        check=True,
        cwd=tmp_path / "elsewhere",
    )
    with np.load(tmp_path / "answer.npz") as answer:
        for name, values in zip(("texts", "videos", "scores"), expected, strict=True):
            assert answer[name].dtype == np.float32 and np.array_equal(answer[name], values), name
        assert np.array_equal(load_run(folder, device="cpu").encode_text(texts[:1])[0], one)
        # evaluation: the same function over the store and the tagged captions
        clips = [clip_of(caption) for caption in captions]
        scores = stage_scores(opened.scorer, captions, clips).fused(opened.score_weights).by_caption
        assert np.array_equal(load_run(folder, device="cpu").similarity(captions, videos), scores)


def clip_of(caption: Caption) -> Clip:
    return Clip(caption.video_id, caption.start_seconds, caption.end_seconds)


def test_an_exported_run_evaluates_and_searches_as_the_run_did(each, tmp_path, capsys):
    toy, run = each
    theirs = make_toy(tmp_path / "theirs", name="theirs")
    theirs.features("s3d").rename(theirs.features("s3d_of_them"))  # found by its profile and weights
    folder = export_run(run, tmp_path / "given")
    before = tree(folder)
    metrics = json.loads((run / "metrics.json").read_text())["metrics"]
    call = ["--root", str(theirs.root), "--device", "cpu", str(folder)]
    assert evaluate_main(call) == 0
    results = theirs.path / "evaluations" / "given"
    assert json.loads((results / "metrics.json").read_text())["metrics"] == metrics
    assert "s3d_of_them has the features s3d" in capsys.readouterr().err
    assert search_main([*call, "cut the onion"]) == 0 and "exported run given" in capsys.readouterr().out
    expected = [(m.video_id, m.score) for m in open_search(toy.path, run=run, device="cpu")("cut the onion")]
    found = open_search(theirs.path, run=folder, device="cpu")("cut the onion")
    assert [(moment.video_id, moment.score) for moment in found] == expected
    assert tree(folder) == before, "nothing is written into it"


def test_the_folder_has_no_captions_and_no_paths(trained, tmp_path):
    toy, run = trained
    folder = export_run(run, tmp_path / "given")
    captions = [caption.caption.encode() for caption in read_captions(toy.captions) if len(caption.words) > 3]
    for path in filter(Path.is_file, folder.rglob("*")):
        content = path.read_bytes()
        assert str(toy.root).encode() not in content and str(tmp_path).encode() not in content, path
        assert not any(caption in content for caption in captions), path
    names = {path.name for path in folder.iterdir()}
    assert {"README.md", "run.json", "model.safetensors", "idf.parquet", "metrics.json"} <= names
    assert not names & {"queries.jsonl", "report.html", "last.safetensors", "state.safetensors"}


def test_the_card_says_what_a_stranger_needs(trained, tmp_path):
    _, run = trained
    folder = export_run(run, tmp_path / "given")
    _, head, text = (folder / "README.md").read_text().split("---\n", 2)
    front, metrics = yaml.safe_load(head), json.loads((run / "metrics.json").read_text())
    [result] = front["model-index"][0]["results"]
    assert front["license"] == "other" and front["library_name"] == "vlalign"
    values = {each["name"]: each["value"] for each in result["metrics"]}
    assert values["R@1"] == pytest.approx(metrics["metrics"]["text_to_video"]["R@1"], abs=1e-4)
    about = json.loads((folder / "run.json").read_text())
    [facts] = about["inputs"]["features"]
    assert "12 captions of 12 videos" in text
    for needed in (facts["profile_hash"], facts["weights_sha256"], metrics["split_checksum"], "load_run(", "Licence"):
        assert needed in text
    assert all(note in text for note in metrics["not_comparable"])


def test_a_store_with_other_weights_does_not_fit(trained, tmp_path):
    _, run = trained
    folder = export_run(run, tmp_path / "given")
    about = json.loads((folder / "run.json").read_text())
    about["inputs"]["features"][0]["weights_sha256"] = "1" * 64
    (folder / "run.json").write_text(json.dumps(about))
    theirs = make_toy(tmp_path / "theirs", name="theirs")
    with pytest.raises(UserError) as raised:
        evaluate(folder, dataset=theirs.path)
    for named in ("b6a5d85a047bc82e", "1" * 64, str(theirs.path / "features"), "s3d (profile"):
        assert named in str(raised.value)


def test_where_a_run_is_not_exported_to(trained, tmp_path):
    _, run = trained
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    for folder in ("full", "link", "full/letter.txt"):
        with pytest.raises(UserError, match="already exists"):
            export_run(run, tmp_path / folder)
    given = export_run(run, tmp_path / "given")
    with pytest.raises(UserError, match="an exported run already"):
        export_run(given, tmp_path / "again")
    with pytest.raises(SettingError) as raised:
        open_search(run=given)
    assert raised.value.setting == "dataset"


ROWS = np.ones((3, 1024), dtype=np.float32)


@pytest.mark.parametrize(
    ("videos", "named"),
    [
        ([{}], "s3d"),
        ([{"s3d": ROWS, "i3d": ROWS}], "i3d"),
        ([{"s3d": ROWS[:, :7]}], "7"),
        ([{"s3d": ROWS[:0]}], "0"),
        ([{"s3d": ROWS}, {"s3d": ROWS * np.nan}], "video 1"),
        ([{"s3d": [["a"]]}], "video 0"),
        ({"s3d": ROWS}, "single"),
    ],
)
def test_rows_that_cannot_be_used_are_one_line(trained, videos, named):
    with pytest.raises(UserError, match=named):
        load_run(trained[1], device="cpu").encode_video(videos)


def test_the_command(trained, tmp_path, capsys):
    toy, run = trained
    call = ["--root", str(toy.root)]
    assert runs_main(["export", *call, "mine", str(tmp_path / "given")]) == 0
    assert load_run(tmp_path / "given").config == load_run(run).config
    assert runs_main([*call, "export", "mine"]) == 2
    assert runs_main([*call, "export", "nothing", str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists() and "Traceback" not in capsys.readouterr().err


OWN_ENCODER = Path(__file__).parents[3] / "docs" / "examples" / "own_video_aggregator.py"
WITH_AN_OWN_ENCODER = """
import sys
from pathlib import Path
import numpy as np
from vlalign.train import evaluate, export_run, load_run, train
dataset, folder, answer, module = Path(sys.argv[1]), *sys.argv[2:]
settings = {"features": "s3d", "batch_size": 4, "num_steps": 2, "validate_every": 1}
run = train(dataset, device="cpu", settings=settings | {"encoder": f"{module}:AttentionPool"}).folder
export_run(run, folder)
rows = np.random.default_rng(0).normal(size=(3, 1024)).astype(np.float32)
np.savez(answer, rows=rows, scores=load_run(run, device="cpu").similarity(["cut the onion"], [{"s3d": rows}]))
"""
LOADED_WITH_ITS_MODULE = """
import logging, sys
import numpy as np
from vlalign.storage import UserError
from vlalign.train import load_run
logging.basicConfig(level=logging.INFO)
folder, answer, module = sys.argv[1:]
try:
    load_run(folder, device="cpu")
except UserError as error:
    print(error)
assert module not in sys.modules
with np.load(answer) as made:
    scores = load_run(folder, device="cpu", trust=[module]).similarity(["cut the onion"], [{"s3d": made["rows"]}])
    assert np.array_equal(scores, made["scores"])
"""


def test_a_run_with_an_own_encoder_travels_without_its_module(tmp_path):
    """Trained, exported and its data set deleted; loaded by somebody who has the module and trusts it."""
    module, here, there = "own_video_aggregator", tmp_path / "here", tmp_path / "there"
    toy, folder, answer = make_toy(here / "root"), tmp_path / "given", tmp_path / "answer.npz"
    there.mkdir()
    shutil.copy(OWN_ENCODER, here)

    def python(program, cwd, *arguments):
        call = [sys.executable, "-c", program, *map(str, arguments), module]
        return subprocess.run(call, check=False, cwd=cwd, capture_output=True, text=True)

    done = python(WITH_AN_OWN_ENCODER, here, toy.path, folder, answer)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(here)
    sha256 = hashlib.sha256(OWN_ENCODER.read_bytes()).hexdigest()
    facts = {"name": f"{module}:AttentionPool", "module": module, "sha256": sha256}
    assert json.loads((folder / "run.json").read_text())["inputs"]["plugins"] == {"encoder": facts}
    card = (folder / "README.md").read_text()
    assert sha256 in card and f'trust=["{module}"]' in card and f"--trust {module}" in card
    assert not [*folder.rglob("*.py")]

    missing = python(LOADED_WITH_ITS_MODULE, there, folder, answer)
    [refused, *_] = missing.stdout.splitlines()
    assert module in refused and f"--trust {module}" in refused and str(folder / "run.json") in refused
    assert missing.returncode == 1 and module in missing.stderr.splitlines()[-1]
    shutil.copy(OWN_ENCODER, there)
    loaded = python(LOADED_WITH_ITS_MODULE, there, folder, answer)
    assert loaded.returncode == 0 and loaded.stdout.splitlines() == [refused], loaded.stderr
    (there / f"{module}.py").write_text(OWN_ENCODER.read_text() + "# edited\n")
    assert f"{module} is not the version" in python(LOADED_WITH_ITS_MODULE, there, folder, answer).stderr


def test_a_run_that_reads_a_second_store_is_not_exported(trained, tmp_path, monkeypatch):
    toy, run = trained
    shutil.copytree(toy.features("s3d"), toy.features("sound"))
    about = json.loads((run / "run.json").read_text())
    copied = toy.runs / "heard"
    shutil.copytree(run, copied)
    facts = about["inputs"]["features"][0] | {"features": "sound"}
    (copied / "run.json").write_text(json.dumps(about | {"inputs": about["inputs"] | {"extra": [facts]}}))
    monkeypatch.setattr(TrainConfig, "extra", property(lambda config: {"heard": FeatureRows("sound", max_rows=4)}))
    with pytest.raises(UserError, match=r"heard: .*rows of sound"):
        export_run(copied, tmp_path / "given")
    assert not (tmp_path / "given").exists()
    with pytest.raises(UserError, match="heard"):
        load_run(copied, device="cpu").encode_text(["cut the onion"])


def test_a_damaged_idf_table_is_one_line(trained, tmp_path):
    folder = export_run(trained[1], tmp_path / "given")
    path = folder / "idf.parquet"
    table = pq.read_table(path)
    words = pa.array([[word] for word in table["word"].to_pylist()])
    for column, values in (("word", words), ("document_count", pa.nulls(len(table), pa.int64()))):
        at = table.schema.get_field_index(column)
        pq.write_table(table.set_column(at, column, values), path)
        with pytest.raises(UserError) as raised:
            load_run(folder, device="cpu")
        assert str(path) in str(raised.value)


HOSTILE = {
    "not an object": lambda exported: [],
    "no profile": lambda exported: {"profiles": []},
    "another profile": lambda exported: {"profiles": [exported["profiles"][0] | {"fps": 3}]},
    "a huge width": lambda exported: {"profiles": [exported["profiles"][0] | {"dimension": 1 << 60}]},
    "a text for a profile": lambda exported: {"profiles": ["/etc/passwd"]},
    "deep": lambda exported: json.loads("[" * 900 + "]" * 900),
    "recordings": lambda exported: exported | {"recordings": {"name": 3}},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_run_json_is_one_line(trained, tmp_path, kind):
    folder = export_run(trained[1], tmp_path / "given")
    path = folder / "run.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"exported": HOSTILE[kind](about["exported"])}))
    with pytest.raises(UserError) as raised:
        load_run(folder)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["model.safetensors", "idf.parquet", "text_encoder", "metrics.json", "README.md"])
def test_a_link_in_an_exported_folder_is_refused(trained, tmp_path, name):
    folder = export_run(trained[1], tmp_path / "given")
    moved = (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(moved)
    with pytest.raises(UserError) as raised:
        load_run(folder)
    assert str(folder / name) in str(raised.value)


@pytest.mark.parametrize("features", ["../../other/features/s3d", "ABSOLUTE", "..", "."])
def test_names_of_features_open_no_file_elsewhere(trained, tmp_path, features, monkeypatch):
    toy, run = trained
    folder, other = export_run(run, tmp_path / "given"), make_toy(tmp_path / "their root", name="other")
    about = json.loads((folder / "run.json").read_text())
    about["config"]["features"] = features.replace("ABSOLUTE", str(other.features("s3d")))
    (folder / "run.json").write_text(json.dumps(about))
    opened = []
    monkeypatch.setattr("vlalign.train.runs.run_json.open_features", lambda *of: opened.append(of))
    with pytest.raises(UserError):
        evaluate(folder, dataset=toy.path)
    assert opened == []
