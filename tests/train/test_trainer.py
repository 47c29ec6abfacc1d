"""Training runs: stopped and resumed, in parts, by several processes, from another run, and what goes wrong."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.toy import make_toy
from helpers.training import at, check_processes, losses_of, torchrun, trainer
from vlalign.storage import FeatureStore, write_shard
from vlalign.storage.captions import write_part
from vlalign.storage.files import read_json, read_jsonl
from vlalign.storage.layout import DatasetFolder
from vlalign.train.checkpoint import load_run
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.recipes import RECIPES, make_config, usual_recipe
from vlalign.train.run_lock import training_in
from vlalign.train.search.search import searchable_clips

TRAIN_COMMAND = str(Path(sys.executable).with_name("vlalign-train"))
TRAIN = ["--features", "s3d", "--batch-size", "6", "--num-steps", "8", "--validate-every", "3", "--num-negatives", "2"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def whole(toy) -> Path:
    """A run that nothing stopped."""
    assert train_main([*at(toy), *TRAIN, "--run-name", "whole"]) == 0
    return toy.runs / "whole"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("objective", "negatives", "size"),
    [
        ("taco", "cascade", 2),
        pytest.param("taco", "random", 3, marks=SLOW),
        pytest.param("toco", "cascade", 2, marks=SLOW),
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
    done = torchrun(2, "--no-python", TRAIN_COMMAND, *at(toy), *TRAIN, "--run-name", "odd", "--batch-size", "5")
    assert "--batch-size 5: cannot be shared evenly by 2 processes" in done.stderr


@SLOW
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_killed_run_goes_on_with_the_losses_that_it_would_have_had(toy, whole, seed):
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
    clips = searchable_clips(load_run(shuffled.runs / "whole"))
    assert [clip.video_id for clip in clips[-2:]] == ["x0", "x1"]


def test_every_metric_is_in_tensorboard_too(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(whole / "tensorboard"))
    board.Reload()
    for name in ("loss", "sentence", "token", "fusion", "learning_rate", "validation_mean_rank"):
        expected = [(event["step"], event[name]) for event in read_jsonl(whole / "events.jsonl") if name in event]
        assert [(scalar.step, pytest.approx(scalar.value, rel=1e-5)) for scalar in board.Scalars(name)] == expected


def test_an_unfinished_run_of_other_settings_is_refused(toy, tmp_path, capsys):
    made = trainer(toy, toy.runs / "half", num_steps=8, validate_every=3)
    stream = made.inputs_from(0)
    from vlalign.train.checkpoint import save_state

    made.train_step(next(stream))
    stream.close()
    save_state(made.folder, made.state)
    assert train_main([*at(toy), *TRAIN, "--run-name", "half"]) == 2
    other = re.search(r"holds an unfinished run with other settings \((.*?)\)", capsys.readouterr().err)
    assert other is not None and {"recipe", "num_negatives", "batch_size"} <= set(other[1].split(", "))
    (made.folder / "state.safetensors").write_bytes(b"cut short")
    assert train_main([*at(toy), *TRAIN, "--run-name", "half"]) == 2
    said = capsys.readouterr().err
    assert "state.safetensors: not as a training writes it (" in said and "; remove it, and the run begins anew" in said


def test_a_loss_that_is_no_number_is_one_line_and_the_state_is_kept(toy, capsys):
    assert train_main([*at(toy), *TRAIN, "--run-name", "wild", "--learning-rate", "1e20", "--warmup-steps", "0"]) == 2
    assert "wild: the loss is" in (said := capsys.readouterr().err) and "try a lower --learning-rate" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("objective", ["taco", "toco"])
def test_every_stage_is_reported_alone_and_fused(toy, objective, capsys):
    name = f"stages-{objective}"
    assert train_main([*at(toy), *TRAIN, "--objective", objective, "--run-name", name]) == 0
    assert evaluate_main([*at(toy), name]) == 0
    result = read_json(toy.runs / name / "metrics.json")
    stages = {"taco": ["sentence", "token", "fusion"], "toco": ["pooled", "fusion", "fusion_token"]}[objective]
    assert list(result["stages"]) == stages
    shown = capsys.readouterr().out
    assert all(f"\n{stage.replace('_', ' ')} " in shown for stage in stages)
    assert '<table id="stages">' in (toy.runs / name / "report.html").read_text()
    for number, stage in enumerate(stages):  # a stage that alone has weight gives its own metrics
        weights = {"sentence": 0, "token": 0, "fusion": 0}
        option = {"fusion_token": "token"}.get(stage, stage)
        if stage == "pooled":
            continue
        call = [arg for key, weight in (weights | {option: 1}).items() for arg in (f"--{key}-weight", str(weight))]
        assert evaluate_main([*at(toy), name, *call]) == 0
        assert read_json(toy.runs / name / "metrics.json")["metrics"] == result["stages"][stage], number


def test_reranking_looks_at_few_pairs_and_all_of_them_where_k_is_large(toy, whole, capsys):
    call = [*at(toy), "whole", "--split", "train"]
    assert evaluate_main(call) == 0
    everything = read_json(whole / "metrics.json")
    assert evaluate_main([*call, "--rerank", "99"]) == 0
    assert read_json(whole / "metrics.json")["metrics"] == everything["metrics"]
    assert evaluate_main([*call, "--rerank", "1"]) == 0
    one = read_json(whole / "metrics.json")
    early = one["stages"]
    assert one["rerank"] == 1 and "fusion of 1" in capsys.readouterr().out
    # Of one candidate each, the fusion layers can change no order: it is that of the early stages.
    assert evaluate_main([*call, "--fusion-weight", "0"]) == 0
    assert read_json(whole / "metrics.json")["metrics"] == one["metrics"]
    assert early["sentence"] == everything["stages"]["sentence"]
    assert evaluate_main([*call, "--rerank", "0"]) == 2


def test_only_the_fusion_layers_are_trained_without_a_shortlist(toy, capsys):
    assert train_main([*at(toy), *TRAIN, "--losses", "fusion", "--negatives", "random", "--run-name", "late"]) == 0
    assert evaluate_main([*at(toy), "late"]) == 0
    assert list(read_json(toy.runs / "late" / "metrics.json")["stages"]) == ["fusion"]
    assert evaluate_main([*at(toy), "late", "--rerank", "5"]) == 2
    assert "--rerank 5: late was trained without an early loss" in capsys.readouterr().err


def test_a_run_goes_on_from_another_and_is_asked_on_data_that_it_never_saw(toy, whole, capsys):
    other = make_toy(toy.root, num_videos=20, seed=5, name="other")
    assert evaluate_main(["--root", str(toy.root), "whole", "--on", "other"]) == 0
    result = read_json(whole / "on" / "other" / "metrics.json")
    assert (result["dataset"], result["trained_on"], result["num_clips"]) == ("other", "toy", 5)
    assert "trained on toy (zero-shot)" in (whole / "on" / "other" / "report.html").read_text()

    assert train_main([*at(other), *TRAIN, "--init", "whole", "--learning-rate", "1e-12"]) == 0
    [folder] = other.runs.glob("taco-s3d-from-whole-*-learning_rate=1e-12-*-seed0")
    assert evaluate_main([*at(other), folder.name]) == 0
    assert read_json(folder / "metrics.json")["metrics"] == result["metrics"]
    assert read_json(folder / "run.json")["inputs"]["init"]["run"] == "whole"
    assert train_main([*at(other), *TRAIN, "--init", "whole", "--num-video-layers", "2", "--run-name", "x"]) == 2
    assert "its layers are not the new run's, such as video_layers.1." in capsys.readouterr().err
    assert train_main([*at(other), *TRAIN, "--init", "nobody"]) == 2


def test_captions_that_cannot_be_used_are_said_and_left_out(tmp_path, capsys):
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
    assert "captions of video 'nowhere': no features in" in said and "starts after the video's end" in said
    assert evaluate_main(at(dataset)) == 1
    assert read_json(dataset.runs / "run" / "metrics.json")["left_out"] == 2


def test_bfloat16_trains_and_is_evaluated_in_float32(toy):
    assert train_main([*at(toy), *TRAIN, "--precision", "bf16", "--run-name", "half-precision"]) == 0
    full, half = (read_jsonl(toy.runs / name / "events.jsonl") for name in ("whole", "half-precision"))
    assert [e["loss"] for e in half] == pytest.approx([e["loss"] for e in full], rel=0.05)
    assert [e["loss"] for e in half] != [e["loss"] for e in full]


# Recipes


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_whole_configuration(name):
    given = {"dataset": "d", "features": "s3d"} | ({"init": "run"} if name.endswith("-finetune") else {})
    assert make_config(name, given).recipe == name


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("taco", "youcook2", "", ""), "taco-youcook2"),
        (("taco", "youcook2", "retrieval", "run"), "taco-youcook2-finetune"),
        (("taco", "msrvtt", "1k-A", ""), "taco-msrvtt-split1"),
        (("taco", "msrvtt", "1k-A-7k", ""), "taco-msrvtt-split2"),
        (("taco", "msrvtt", "1k-A-7k", "run"), "taco-msrvtt-split2-finetune"),
        (("taco", "activitynet", "", ""), "taco-activitynet"),
        (("taco", "howto100m", "captions", ""), "taco-howto100m"),
        (("toco", "youcook2", "", ""), "toco-youcook2"),
        (("taco", "demo", "", ""), "taco-small"),
        (("toco", "mine", "", "run"), "toco-small"),
        (("ssml", "howto100m", "captions", ""), "ssml-howto100m"),
        (("ssml", "msvd", "", "run"), "ssml-msvd-finetune"),
        (("ncl", "activitynet", "", ""), "ncl-activitynet"),
        (("cmcm", "msrvtt", "1k-A", "run"), "cmcm-msrvtt-finetune"),
        (("mil-nce", "howto100m", "", ""), "mil-nce-small"),
    ],
)
def test_the_usual_recipe_is_the_papers_for_the_data_set(asked, expected):
    assert usual_recipe(*asked) == expected


def test_the_papers_numbers():
    """TACo section 4.3 and ToCo section 4.3, read again."""
    taco = make_config("taco-youcook2", {"dataset": "youcook2"})
    assert (taco.num_steps, taco.batch_size, taco.learning_rate, taco.warmup_steps, taco.objective.num_negatives) == (
        30_000,
        128,
        1e-4,
        5_000,
        8,
    )
    assert (taco.num_video_layers, taco.num_fusion_layers, taco.max_video_tokens, taco.max_text_tokens) == (
        2,
        2,
        48,
        30,
    )
    pretrained = make_config("taco-howto100m", {"dataset": "howto100m"})
    assert (pretrained.num_steps, pretrained.batch_size, pretrained.num_video_layers) == (500_000, 64, 4)
    finetuned = make_config("taco-youcook2-finetune", {"dataset": "youcook2", "init": "run"})
    assert (finetuned.num_steps, finetuned.learning_rate, finetuned.num_video_layers) == (20_000, 2e-5, 4)
    paragraphs = make_config("taco-activitynet", {"dataset": "activitynet"})
    assert (paragraphs.max_video_tokens, paragraphs.max_text_tokens) == (256, 256)
    toco = make_config("toco-youcook2", {"dataset": "youcook2"})
    assert (
        toco.num_steps,
        toco.batch_size,
        toco.warmup_steps,
        toco.objective.num_negatives,
        toco.objective.token_loss_weight,
    ) == (
        100_000,
        64,
        10_000,
        8,
        0.5,
    )
    pretrained = make_config("toco-howto100m", {"dataset": "howto100m"})
    assert (pretrained.num_steps, pretrained.objective.num_negatives) == (1_000_000, 16)


def test_a_recipe_prints_itself_and_a_typo_is_refused(toy, capsys):
    call = [
        *at(toy),
        "--features",
        "s3d",
        "--num-steps",
        "1",
        "--batch-size",
        "4",
        "--run-name",
        "printed",
        "--objective",
        "toco",
    ]
    assert train_main(call) == 0
    said = capsys.readouterr().err
    assert "  tokens_of_interest     noun+verb+adj                  recipe toco-small" in said
    assert "  num_steps              1                              given" in said
    assert train_main([*at(toy), "--recipe", "taco-youcok2"]) == 2
    assert "--recipe taco-youcok2: expected one of taco-small, taco-youcook2" in capsys.readouterr().err
    assert train_main([*at(toy), "--recipe", "taco-small"]) == 2
    assert "--features is missing: the recipe names none" in capsys.readouterr().err
    assert train_main([*at(toy), "--recipe", "taco-youcook2-finetune", "--features", "s3d"]) == 2
    assert "starts from a trained run; pass --init RUN" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train_main([*at(toy), "--features", "s3d", "--num-step", "3"])
    assert "nearest: --num-steps" in capsys.readouterr().err


LOCK = """
import sys, time
from pathlib import Path
from vlalign.train.run_lock import training_in
with training_in(Path(sys.argv[1])):
    print("has it", flush=True)
    time.sleep(600)
"""


def test_a_second_training_in_a_runs_folder_is_refused_and_says_who_has_it(toy, capsys):
    """Both wrote, and each lost half of its events to the other."""
    folder = toy.runs / "two at once"
    other = subprocess.Popen([sys.executable, "-c", LOCK, str(folder)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"has it\n"
        assert train_main([*at(toy), *TRAIN, "--run-name", folder.name]) == 2
        said = (
            f"error: {folder}: process {other.pid} on {socket.gethostname()} trains there; wait until it ends, or pass"
        )
        assert f"{said} another --run-name" in capsys.readouterr().err
    finally:
        other.kill()
        other.wait()
    assert (folder / "train.lock").exists(), "it was killed"
    with training_in(folder):
        assert read_json(folder / "train.lock")["pid"] == os.getpid()
    assert not folder.exists(), "nothing else was in it"


def test_half_written_files_of_a_killed_training_are_removed(toy, capsys):
    folder = toy.runs / "half written"
    left = [
        folder / f".{name}.99-abcdef01.partial"
        for name in ("state.safetensors", "state.safetensors", "model.safetensors", "run.json")
    ]
    others = [folder / "mine.partial", folder / ".metrics.json.99-abcdef01.partial"]
    folder.mkdir()
    for path in (*left, *others):
        path.write_bytes(bytes(1000))
    assert train_main([*at(toy), *TRAIN, "--run-name", folder.name]) == 0
    assert f"{folder}: removed 3 half-written files of a killed training" in capsys.readouterr().err
    assert [path for path in (*left, *others) if path.exists()] == others
    assert not (folder / "train.lock").exists()
