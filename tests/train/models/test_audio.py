"""The residual audio encoder: shapes, padding, and the published architecture, written out a second time."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from vlalign.train.models.audio import AudioEncoder, RowNorm


@pytest.fixture(scope="module")
def encoder() -> AudioEncoder:
    """With batch norms that have seen something: fresh ones would make zeros of padding anyway."""
    torch.manual_seed(3)
    encoder = AudioEncoder()
    for name, value in encoder.named_buffers():
        if name.endswith("running_mean"):
            value.normal_(0, 0.3)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 2)
    for name, value in encoder.named_parameters():
        if "bn" in name or "downsample.1" in name:
            torch.nn.init.normal_(value, 0.7, 0.2)
    return encoder.eval()


def mask_of(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("num_rows, num_tokens", [(1, 1), (15, 1), (16, 1), (17, 2), (160, 10), (1024, 64)])
def test_sixteen_rows_are_one_token(encoder, num_rows, num_tokens):
    """CMCM, appendix B: every 16 consecutive frames are one codeword."""
    tokens, mask, _ = encoder(torch.randn(2, num_rows, 40), mask_of([num_rows, 1], num_rows))
    assert tokens.shape == (2, num_tokens, 1024) and mask.dtype == torch.bool
    assert mask.sum(dim=1).tolist() == [num_tokens, 1]
    assert torch.isfinite(tokens).all() and (tokens[~mask] == 0).all()


def test_padding_changes_no_token(encoder):
    lengths = [200, 131, 16, 1]
    rows = torch.randn(4, 200, 40)
    rows[~mask_of(lengths, 200)] = torch.tensor(1e3)
    together, mask, _ = encoder(rows, mask_of(lengths, 200))
    for clip, length in enumerate(lengths):
        alone, *_ = encoder(rows[clip : clip + 1, :length], torch.ones(1, length, dtype=torch.bool))
        torch.testing.assert_close(together[clip][mask[clip]], alone[0], rtol=1e-4, atol=1e-4)


def published(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Two-dimensional, on pictures of one channel, 40 bands high and T wide: [B, 1, 40, T] -> [B, 1024, T / 16]."""

    def norm(name: str, x: Tensor) -> Tensor:
        values = (state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *values)

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"][:, :, None]
        return F.conv2d(x, weight, stride=stride, padding=(0, weight.shape[-1] // 2))

    x = norm("bn1", F.conv2d(x, state["conv1.weight"][:, None])).relu()
    for layer in (1, 2, 3, 4):
        for block in (0, 1):
            at, stride = f"layer{layer}.{block}", 1 if block else 2
            y = norm(f"{at}.bn1", conv(f"{at}.conv1", x, stride)).relu()
            y = norm(f"{at}.bn2", conv(f"{at}.conv2", y))
            if not block:
                x = norm(f"{at}.downsample.1", conv(f"{at}.downsample.0", x, stride))
            x = (y + x).relu()
    return x.squeeze(2)


def test_a_clip_without_padding_is_encoded_as_published(encoder):
    rows = torch.randn(2, 173, 40)
    tokens, *_ = encoder(rows, torch.ones(2, 173, dtype=torch.bool))
    torch.testing.assert_close(
        tokens, published(encoder.state_dict(), rows.transpose(1, 2)[:, None]).transpose(1, 2), rtol=1e-4, atol=1e-4
    )


def test_statistics_of_a_batch_are_those_of_its_rows_without_padding():
    lengths = [9, 4, 1]
    mask = mask_of(lengths, 9)
    norm, plain, x = RowNorm(6), torch.nn.BatchNorm1d(6), 2 + torch.randn(3, 6, 9)
    rows = x.transpose(1, 2)[mask]
    x.requires_grad_(), rows.requires_grad_()
    for _ in range(2):
        own, expected = norm(x, mask.nonzero(as_tuple=True)).transpose(1, 2)[mask], plain(rows)
    torch.testing.assert_close(own, expected)
    torch.testing.assert_close(norm.state_dict(), plain.state_dict())
    weight = torch.randn_like(rows)
    own.mul(weight).sum().backward(), expected.mul(weight).sum().backward()
    torch.testing.assert_close(x.grad.transpose(1, 2)[mask], rows.grad)
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad)
    torch.testing.assert_close(norm.eval()(x, mask.nonzero(as_tuple=True)).transpose(1, 2)[mask], plain.eval()(rows))


def test_in_training_too_padding_changes_no_token():
    torch.manual_seed(0)
    encoder, lengths, rows = AudioEncoder(), [90, 33], torch.randn(2, 90, 40)
    found, mask, _ = encoder(rows, mask_of(lengths, 90))
    padded, *_ = encoder(torch.cat([rows, torch.randn(2, 38, 40)], dim=1), mask_of(lengths, 128))
    torch.testing.assert_close(padded[:, :6][mask], found[mask], rtol=1e-4, atol=1e-4)
    assert (padded[:, 6:] == 0).all()


def test_as_many_parameters_as_published():
    """One by one: convolutions without biases, norms with two values a channel. The published module has two more,
    which it never uses (``batchnorm1``)."""
    expected = 40 * 128 + 2 * 128
    for inputs, outputs in ((128, 128), (128, 256), (256, 512), (512, 1024)):
        expected += 9 * inputs * outputs + 3 * 9 * outputs * outputs + 4 * 2 * outputs  # two blocks of two convolutions
        expected += inputs * outputs + 2 * outputs  # the shortcut of the first
    assert sum(value.numel() for value in AudioEncoder().parameters()) == expected == 44_670_976


def test_every_parameter_learns():
    encoder = AudioEncoder()
    tokens, mask, _ = encoder(torch.randn(2, 64, 40), mask_of([64, 30], 64))
    tokens[mask].square().sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in encoder.parameters())
