"""CMCM's codebook: nearest codewords, their moving averages, and codewords that nothing uses."""

import torch
from helpers.golden import reference_numbers
from vlalign.train.distributed import Workers
from vlalign.train.models.codebook import (
    IDLE_STEPS,
    BidirectionalLstm,
    CodebookParts,
    GridConvolutions,
    SharedCodebook,
)
from vlalign.train.models.tokens import TokenSizes


def test_codebook_updates_equal_those_of_a_published_program():
    """ResDAVEnet-VQ's, whose smoothing by 1e-5 CMCM's appendix A does not have."""
    expected, inputs = reference_numbers()
    given, steps = {name: torch.from_numpy(values) for name, values in inputs.items()}, expected["vq_ema"]["steps"]
    codebook = SharedCodebook(TokenSizes(4, 4, 4), 8)
    codebook.codewords, codebook.sums = given["vq_init"].clone(), given["vq_init"].clone()
    for number, tokens in enumerate(given["vq_inputs"]):
        assert codebook.nearest(tokens).tolist() == steps[number]["codes"]
        codebook.update(tokens, Workers(), torch.Generator())
        torch.testing.assert_close(codebook.codewords, given[f"vq_embed_after_{number}"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(codebook.counts, given[f"vq_cluster_after_{number}"], rtol=1e-4, atol=1e-5)


def test_an_unused_codeword_is_reset_to_a_used_one():
    codebook = SharedCodebook(TokenSizes(2, 2, 2), 3)
    codebook.codewords = torch.tensor([[0.0, 0], [1, 1], [50, 50]])
    codebook.sums = codebook.codewords.clone()
    tokens = torch.tensor([[0.0, 0.1], [1, 1.1]])
    for _ in range(IDLE_STEPS - 1):
        assert codebook.update(tokens, Workers(), torch.Generator()) == 2
    assert codebook.codewords[2].min() > 20
    codebook.update(tokens, Workers(), torch.Generator())
    assert codebook.codewords[2].max() < 2 and codebook.counts[2] == 1 and codebook.idle[2] == 0
    place = codebook.codewords[2].clone()
    codebook.update(torch.tensor([[-5.0, -5]]), Workers(), torch.Generator())
    torch.testing.assert_close(codebook.codewords[2], place), "what it was before does not draw it back"


def test_a_token_is_replaced_by_the_nearest_codeword_and_passes_its_gradient_on():
    codebook = SharedCodebook(TokenSizes(3, 3, 3), 5)
    tokens = torch.randn(2, 4, 3, requires_grad=True)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    vector = codebook.vector("text", torch.zeros(2, 3), tokens, mask, mask.sum(dim=1))
    for row in range(2):
        replaced = []
        for token in tokens[row, mask[row]]:
            distances = [torch.linalg.vector_norm(token - word) for word in codebook.codewords]
            replaced.append(codebook.codewords[int(torch.stack(distances).argmin())])
        expected = codebook.high["text"](torch.zeros(3)) + codebook.code["text"](torch.stack(replaced).mean(0))
        torch.testing.assert_close(vector[row], expected)
    vector.sum().backward()
    of_mean = codebook.code["text"].weight.sum(dim=0)
    torch.testing.assert_close(tokens.grad[0, 0], of_mean / 3)
    assert tokens.grad[~mask].abs().sum() == 0


def test_convolutions_see_the_neighbours_of_a_cell():
    """Three layers over the grid, with ReLU between them, written out cell by cell."""
    torch.manual_seed(0)
    grid, made = (2, 3, 2), GridConvolutions(4, 5, (2, 3, 2))
    tokens = torch.randn(2, 12, 4)
    cells = tokens.reshape(2, *grid, 4)
    for number, layer in enumerate(made.layers):
        cells = cells.clamp(min=0) if number else cells
        out = torch.zeros(2, *grid, 5)
        for t, h, w in torch.cartesian_prod(*map(torch.arange, grid)).tolist():
            out[:, t, h, w] = layer.bias
            for dt, dh, dw in torch.cartesian_prod(*[torch.arange(-1, 2)] * 3).tolist():
                place = (t + dt, h + dh, w + dw)
                if all(0 <= x < size for x, size in zip(place, grid, strict=True)):
                    weight = layer.weight[:, :, dt + 1, dh + 1, dw + 1]
                    out[:, t, h, w] += cells[(slice(None), *place)] @ weight.T
        cells = out
    torch.testing.assert_close(made(tokens, torch.tensor([12, 12])), cells.reshape(2, 12, 5), atol=1e-5, rtol=1e-4)
    assert made(tokens[:, :1], torch.tensor([1, 1])).shape == (2, 1, 5), "clips without rows"


def test_a_bilstm_of_three_layers_does_not_see_padding():
    torch.manual_seed(0)
    made, tokens, lengths = BidirectionalLstm(4, 7), torch.randn(3, 6, 4), torch.tensor([2, 6, 1])
    together = made(tokens, lengths)
    assert together.shape == (3, 6, 7) and len(made.lstm.all_weights) == 2 * 3
    for row, length in enumerate(lengths.tolist()):
        forward = backward = tokens[row, :length]
        for depth in range(3):
            forward, backward = (_lstm(made.lstm, depth, suffix, forward) for suffix in ("", "_reverse"))
            forward = torch.cat([forward, backward], dim=-1)
        torch.testing.assert_close(together[row, :length], forward[:, :7], atol=1e-6, rtol=1e-5)
        assert not together[row, length:].any()


def _lstm(lstm: torch.nn.LSTM, depth: int, suffix: str, tokens: torch.Tensor) -> torch.Tensor:
    """One direction of a layer by its equations."""
    w, u, b, c = (
        getattr(lstm, f"{name}_l{depth}{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    hidden, cell, out = torch.zeros(4), torch.zeros(4), []
    for token in tokens.flip(0) if suffix else tokens:
        i, f, g, o = (w @ token + b + u @ hidden + c).chunk(4)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        out.append(hidden)
    found = torch.stack(out)
    return found.flip(0) if suffix else found


def test_vectors_without_quantisation_and_without_a_summary():
    torch.manual_seed(0)
    sizes, mask = TokenSizes(4, text=3, video=5), torch.tensor([[True, True, False]])
    tokens, summary, lengths = torch.randn(1, 3, 4), torch.randn(1, 4), torch.tensor([2])
    free = SharedCodebook(sizes, 6, CodebookParts(quantized=False, summary_layer=False))
    assert "codewords" not in free.state_dict() and free.size == 0
    assert {side: layer.weight.shape for side, layer in free.project.items()} == {"text": (4, 3), "video": (4, 5)}
    expected = summary + free.code["video"](tokens[:, :2].mean(dim=1))
    torch.testing.assert_close(free.vector("video", summary, tokens, mask, lengths), expected)
    codes = SharedCodebook(sizes, 6, CodebookParts(summary=False))
    of_words = codes.codewords[codes.nearest(tokens)][:, :2].mean(dim=1)
    found = codes.vector("text", summary, tokens, mask, lengths)
    torch.testing.assert_close(found, codes.code["text"](of_words))
    assert not any(name.startswith("high") for name in codes.state_dict())
