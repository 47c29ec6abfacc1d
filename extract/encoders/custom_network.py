"""The network of an encoder of one's own."""

from typing import ClassVar

from torch import Tensor, nn

from ...storage.common.errors import UserError
from ..models.network import Network


class OwnNetwork(Network):
    """A network of the user's.

    ``forward``: normalised frames [B, 3, (T,) H, W] -> features [B, D], float32. Raises ``UserError`` for another
    shape of features.
    """

    batch_sizes: ClassVar = {"cpu": 4, "cuda": 32}

    def __init__(self, network: nn.Module, dimension: int, where: str) -> None:
        """Take the network, how many numbers it gives for a row, and where it is from, for messages."""
        super().__init__()
        self.network, self._dimension, self._where = network, dimension, where

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        features = self.network(x)
        if not isinstance(features, Tensor) or features.shape != (len(x), self._dimension):
            given = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(f"{self._where} gives {given}; expected [{len(x)}, {self._dimension}] for {list(x.shape)}")
        return features.float()


def network_of(made: object, dimension: int, where: str) -> OwnNetwork:
    """Return what the user's function made as a network. Raises ``UserError`` if it is none."""
    if not isinstance(made, nn.Module):
        raise UserError(f"{where} gives a {type(made).__name__}; expected a torch.nn.Module")
    return OwnNetwork(made, dimension, where).eval().requires_grad_(False)
