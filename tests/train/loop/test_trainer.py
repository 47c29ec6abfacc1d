"""Training runs: stopped and resumed, by several processes, from another run, and what goes wrong."""

import random
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import pytest
import torch
from helpers.fake_cuda import pretended
from helpers.toy import make_toy
from helpers.training import (
    PAIR_CASES,
    TRAIN,
    TRAIN_COMMAND,
    TWO_STEPS,
    at,
    check_processes,
    losses_of,
    options,
    torchrun,
    trainer,
)
from vlalign.storage import FeatureStore, read_idf, write_idf, write_shard
from vlalign.storage.captions.files import write_part
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.loop.processes import devices_sharing
from vlalign.train.runs.load import open_run
from vlalign.train.search.run_encoder import RunEncoder

pytestmark = pytest.mark.portable

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("objective", "negatives", "size"),
    [
        ("taco", "cascade", 2),
        pytest.param("taco", "random", 3, marks=SLOW),
        pytest.param("toco", "cascade", 2, marks=SLOW),
        pytest.param("toco-mlm", "cascade", 2, marks=SLOW),
    ],
)
def test_several_processes_have_the_loss_and_gradient_of_one(toy, tmp_path, objective, negatives, size):
    check_processes({objective: (toy, {"objective": objective, "negatives": negatives})}, tmp_path, size)


@pytest.mark.slow
def test_the_command_runs_under_torchrun_and_makes_one_run(toy, capsys):
    done = torchrun(2, "--no-python", TRAIN_COMMAND, *at(toy), *TRAIN, "--run-name", "two")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("trained") == 1
    assert [event["step"] for event in read_jsonl(toy.runs / "two" / "events.jsonl")] == list(range(1, 9))
    assert evaluate_main([*at(toy), "two"]) == 0
    assert train_main([*at(toy), *TRAIN, "--run-name", "devices", "--device", "cpu,cpu"]) == 0
    assert losses_of(toy.runs / "devices") == losses_of(toy.runs / "two")
    done = torchrun(2, "--no-python", TRAIN_COMMAND, *at(toy), *TRAIN, "--run-name", "odd", "--batch-size", "5")
    assert re.search(r"--batch-size 5: .*\b2\b", done.stderr)


def test_two_devices_train_one_model_with_the_losses_of_one(toy, capsys):
    """Two processes on the CPU stand in for two GPUs. The objective's model has no dropout."""
    settings = PAIR_CASES["mil-nce"] | {"features": "s3d", "batch_size": 6, "num_steps": 4, "validate_every": 2}
    for name, device in (("one-device", "cpu"), ("two-devices", "cpu,cpu")):
        assert train_main([*at(toy), *options(settings), "--run-name", name, "--device", device]) == 0
    printed = capsys.readouterr()
    one, two = toy.runs / "one-device", toy.runs / "two-devices"
    assert printed.out.count(f"vlalign-evaluate {two}\n") == 1 and "Traceback" not in printed.err
    assert len(re.findall(rf"^{re.escape(str(one))}: .* cpu$", printed.err, re.MULTILINE)) == 1
    assert len(re.findall(rf"^{re.escape(str(two))}: .* 2 .*\bcpu\b", printed.err, re.MULTILINE)) == 1
    expected, losses = ([event["loss"] for event in read_jsonl(run / "events.jsonl")] for run in (one, two))
    assert len(losses) == 4 and losses == pytest.approx(expected, rel=1e-5)
    assert [read_json(run / "run.json")["result"]["num_processes"] for run in (one, two)] == [1, 2]


@pytest.mark.slow
def test_a_batch_that_two_devices_cannot_share_is_one_line(toy, capsys):
    call = [*at(toy), *TRAIN, "--batch-size", "5", "--device"]
    assert train_main([*call, "cpu,cpu", "--run-name", "odd"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"vlalign-train: error: --batch-size 5: .*\b2\b", last), last
    assert train_main([*call, "cpu,cuda", "--run-name", "odd"]) == 2
    assert re.search(r"--device cpu,cuda: .*\bcuda\b.*\bcpu\b", capsys.readouterr().err)


@pytest.mark.parametrize(("batch_size", "expected"), [(96, 3), (128, 2), (64, 2), (7, 1)])
def test_as_many_gpus_train_as_share_a_batch_evenly(monkeypatch, batch_size, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices_sharing("auto", batch_size) == [f"cuda:{number}" for number in range(expected)]


@SLOW
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_killed_run_resumes_with_identical_losses(toy, whole, seed):
    """Killed twice, at any moment after it began to train."""
    name, rng = f"killed{seed}", random.Random(seed)
    command = [TRAIN_COMMAND, *at(toy), *TRAIN, "--run-name", name]
    state, killed = toy.runs / name / "state.safetensors", 0
    for _ in range(2):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while process.poll() is None and not state.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.4))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert losses_of(toy.runs / name) == losses_of(whole)
    for file in ("model.safetensors", "last.safetensors"):
        assert (toy.runs / name / file).read_bytes() == (whole / file).read_bytes()
    assert not state.exists()


def test_the_same_seed_gives_the_same_run_and_another_seed_another(toy, whole):
    assert train_main([*at(toy), *TRAIN, "--run-name", "again"]) == 0
    assert train_main([*at(toy), *TRAIN, "--run-name", "other", "--seed", "1"]) == 0
    assert losses_of(toy.runs / "again") == losses_of(whole) != losses_of(toy.runs / "other")
    assert read_json(whole / "run.json")["result"]["num_threads"] == torch.get_num_threads()


def test_the_order_of_videos_in_shards_changes_neither_a_model_nor_what_is_searched(toy, whole, tmp_path):
    """It is the order in which their extraction ended. Two more videos have no caption."""
    store = FeatureStore(toy.features("s3d"))
    shuffled = DatasetFolder(tmp_path, "toy")
    shutil.copytree(toy.captions, shuffled.captions)
    shutil.copy(toy.idf, shuffled.idf)
    uncaptioned = [replace(store.get("v000"), video_id=video_id) for video_id in ("x1", "x0")]
    videos = [store.get(video_id) for video_id in store.video_ids()]
    for part in (videos[:5], videos[:4:-1]):
        write_shard(shuffled.features("s3d"), store.profile, store.weights, part, made_with={})
    assert train_main([*at(shuffled), *TRAIN, "--run-name", "whole"]) == 0
    for file in ("model.safetensors", "last.safetensors"):
        assert (shuffled.runs / "whole" / file).read_bytes() == (whole / file).read_bytes()
    write_shard(shuffled.features("s3d"), store.profile, store.weights, uncaptioned, made_with={})
    video_ids = RunEncoder(open_run(shuffled.runs / "whole")).video_ids()
    assert video_ids == [*sorted(store.video_ids()), "x0", "x1"]


def test_every_metric_is_in_tensorboard_too(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(whole / "tensorboard"))
    board.Reload()
    for name in ("loss", "sentence", "token", "fusion", "learning_rate", "validation_mean_rank"):
        expected = [(event["step"], event[name]) for event in read_jsonl(whole / "events.jsonl") if name in event]
        assert [(scalar.step, pytest.approx(scalar.value, rel=1e-5)) for scalar in board.Scalars(name)] == expected


def test_an_unfinished_run_of_other_settings_is_refused(toy, tmp_path, capsys):
    made = trainer(toy, toy.runs / "half", num_steps=8, validate_every=3)
    stream = iter(made.prefetched_inputs(0))
    from vlalign.train.runs.checkpoint import save_state

    made.train_step(next(stream))
    stream.close()
    save_state(made.folder, made.state)
    assert train_main([*at(toy), *TRAIN, "--run-name", "half"]) == 2
    other = re.search(rf"{re.escape(str(made.folder))}: .*?\((.*?)\)", capsys.readouterr().err.splitlines()[-1])
    assert other is not None and {"recipe", "num_negatives", "batch_size"} <= set(other[1].split(", "))
    (made.folder / "state.safetensors").write_bytes(b"cut short")
    assert train_main([*at(toy), *TRAIN, "--run-name", "half"]) == 2
    assert str(made.folder / "state.safetensors") in capsys.readouterr().err.splitlines()[-1]


def test_a_non_finite_loss_is_one_line(toy, capsys):
    assert train_main([*at(toy), *TRAIN, "--run-name", "wild", "--learning-rate", "1e20", "--warmup-steps", "0"]) == 2
    said = capsys.readouterr().err
    line = rf"{re.escape(str(toy.runs / 'wild'))}: .*\b(nan|inf)\b.* \d+ .*--learning-rate .*--run-name\b"
    assert re.search(line, said) and "Traceback" not in said, said


def test_a_loss_that_is_not_finite_has_its_own_step_though_a_gpus_losses_are_read_later(toy, capsys):
    call = [*at(toy), *TRAIN, "--learning-rate", "1e20", "--warmup-steps", "0", "--validate-every", "100"]
    found = []
    for device in ("cpu", "cuda"):
        capsys.readouterr()
        with pretended():
            assert train_main([*call, "--run-name", f"wild-{device}", "--device", device]) == 2
        found.append(re.search(rf"wild-{device}: .*\b(?:nan|inf)\b.*? (\d+) \(", capsys.readouterr().err))
        kept = {path.name for path in (toy.runs / f"wild-{device}").iterdir()}
        assert not kept & {"model.safetensors", "last.safetensors", "state.safetensors", "run.json"}
    assert found[0][1] == found[1][1] != "8", "8 is the step after which the host reads"


def test_a_step_that_fails_after_a_loss_that_is_not_finite_says_that_loss(toy, tmp_path):
    with pretended():
        made = trainer(toy, tmp_path / "run", "cuda", objective="taco", num_steps=8)
        torch.nn.init.constant_(made.model.project.weight, float("nan"))
        stream = iter(made.prefetched_inputs(0))
        assert made.train_step(next(stream)) == []
        inputs = next(stream)
        stream.close()
        with pytest.raises(UserError, match=rf"^{re.escape(str(made.folder))}: .*\bnan\b.* 1 "):
            made.train_step(replace(inputs, rows=inputs.rows[..., :2]))


def test_a_run_starts_from_another_and_is_evaluated_zero_shot(toy, whole, capsys):
    other = make_toy(toy.root, num_videos=20, seed=5, name="other")
    assert evaluate_main(["--root", str(toy.root), "whole", "--on", "other"]) == 0
    result = read_json(whole / "on" / "other" / "metrics.json")
    assert (result["dataset"], result["trained_on"], result["num_clips"]) == ("other", "toy", 5)
    assert "trained on toy (zero-shot)" in (whole / "on" / "other" / "report.html").read_text()

    assert train_main([*at(other), *TRAIN, "--init", "whole", "--learning-rate", "1e-12"]) == 0
    assert "is not used" not in capsys.readouterr().err
    [folder] = other.runs.glob("taco-s3d-from-whole-*-learning_rate=1e-12-*-seed0")
    assert evaluate_main([*at(other), folder.name]) == 0
    assert read_json(folder / "metrics.json")["stages"] == result["stages"]
    assert read_json(folder / "run.json")["inputs"]["init"]["run"] == "whole"
    assert train_main([*at(other), *TRAIN, "--init", "whole", "--num-video-layers", "2", "--run-name", "x"]) == 2
    assert re.search(rf"--init {re.escape(str(whole))}: .*\bvideo_layers\.1\.", capsys.readouterr().err)
    assert train_main([*at(other), *TRAIN, "--init", "nobody"]) == 2


def test_with_an_idf_table_of_an_earlier_version_words_are_counted_by_tag(tmp_path, capsys):
    dataset = make_toy(tmp_path)
    old = [replace(entry, token_count=None, token_idf=None) for entry in read_idf(dataset.idf)]
    for entries, counted in ((old, "tag"), (read_idf(dataset.idf), "token")):
        write_idf(dataset.idf, entries)
        assert train_main([*at(dataset), *TWO_STEPS, "--run-name", counted]) == 0
        notes = [line for line in capsys.readouterr().err.splitlines() if str(dataset.idf) in line]
        assert len(notes) == (counted == "tag") and all("vlalign-preprocess" in note for note in notes)
        assert read_json(dataset.runs / counted / "run.json")["config"]["idf"] == counted


def test_unusable_captions_are_reported_and_left_out(tmp_path, capsys):
    dataset = make_toy(tmp_path)
    from vlalign.storage import Caption, read_captions

    captions = list(read_captions(dataset.captions))
    captions += [
        Caption(video_id="nowhere", caption="cut", split="train"),
        Caption(video_id="v000", caption="the and", split="train"),
    ]
    captions.append(Caption(video_id="v001", start_seconds=900.0, end_seconds=910.0, caption="fry", split="test"))
    write_part(dataset.captions, 0, captions, {})
    assert train_main([*at(dataset), *TRAIN, "--run-name", "run"]) == 1
    said = capsys.readouterr().err
    assert re.search(rf"'nowhere': .*{re.escape(str(dataset.features('s3d')))}", said)
    [(_, end)] = FeatureStore(dataset.features("s3d")).spans(["v001"])
    assert re.search(rf"\bv001\S*900\.0\S*910\.0\S*: .*\({end:.1f} s\)", said), said
    assert evaluate_main(at(dataset)) == 1
    assert read_json(dataset.runs / "run" / "metrics.json")["left_out"] == 2


@pytest.mark.slow
def test_bfloat16_trains_and_is_evaluated_in_float32(toy, whole):
    assert train_main([*at(toy), *TRAIN, "--precision", "bf16", "--run-name", "half-precision"]) == 0
    full, half = (read_jsonl(run / "events.jsonl") for run in (whole, toy.runs / "half-precision"))
    assert [e["loss"] for e in half] == pytest.approx([e["loss"] for e in full], rel=0.05)
    assert [e["loss"] for e in half] != [e["loss"] for e in full]


@pytest.mark.parametrize("name", ["a/b", "..", "../runs/a"])
def test_a_path_is_no_name_of_a_run(toy, name, capsys):
    assert train_main([*at(toy), *TRAIN, "--run-name", name]) == 2
    assert re.search(rf"--run-name {re.escape(name)}: .*\bnot a path\b", capsys.readouterr().err)
