"""The objective vqa: its loss against plain loops."""

import pytest
import torch
from helpers.labelled import make_questions
from helpers.training import QUESTIONS, gradient, trainer
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.loop.trainer import Trainer


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> DatasetFolder:
    return make_questions(tmp_path_factory.mktemp("asked"))


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


def test_the_blind_answer_head_gives_the_encoders_no_gradient(asked, tmp_path):
    made = made_trainer(asked, tmp_path, **QUESTIONS)
    texts = made.model.encode_texts(made.make_inputs(0).texts)
    made.model.head.blind_questions(texts.sentence_BD).sum().backward()
    assert all(p.grad is None for p in made.model.text.parameters())
