"""A model of transformers as a network that turns frames into features."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ...storage.hub.names import POOLINGS
from ..models.network import Network
from . import METHODS, OWN_VECTOR


class HubNetwork(Network):
    """A model of transformers.

    ``forward``: normalised frames [B, 3, (T,) H, W] -> features [B, D], float32.
    """

    def __init__(self, model: nn.Module, pooling: str | None, *, is_video: bool) -> None:
        """Take a model, and which of ``POOLINGS`` to use; None for the vector that it gives itself."""
        super().__init__()
        is_of_timm = type(model).__name__.startswith("TimmWrapper")
        self.libraries = ("transformers", "timm") if is_of_timm else ("transformers",)
        self.model, self._pooling, self._is_video = model, pooling, is_video
        self._method = next(name for name in METHODS if picture_input(model, name))
        self._input = picture_input(model, self._method)
        self.batch_sizes = {"cpu": 1, "cuda": 8} if is_video else {"cpu": 8, "cuda": 64}  # type: ignore[misc]

    @property
    def told(self) -> str:
        """Description of a feature, in words."""
        if self._pooling is not None:
            return f"{self._method}, {POOLINGS[self._pooling]}"
        return f"{self._method}, {OWN_VECTOR}"

    def forward(self, x: Tensor) -> Tensor:
        """See the class. Raises ``ValueError`` if the model gives no such vector."""
        pixels = x.transpose(1, 2) if self._is_video else x
        output = getattr(self.model, self._method)(**{self._input: pixels})
        return self._vectors(output).to(torch.promote_types(x.dtype, torch.float32))

    def _vectors(self, output: Any) -> Tensor:
        own = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
        if own is None:
            own = getattr(output, "summary", None)  # RADIO's name for it
        if self._pooling is None:
            if not isinstance(own, Tensor):  # a list of pictures' tokens
                own = None
            if own is not None and own.ndim == 3 and own.shape[1] == 1:  # VideoPrism's pooling has one query
                own = own[:, 0]
            if own is None or own.ndim != 2:
                raise ValueError("it gives tokens, not a vector; add :mean, :first or :tokens to its name")
            return own
        tokens = output if isinstance(output, Tensor) else getattr(output, "last_hidden_state", None)
        if tokens is not None and tokens.ndim == 4:  # a map [B, C, H, W]
            tokens = tokens.flatten(2).transpose(1, 2)
        if tokens is None or tokens.ndim != 3:
            raise ValueError("it gives no tokens; leave the option at the end of its name out")
        if self._pooling == "mean":
            return tokens.mean(dim=1)
        return tokens[:, 0] if self._pooling == "first" else tokens.flatten(1)


def picture_input(model: nn.Module, method: str) -> str:
    """Return the argument of a method that takes pictures; empty if there is none."""
    parameters = inspect.signature(getattr(model, method, lambda: None)).parameters
    return next((name for name in parameters if name.startswith("pixel_values")), "")
