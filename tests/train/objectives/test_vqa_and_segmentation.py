"""The objectives vqa and segmentation: losses against plain loops, in two processes, stopped, and from another run."""

import shutil

import numpy as np
import pytest
import torch
from helpers.labelled import make_questions, make_segments
from helpers.training import QUESTIONS, SEGMENTS, TASK_CASES, at, check_processes, gradient, losses_of, trainer
from vlalign.storage import Caption
from vlalign.storage.captions import write_captions_about, write_part
from vlalign.storage.files import read_json
from vlalign.storage.layout import DatasetFolder
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.trainer import Trainer


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> DatasetFolder:
    return make_questions(tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="module")
def segmented(tmp_path_factory) -> DatasetFolder:
    return make_segments(tmp_path_factory.mktemp("segmented"))


def made_trainer(dataset: DatasetFolder, folder, **settings) -> Trainer:
    return trainer(dataset, folder, dataset=dataset.name, features="resnet152", **settings)


def test_the_answers_loss_is_that_of_plain_loops(asked, tmp_path):
    made = made_trainer(asked, tmp_path, **QUESTIONS)
    model, inputs = made.model.eval(), made.make_inputs(0)
    terms, _ = gradient(made)
    with torch.no_grad():
        texts = torch.nn.functional.normalize(model.encode_texts(inputs.texts).sentence_BD, dim=-1)
        videos = torch.nn.functional.normalize(model.encode_videos(inputs.rows, inputs.mask).mean_BD, dim=-1)
        head = model.head
        for name, asked_by in (("answers", head.asked), ("blind", head.blind_asked)):
            answer_of, total, size = (head.answer if name == "answers" else head.blind_answer), 0.0, len(videos)

            def vector(x: torch.Tensor) -> torch.Tensor:
                return x / x.norm()

            given = [vector(answer_of(text)) for text in texts[size:]]
            wanted = [
                vector(asked_by(torch.cat([texts[n], videos[n]]) if name == "answers" else texts[n]))
                for n in range(size)
            ]
            for question, own in enumerate(inputs.labels.tolist()):
                for answer in range(len(given)):
                    if answer != own:
                        total += max(0.0, 0.1 + float(wanted[question] @ given[answer] - wanted[question] @ given[own]))
            assert terms[name] == pytest.approx(total / (size * len(given)), rel=1e-4)
    words = [c.answer for c in made.examples.pairs["train"].captions]
    assert sorted(made.examples.labels) == sorted(set(words)) and "nothing" not in made.examples.labels


def test_what_is_asked_blindly_teaches_the_encoders_nothing(asked, tmp_path):
    made = made_trainer(asked, tmp_path, **QUESTIONS)
    texts = made.model.encode_texts(made.make_inputs(0).texts)
    made.model.head.blind_questions(texts.sentence_BD).sum().backward()
    assert all(p.grad is None for p in made.model.text.parameters())


def test_the_labels_loss_is_that_of_plain_loops(segmented, tmp_path):
    made = made_trainer(segmented, tmp_path, **SEGMENTS)
    inputs = made.make_inputs(0)
    terms, _ = gradient(made)
    assert inputs.texts == {} and set(inputs.labels[inputs.mask].tolist()) == {0, 1, 2, 3}
    with torch.no_grad():
        tokens = made.model.eval().encode_videos(inputs.rows, inputs.mask).tokens_BMD
        losses = []
        for window, row in inputs.mask.nonzero().tolist():
            scores = made.model.head(tokens[window, row])
            losses.append(float(torch.logsumexp(scores, 0) - scores[inputs.labels[window, row]]))
    assert terms["labels"] == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.slow
def test_two_processes_have_the_loss_and_the_gradient_of_one(asked, segmented, tmp_path):
    datasets = {"asked": asked, "segmented": segmented}
    cases = {case: (datasets[case], {"features": "resnet152", **TASK_CASES[case]}) for case in TASK_CASES}
    check_processes(cases, tmp_path, 2)


@pytest.mark.parametrize("case", TASK_CASES)
def test_a_stopped_run_goes_on_and_another_objectives_model_is_gone_on_from(case, request, monkeypatch, capsys):
    dataset = request.getfixturevalue(case)
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in TASK_CASES[case].items()]
    call = [
        *at(dataset),
        "--features",
        "resnet152",
        "--batch-size",
        "6",
        "--num-steps",
        "8",
        "--validate-every",
        "3",
        *settings,
    ]
    assert train_main([*call, "--run-name", f"{case}-whole"]) == 0
    step = Trainer.train_step

    def dies(self, inputs):
        if self.step == 5:
            raise KeyboardInterrupt
        return step(self, inputs)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", dies)
        assert train_main([*call, "--run-name", f"{case}-stopped"]) == 130
    assert train_main([*call, "--run-name", f"{case}-stopped"]) == 0
    assert losses_of(dataset.runs / f"{case}-stopped") == losses_of(dataset.runs / f"{case}-whole")

    before = (
        ["--objective", "ncl", "--encoder", "gated", "--embedding-size", "16"]
        if case == "asked"
        else ["--objective", "taco"]
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
    assert train_main([*pretrained, "--num-negatives", "2"]) == 0
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
    assert "no caption is a step of a segment" in capsys.readouterr().err
    assert train_main([*at(segmented), *few, "--objective", "vqa", "--encoder", "gated"]) == 2
    assert "no training caption is a question with an answer" in capsys.readouterr().err
    assert train_main([*at(asked), *few, "--objective", "vqa", "--pair-weights", "density"]) == 2
    assert "no pairs of clips and captions" in capsys.readouterr().err
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
    assert "none of its 1 steps is one that short was trained on" in capsys.readouterr().err
    shutil.rmtree(segmented.root / "other")
