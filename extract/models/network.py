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
    """None if no source states it: the hash of the first download is then recorded, and a message reports it."""
    size_bytes: int | None = None
    page: str = ""
    """Address of the page on which the authors offer it."""


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
    """The layer whose width is the number of classes of a data set; None if there is none."""
    without_features: ClassVar[tuple[str, ...]] = ()
    """Parts that no feature depends on, such as a classifier."""
    batch_sizes: ClassVar[dict[str, int]]
    """Number of windows that are best computed together, for "cpu" and "cuda"."""
    has_many_kernels: ClassVar[bool] = False
    """True if launching kernels one by one on the host takes longer than a GPU needs for a whole batch."""
    libraries: tuple[str, ...] = ()
    """Packages that define the network. A store records their versions."""
    frame_vector_width: ClassVar[int] = 0
    """Width of the vector of a whole frame that ``with_frame_vectors`` puts before a map; 0 if there is none."""
    texts: str = ""
    """Preparation of the texts whose vectors are compared with the features, recorded in a store; empty if unknown."""
    random_gain: float = 1.0
    """Factor of random weights (see ``weights.load_random``). 1 suits networks of residual branches, which add up."""

    @classmethod
    def of_folder(cls, folder: Path) -> "Network":
        """Return the network, without weights, that a folder of a model describes.

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
        """Undo ``make_trainable``, but for the removed parts: the weights are only run; return self."""
        for module in self.modules():
            if isinstance(module, FoldedConv):
                module.make_fixed()
        return self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 features [B, D] of normalised float or bfloat16 frames [B, 3, (T,) H, W]."""
        raise NotImplementedError

    def with_frame_vectors(self, x: Tensor) -> Tensor:
        """Return the result of ``forward`` after a vector of each whole frame: [B, frame_vector_width + D]."""
        raise NotImplementedError


class CustomNetwork(Network):
    """A network of the user's own module (``encoders.custom``).

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
