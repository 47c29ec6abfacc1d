"""CMCM's codebook: nearest codewords, their moving averages, and codewords that nothing uses."""

import torch
from helpers.golden import reference_numbers
from vlalign.train.distributed import Workers
from vlalign.train.models.codebook import IDLE_STEPS, SharedCodebook


def test_codebook_updates_equal_those_of_a_published_program():
    """ResDAVEnet-VQ's, whose smoothing by 1e-5 CMCM's appendix A does not have."""
    expected, inputs = reference_numbers()
    given, steps = {name: torch.from_numpy(values) for name, values in inputs.items()}, expected["vq_ema"]["steps"]
    codebook = SharedCodebook(4, 8)
    codebook.codewords, codebook.sums = given["vq_init"].clone(), given["vq_init"].clone()
    for number, tokens in enumerate(given["vq_inputs"]):
        assert codebook.nearest(tokens).tolist() == steps[number]["codes"]
        codebook.update(tokens, Workers(), torch.Generator())
        torch.testing.assert_close(codebook.codewords, given[f"vq_embed_after_{number}"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(codebook.counts, given[f"vq_cluster_after_{number}"], rtol=1e-4, atol=1e-5)


def test_an_unused_codeword_is_reset_to_a_used_one():
    codebook = SharedCodebook(2, 3)
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
    codebook = SharedCodebook(3, 5)
    tokens = torch.randn(2, 4, 3, requires_grad=True)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    vector = codebook.vector("text", torch.zeros(2, 3), tokens, mask)
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
