"""Training with answers and segment labels: by two processes, resumed, and from another objective's run."""

import re
import shutil

import pytest
from helpers.labelled import make_questions, make_segments
from helpers.training import EIGHT_STEPS, TASK_CASES, at, check_processes, check_stopped_run
from vlalign.storage import Caption
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> DatasetFolder:
    return make_questions(tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="module")
def segmented(tmp_path_factory) -> DatasetFolder:
    return make_segments(tmp_path_factory.mktemp("segmented"))


@pytest.mark.slow
def test_two_processes_have_the_loss_and_the_gradient_of_one(asked, segmented, tmp_path):
    datasets = {"asked": asked, "segmented": segmented}
    cases = {case: (datasets[case], {"features": "resnet152", **TASK_CASES[case]}) for case in TASK_CASES}
    check_processes(cases, tmp_path, 2)


@pytest.mark.parametrize("case", ["asked", pytest.param("segmented", marks=pytest.mark.slow)])
def test_a_stopped_run_goes_on_and_another_objectives_model_is_gone_on_from(case, request, capsys):
    dataset = request.getfixturevalue(case)
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in TASK_CASES[case].items()]
    call = [
        *at(dataset),
        "--features",
        "resnet152",
        *EIGHT_STEPS,
        *settings,
    ]
    check_stopped_run(dataset, call, case)

    before = (
        ["--objective", "ncl", "--encoder", "gated", "--embedding-size", "16"]
        if case == "asked"
        else ["--objective", "taco", "--num-negatives", "2"]
    )
    pretrained = [
        *at(dataset),
        "--features",
        "resnet152",
        "--num-steps",
        "2",
        "--batch-size",
        "4",
        *before,
        "--run-name",
        f"{case}-before",
    ]
    assert train_main(pretrained) == 0
    recipe = [
        "--recipe",
        "vqa-small" if case == "asked" else "segmentation-small",
        "--init",
        f"{dataset.runs / case}-before",
    ]
    assert train_main([*call, *recipe, "--run-name", f"{case}-after"]) == 0, capsys.readouterr().err
    assert read_json(dataset.runs / f"{case}-after" / "run.json")["inputs"]["init"]["run"] == f"{case}-before"


def test_a_data_set_that_has_nothing_of_the_kind_is_one_line(asked, segmented, tmp_path, capsys):
    few = ["--num-steps", "2", "--batch-size", "4", "--features", "resnet152"]
    assert train_main([*at(asked), *few, "--objective", "segmentation"]) == 2
    assert re.search(rf"{re.escape(str(asked.captions))}: .*\bsegmentation\b.*\bcoin\b", capsys.readouterr().err)
    assert train_main([*at(segmented), *few, "--objective", "vqa", "--encoder", "gated"]) == 2
    assert re.search(rf"{re.escape(str(segmented.captions))}: .*\bmsvd_qa\b", capsys.readouterr().err)
    assert train_main([*at(asked), *few, "--objective", "vqa", "--pair-weights", "density"]) == 2
    assert re.search(r"--pair-weights density: .*\bvqa\b.*\bnone$", capsys.readouterr().err.strip())
    assert train_main([*at(segmented), *few, "--run-name", "short"]) == 0
    shutil.copytree(segmented.path, tmp_path / "other")
    other = DatasetFolder(tmp_path, "other")
    shutil.rmtree(other.captions)
    strange = Caption(
        video_id="v03", caption="wash the rice", split="test", start_seconds=1.0, end_seconds=3.0, step=99
    )
    write_part(other.captions, 0, [strange], {})
    write_captions_about(other.captions, {"protocol": "", "task": "segmentation"})
    shutil.copytree(other.path, segmented.root / "other")
    assert evaluate_main(["--root", str(segmented.root), str(segmented.runs / "short"), "--on", "other"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(rf"{re.escape(str(segmented.root / 'other'))}\S*: .*\bshort\b.*\b1\b", line), line
    shutil.rmtree(segmented.root / "other")
