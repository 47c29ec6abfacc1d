"""NCL's queues of training queries."""

import torch
from torch import Tensor, nn


class QueryQueue(nn.Module):
    """The last training queries of each kind, kept with the model (NCL section 3.4).

    At test time they stand in for the test queries, which a query must not know.
    """

    texts: Tensor
    videos: Tensor
    pushed: Tensor

    def __init__(self, length: int, width: int) -> None:
        """Make an empty queue of ``length`` vectors [width] of each kind."""
        super().__init__()
        self.register_buffer("texts", torch.zeros(length, width))
        self.register_buffer("videos", torch.zeros(length, width))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, text_BD: Tensor, video_BD: Tensor) -> None:
        """Add a batch's vectors in place of the oldest ones."""
        num_pushed = min(len(text_BD), len(self.texts))
        slots = (self.pushed + torch.arange(num_pushed, device=self.texts.device)) % len(self.texts)
        self.texts[slots] = text_BD[-num_pushed:].to(self.texts)
        self.videos[slots] = video_BD[-num_pushed:].to(self.videos)
        self.pushed += num_pushed

    def kept(self) -> tuple[Tensor, Tensor]:
        """Return the kept texts and videos, each [K, D]; K is less than ``length`` until the queue is full."""
        num_kept = min(int(self.pushed), len(self.texts))
        return self.texts[:num_kept], self.videos[:num_kept]
