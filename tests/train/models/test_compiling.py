"""torch.compile takes each model's layers whole, once, for all numbers and lengths of sequences.

Counted by PyTorch's own compiler front end, whose programs the ordinary operators run (backend "eager").
"""

from functools import partial

import pytest
import torch
from helpers.pair_models import batch_of, encode, make_batch, make_model
from torch import nn
from torch._dynamo.utils import counters, get_compilation_metrics
from vlalign.train.models.layers import Compiled
from vlalign.train.models.spoken import SpokenPair
from vlalign.train.objectives.taco import TacoObjective
from vlalign.train.objectives.toco import TocoObjective


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """Counts of this test alone. Too many recompilations are an error, not a return to plain execution."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def num_programs() -> int:
    """Return how many programs there are; none may be broken into parts."""
    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


CASES = {"taco": TacoObjective(num_negatives=2), "toco": TocoObjective(num_negatives=2)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["taco", pytest.param("toco", marks=pytest.mark.slow)])
def test_self_attention_is_compiled_once_for_all_lengths(name):
    model = make_model(name)
    model.compile_layers()
    for number, num_pairs in enumerate((6, 5, 7, 9, 4, 8)):
        batch = make_batch(num_pairs)
        if number == 3:  # all are equally long, so that there is no padding
            batch["mask"][:], batch["attention_mask"][:] = True, True
        loss = sum(CASES[name].compute_loss(model, batch_of(*encode(model, batch))).values())
        loss.backward()
        if number == 0:
            programs = num_programs()
    # All tokens of a layer, those of the last layer that scores are made of, and for TACo the text encoder.
    expected = {"taco": 3, "toco": 2}[name]
    assert programs == num_programs() == expected
    model.eval()
    with torch.no_grad():
        for num_pairs in (6, 5):
            CASES[name].compute_loss(model, batch_of(*encode(model, make_batch(num_pairs))))
    assert num_programs() == 2 * expected


@pytest.mark.slow
def test_the_audio_encoder_is_compiled_once_for_all_lengths():
    model = SpokenPair(5)
    model.compile_layers()
    rng = torch.Generator().manual_seed(0)
    for lengths in ([40, 70, 33], [90, 41], [50, 50, 64, 80]):
        mask_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        rows_BTD = torch.randn(*mask_BT.shape, 40, generator=rng)
        model.encode_texts({"rows_BTD": rows_BTD, "mask_BT": mask_BT}).tokens_BND.sum().backward()
        assert num_programs() == 1


def num_traces(call) -> int:
    """Return how often PyTorch's compiler reads ``call``, whose backward pass it makes, too (backend "aot_eager")."""
    before = len(get_compilation_metrics())
    call()
    found = get_compilation_metrics()[before:]
    return len(found) + sum(len(of.restart_reasons or ()) for of in found)


def test_layers_with_dropout_are_traced_once(monkeypatch):
    """It is dropout's rate that made the compiler begin again."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile.func, backend="aot_eager"))
    layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).train()
    compiled = Compiled(lambda x_PLD, mask_PL: layers(x_PLD))
    assert num_traces(lambda: compiled(torch.ones(3, 5, 4), None).sum().backward()) == 1
    assert num_traces(lambda: compiled(torch.ones(2, 7, 4), None).sum().backward()) == 0
    assert not torch._dynamo.config.specialize_float  # as others in this process may want it
