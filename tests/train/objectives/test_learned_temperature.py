"""NCL's learned temperature, beside CLIP's ``logit_scale`` in transformers; it is trained, kept and used afterwards."""

import math

import pytest
import torch
from helpers.clips_of_text import new_clip, word_tokenizer
from helpers.pair_models import batch_of
from helpers.toy import make_toy
from helpers.training import at, trainer
from safetensors.torch import load_file
from torch import nn
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.losses import LearnedTemperature
from vlalign.train.models.base import PairModel
from vlalign.train.models.tokens import TextTokens, VideoTokens
from vlalign.train.objectives.ncl import NclObjective
from vlalign.train.runs.load import open_run

CAPTIONS = ["a red ball falls", "a blue box", "a box falls", "a red box"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    return make_toy(tmp_path_factory.mktemp("toy"))


def model_of(objective: NclObjective, width: int) -> PairModel:
    model = PairModel(width)
    model.add(lambda sizes: objective.modules_of(sizes, 0))
    return model


def tokens(text_BD: torch.Tensor, video_BD: torch.Tensor) -> tuple[TextTokens, VideoTokens]:
    mask = torch.ones(len(text_BD), 1, dtype=torch.bool)
    return TextTokens(text_BD[:, None], mask, mask.float()), VideoTokens(video_BD[:, None], mask)


@pytest.mark.parametrize("scale", [100.0, 14.3])
def test_its_gradient_is_that_of_clips_logit_scale(scale):
    tokenizer = word_tokenizer(CAPTIONS)
    clip = new_clip(tokenizer)
    nn.init.constant_(clip.logit_scale, math.log(scale))
    texts = tokenizer(CAPTIONS, return_tensors="pt", padding=True)
    out = clip(**texts, pixel_values=torch.randn(len(CAPTIONS), 3, 224, 224), return_loss=True)
    out.loss.backward()
    objective = NclObjective(temperature=1 / scale, learned_temperature=True)
    model = model_of(objective, 512)
    vectors = out.text_embeds.detach(), out.image_embeds.detach()
    loss = objective.compute_loss(model, batch_of(*tokens(*vectors)))["contrast"]
    loss.backward()
    assert [name for name, _ in model.named_parameters()] == ["own.log_scale"]
    torch.testing.assert_close(loss, out.loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.own.log_scale.grad, clip.logit_scale.grad, rtol=1e-5, atol=1e-7)


def test_with_biases_its_gradient_is_the_slope_of_the_loss():
    """The biases are constant: at a fixed bias, the loss is that of (similarity + bias) / temperature."""
    torch.manual_seed(0)
    objective = NclObjective(temperature=0.1, learned_temperature=True, normalized_loss=True, query_queue=4)
    model, (texts, videos) = model_of(objective, 8).double(), tokens(*torch.randn(2, 5, 8).double())
    objective.compute_loss(model, batch_of(texts, videos))["contrast"].backward()
    similarity = objective.text_vectors(model, texts) @ objective.video_vectors(model, videos).T
    a, b = torch.ones(5).double() / 5, torch.ones(5).double()  # Sinkhorn, NCL Eq. 10 and 11, without logarithms
    kernel = (similarity / 0.1).exp()
    for _ in range(4):
        a = 1 / (5 * kernel @ b)
        b = 1 / (5 * a @ kernel)
    of_text, of_video = 0.1 * (a / a.sum()).log(), 0.1 * (b / b.sum()).log()

    def loss(log_scale: float) -> torch.Tensor:
        by_text, by_video = (similarity + of_video) * math.exp(log_scale), (similarity + of_text[:, None]).T
        right = torch.arange(5)
        both = by_text, by_video * math.exp(log_scale)
        return sum(nn.functional.cross_entropy(logits, right) for logits in both) / 2

    start = math.log(10)
    slope = (loss(start + 1e-5) - loss(start - 1e-5)) / 2e-5
    torch.testing.assert_close(model.own.log_scale.grad, slope, rtol=1e-4, atol=1e-7)


def test_it_starts_at_the_limit_or_above():
    assert NclObjective(temperature=0.01, learned_temperature=True).learns_temperature
    with pytest.raises(SettingError) as error:
        NclObjective(temperature=0.009, learned_temperature=True)
    assert error.value.setting == "temperature"
    assert not NclObjective(temperature=0.009).learns_temperature


def test_it_stays_at_the_limit_or_above_and_groups_name_it(toy, tmp_path):
    settings = {"objective": "ncl", "encoder": "gated", "embedding_size": 8, "learning_rate": 0.3, "warmup_steps": 0}
    settings |= {"num_steps": 6, "temperature": 0.0101, "learned_temperature": True}
    settings |= {"parameter_groups": "own.log_scale:lr=10,decay=0"}
    made = trainer(toy, tmp_path / "run", **settings)
    assert isinstance(made.model.own, LearnedTemperature)
    for step in range(6):
        made.train_step(made.make_inputs(step).to(made.device))
        assert made.config.objective.temperature_of(made.model) >= 0.01 - 1e-9
    assert made.config.objective.temperature_of(made.model) != pytest.approx(0.0101, abs=1e-5)


def test_evaluation_uses_what_was_learned(toy):
    given = ["--objective", "ncl", "--features", "s3d", "--num-video-layers", "0", "--learned-temperature"]
    given += ["--normalized-loss", "--temperature", "0.05", "--batch-size", "6", "--num-steps", "4"]
    given += ["--validate-every", "2", "--learning-rate", "0.01", "--run-name", "learned"]
    assert train_main([*at(toy), *given]) == 0
    run = open_run(toy.runs / "learned")
    learned = math.exp(-load_file(toy.runs / "learned" / "model.safetensors")["own.log_scale"].item())
    assert run.config.objective.temperature_of(run.scorer.model) == pytest.approx(learned) != 0.05
    assert evaluate_main([*at(toy), "learned"]) == 0
    assert read_json(toy.runs / "learned" / "metrics.json")["normalization"]["temperature"] == pytest.approx(learned)
    assert evaluate_main([*at(toy), "learned", "--temperature", "0.05"]) == 0
    found = [read_json(path)["normalization"]["temperature"] for path in toy.path.rglob("metrics.json")]
    assert sorted(found) == pytest.approx(sorted([learned, 0.05]))
