"""The base class of all networks, and the network of a custom encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from ...storage.common.errors import UserError
from .layers import FoldedConv


@dataclass(frozen=True)
class PublishedFile:
    """A file of weights that its authors published."""

    sources: tuple[str, ...]
    """URLs, tried in turn; empty if the authors only offer a page from which to download it by hand."""
    sha256: str | None = None
    """None if no source publishes it: the hash of the first download is then recorded, and a message reports it."""
    size_bytes: int | None = None
    page: str = ""
    """Address of the authors' page that offers the file."""


class Network(nn.Module):
    """A network that turns frames into features.

    Fill it with weights, then call ``fold`` once, then ``to`` and ``forward``. To train it, call ``make_trainable``
    after ``fold``.
    """

    published: ClassVar[dict[str, PublishedFile]]
    """{name of the file in a profile: where it is published}"""
    ignored_entries: ClassVar[tuple[str, ...]] = ()
    """Prefixes of entries of the published file that the network does not need."""
    classifier: ClassVar[str | None] = None
    """Name of the layer with one output for each class of the training set; None if there is none."""
    without_features: ClassVar[tuple[str, ...]] = ()
    """Parts that no feature depends on, such as a classifier."""
    batch_sizes: ClassVar[dict[str, int]]
    """Best batch size, in windows, for "cpu" and "cuda"."""
    has_many_kernels: ClassVar[bool] = False
    """True if launching kernels one by one on the host takes longer than a GPU needs for a whole batch."""
    libraries: tuple[str, ...] = ()
    """Packages that define the network. A store records their versions."""
    frame_vector_width: ClassVar[int] = 0
    """Width of the vector of a whole frame that ``with_frame_vectors`` puts before a map; 0 if there is none."""
    texts: str = ""
    """How texts must be prepared for comparison with the features, recorded in a store; empty if unknown."""
    random_gain: float = 1.0
    """Gain of random convolutions (see ``weights.load_random``). 1 suits residual networks, whose branches add up."""

    @classmethod
    def of_folder(cls, folder: Path) -> "Network":
        """Return the network that a model's folder describes, without weights.

        Raises:
            UserError: The folder describes another model, or the network's weights are published as files only.
        """
        raise UserError(f"weights {folder}: a folder; expected a file of weights")

    def fold(self) -> "Network":
        """Fold batch norms into convolutions; return self."""
        return self

    def make_trainable(self) -> "Network":
        """Make all weights trainable and remove layers that do not affect the features; return self.

        Call it after ``fold``: the statistics of batch norms are then frozen in the weights of the convolutions.
        """
        for name in self.without_features:
            if hasattr(self, name):
                setattr(self, name, None)
        for module in self.modules():
            if isinstance(module, FoldedConv):
                module.make_trainable()
        return self.requires_grad_(True)

    def make_fixed(self) -> "Network":
        """Undo ``make_trainable``, except that removed layers stay removed; return self."""
        for module in self.modules():
            if isinstance(module, FoldedConv):
                module.make_fixed()
        return self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 features [B, D] of normalised float or bfloat16 frames [B, 3, (T,) H, W]."""
        raise NotImplementedError

    def with_frame_vectors(self, x: Tensor) -> Tensor:
        """Return each whole frame's vector, followed by the result of ``forward``: [B, frame_vector_width + D]."""
        raise NotImplementedError


class CustomNetwork(Network):
    """A user's own module as a network (``encoders.custom``).

    ``forward``: normalised frames [B, 3, (T,) H, W] -> features [B, D], float32. Raises ``UserError`` for another
    shape of features.
    """

    batch_sizes: ClassVar = {"cpu": 4, "cuda": 32}

    def __init__(self, network: nn.Module, dimension: int, where: str) -> None:
        """Wrap a network with ``dimension`` outputs a row; ``where`` names its origin in messages."""
        super().__init__()
        self.network, self._dimension, self._where = network, dimension, where

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        features = self.network(x)
        if not isinstance(features, Tensor) or features.shape != (len(x), self._dimension):
            given = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(
                f"{self._where} returns {given}; expected [{len(x)}, {self._dimension}] for {list(x.shape)}"
            )
        return features.float()


def custom_network(made: object, dimension: int, where: str) -> CustomNetwork:
    """Wrap the return value of the user's function as a network. Raises ``UserError`` if it is not one."""
    if not isinstance(made, nn.Module):
        raise UserError(f"{where} returns a {type(made).__name__}; expected a torch.nn.Module")
    return CustomNetwork(made, dimension, where).eval().requires_grad_(False)
