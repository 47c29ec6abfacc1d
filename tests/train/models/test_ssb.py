"""SSB's encoders: each clip and caption has the vector that it has alone, computed step by step beside them."""

import pytest
import torch
from helpers.text_encoders import KINDS, T5_SIZES
from helpers.training import EIGHT_STEPS, at, check_stopped_run, gradient, trainer
from torch import nn
from transformers import T5Config, T5EncoderModel
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.files import read_json
from vlalign.train import load_run
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.data.text_inputs import SubwordInputs
from vlalign.train.models.ssb import SupportSetPair, TransformerPool
from vlalign.train.models.tokens import TextTokens, VideoTokens
from vlalign.train.recipes.train_config import train_config

WIDTH, NUM_FEATURES = T5_SIZES["d_model"], 6


def make_model(dropout: float = 0.0) -> SupportSetPair:
    torch.manual_seed(0)
    text_encoder = T5EncoderModel(T5Config(vocab_size=40, dropout_rate=dropout, **T5_SIZES)).get_encoder()
    model = SupportSetPair(NUM_FEATURES, text_encoder, dropout=dropout).double()
    model.feature_mean.normal_()
    model.feature_std.uniform_(0.5, 2.0)
    for pool in (model.text_pool, model.video_pool):  # new ones are zero where a mistake would not be seen
        nn.init.normal_(pool.layer.self_attn.in_proj_bias, std=0.3)
    return model


def make_inputs(
    text_lengths: list[int], clip_lengths: list[int]
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Return captions, rows [B, M, F] and the rows' mask."""
    attention_mask = (torch.arange(max(text_lengths)) < torch.tensor(text_lengths)[:, None]).long()
    mask = torch.arange(max(clip_lengths)) < torch.tensor(clip_lengths)[:, None]
    rows = torch.randn(*mask.shape, NUM_FEATURES, dtype=torch.float64)
    return {"input_ids": torch.randint(1, 40, attention_mask.shape), "attention_mask": attention_mask}, rows, mask


def pooled(pool: TransformerPool, sequence_LD: torch.Tensor) -> torch.Tensor:
    """The first output of torch's own layer for the learned token and a sequence."""
    x = torch.cat([pool.token[None], sequence_LD])[None]
    return nn.TransformerEncoderLayer.forward(pool.layer, x)[0, 0]


def plain_text(model: SupportSetPair, ids_N: torch.Tensor) -> torch.Tensor:
    """A caption's vector, its convolution as sums over three neighbours."""
    tokens = model.text_encoder(input_ids=ids_N[None]).last_hidden_state[0]
    around, weight_DDK = [None, *tokens, None], model.cnn.weight
    convolved = []
    for place in range(len(tokens)):
        total = model.cnn.bias
        for k, token in enumerate(around[place : place + 3]):
            total = total if token is None else total + weight_DDK[:, :, k] @ token
        convolved.append(total.clamp(min=0))
    return pooled(model.text_pool, torch.stack(convolved))


def plain_clip(model: SupportSetPair, rows_MF: torch.Tensor) -> torch.Tensor:
    """A clip's vector, its GRU row by row from its equations (PyTorch's documentation of nn.GRU)."""
    rnn, state, states = model.rnn, torch.zeros(WIDTH, dtype=torch.float64), []
    for row in (rows_MF - model.feature_mean) / model.feature_std:
        of_row = (rnn.weight_ih_l0 @ row + rnn.bias_ih_l0).chunk(3)
        of_state = (rnn.weight_hh_l0 @ state + rnn.bias_hh_l0).chunk(3)
        reset, update = torch.sigmoid(of_row[0] + of_state[0]), torch.sigmoid(of_row[1] + of_state[1])
        new = torch.tanh(of_row[2] + reset * of_state[2])
        state = (1 - update) * new + update * state
        states.append(state)
    return pooled(model.video_pool, torch.stack(states))


def encode(model: SupportSetPair, inputs: tuple) -> tuple[TextTokens, VideoTokens]:
    texts, rows, mask = inputs
    return model.encode_texts(texts), model.encode_videos(rows, mask)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_padding_changes_nothing_and_a_step_by_step_computation_gives_the_same(mode):
    model = getattr(make_model(), mode)()
    text_lengths, clip_lengths = [5, 1, 8, 3, 8], [7, 2, 1, 4, 4]
    captions, rows, mask = inputs = make_inputs(text_lengths, clip_lengths)
    rows[~mask] = 1e6
    texts, videos = encode(model, inputs)
    assert texts.tokens_BND.shape == videos.tokens_BMD.shape == (5, 1, WIDTH)
    for index, (num_subwords, num_rows) in enumerate(zip(text_lengths, clip_lengths, strict=True)):
        ids, clip = captions["input_ids"][index, :num_subwords], rows[index, :num_rows]
        torch.testing.assert_close(texts.sentence_BD[index], plain_text(model, ids))
        torch.testing.assert_close(videos.mean_BD[index], plain_clip(model, clip))
        unpadded = {"input_ids": ids[None], "attention_mask": torch.ones(1, num_subwords, dtype=torch.int64)}
        alone = encode(model, (unpadded, clip[None], torch.ones(1, num_rows, dtype=torch.bool)))
        torch.testing.assert_close(alone[0].sentence_BD[0], texts.sentence_BD[index])
        torch.testing.assert_close(alone[1].mean_BD[0], videos.mean_BD[index])


def test_gradients_at_padding_are_zero_and_reach_every_parameter():
    model = make_model()
    captions, rows, mask = make_inputs([5, 3, 8], [7, 2, 4])
    rows.requires_grad_()
    texts, videos = encode(model, (captions, rows, mask))
    (texts.sentence_BD @ videos.mean_BD.T).square().sum().backward()
    assert rows.grad is not None and (rows.grad[~mask] == 0).all() and (rows.grad[mask] != 0).any(dim=1).all()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_the_order_of_rows_and_of_subwords_matters():
    model = make_model().eval()
    captions, rows, mask = make_inputs([6], [5])
    texts, videos = encode(model, (captions, rows, mask))
    captions["input_ids"] = captions["input_ids"].flip(1)
    turned = encode(model, (captions, rows.flip(1), mask))
    assert (turned[0].sentence_BD - texts.sentence_BD).abs().max() > 1e-3
    assert (turned[1].mean_BD - videos.mean_BD).abs().max() > 1e-3


def test_dropout_is_that_of_the_setting_and_in_training_only():
    inputs = make_inputs([6, 4], [5, 3])
    dropping = make_model(dropout=0.5)
    one, other = (encode(dropping, inputs) for _ in range(2))
    assert not torch.equal(one[0].sentence_BD, other[0].sentence_BD)
    assert not torch.equal(one[1].mean_BD, other[1].mean_BD)
    in_eval, without = encode(dropping.eval(), inputs), encode(make_model(), inputs)
    torch.testing.assert_close(in_eval[0].sentence_BD, without[0].sentence_BD)
    torch.testing.assert_close(in_eval[1].mean_BD, without[1].mean_BD)


def test_half_precision_leaves_the_vectors_in_float32_and_close():
    model, (captions, rows, mask) = make_model().float(), make_inputs([6, 4], [5, 3])
    exact = encode(model, (captions, rows.float(), mask))
    model.set_precision("bf16")
    for ours, full in zip(encode(model, (captions, rows.float(), mask)), exact, strict=True):
        vectors = (tokens.sentence_BD if isinstance(tokens, TextTokens) else tokens.mean_BD for tokens in (ours, full))
        of_ours, of_full = vectors
        assert of_ours.dtype == torch.float32 and not torch.equal(of_ours, of_full)
        assert torch.cosine_similarity(of_ours, of_full).min() > 0.999


def test_objectives_that_need_tokens_are_refused():
    for objective in ("taco", "toco", "cmcm", "segmentation"):
        with pytest.raises(SettingError, match=f"encoder ssb: .*{objective}.* tokens"):
            train_config(dataset="d", features="s3d", objective=objective, encoder="ssb")


def test_a_trainer_gives_it_all_rows_and_micro_batches_change_nothing(toy, tmp_path):
    settings = {"objective": "hard-triplet", "encoder": "ssb"}
    whole = trainer(toy, tmp_path / "whole", **settings)
    inputs = whole.make_inputs(0)
    assert int(inputs.mask.sum(dim=1).max()) > 1 and isinstance(whole.scorer.text_inputs, SubwordInputs)
    terms, expected = gradient(whole)
    in_parts, found = gradient(trainer(toy, tmp_path / "parts", micro_batch_size=5, **settings))
    assert in_parts == pytest.approx(terms, rel=1e-5)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert len(expected) == sum(p.numel() for p in whole.model.parameters()), "every parameter has a gradient"


def test_a_recipe_with_t5_is_resumed_evaluated_normalised_and_searched(toy, tmp_path, capsys):
    """T5's own size, tokenizer and layers, from a folder that the library saved."""
    config, tokenizer = KINDS["t5"]()
    torch.manual_seed(0)
    T5EncoderModel(config).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    call = [*at(toy), "--recipe", "ncl-ssb-msvd", "--features", "s3d", "--text-encoder", str(tmp_path / "t5")]
    check_stopped_run(toy, [*call, *EIGHT_STEPS, "--query-queue", "20"], "t5")
    capsys.readouterr()
    assert evaluate_main([*at(toy), "t5-whole", "--normalize", "ncl"]) == 0
    assert search_main([*at(toy), "t5-whole", "cut the onion", "--num-results", "3"]) == 0
    assert "'cut the onion'" in capsys.readouterr().out
    assert read_json(toy.runs / "t5-whole" / "text_encoder" / "config.json")["model_type"] == "t5"
    assert load_run(toy.runs / "t5-whole", device="cpu").encode_text(["cut the onion"]).shape == (1, WIDTH)
