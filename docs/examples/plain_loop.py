"""A plain PyTorch loop on the features and captions of a data set.

Make the demo (``make demo``), or prepare a data set of your own; then, with its folder and the name of its features:

    python docs/examples/plain_loop.py vlalign_data/demo s3d
"""

import sys
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader
from vlalign.storage import open_store, read_captions
from vlalign.train import ClipDataset
from vlalign.train.losses import LearnedTemperature, symmetric_nce
from vlalign.train.metrics import retrieval_metrics

NUM_WORDS, WIDTH = 4096, 128


class Model(nn.Module):
    """The mean of a caption's word vectors, and of a clip's rows after one layer."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        self.rows = nn.Sequential(nn.LayerNorm(dimension), nn.Linear(dimension, WIDTH))
        self.temperature = LearnedTemperature()

    def encode_text(self, captions: list[str]) -> Tensor:
        words = [[crc32(word.encode()) % NUM_WORDS for word in caption.lower().split()] for caption in captions]
        return normalize(torch.stack([self.words(torch.tensor(ids)).mean(dim=0) for ids in words]), dim=1)

    def encode_video(self, features: Tensor, mask: Tensor) -> Tensor:
        return normalize((self.rows(features) * mask[:, :, None]).sum(dim=1), dim=1)


def main(folder: Path, features: str, num_epochs: int = 20) -> None:
    store, captions = open_store(folder / "features" / features), read_captions(folder / "captions")
    train, test = (ClipDataset(store, captions, split=split, max_rows=32) for split in ("train", "test"))
    model = Model(store.profile.dimension)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(num_epochs):
        losses = []
        for batch in DataLoader(train, batch_size=64, shuffle=True, collate_fn=train.collate):
            text, video = model.encode_text(batch["caption"]), model.encode_video(batch["features"], batch["mask"])
            loss = symmetric_nce(model.temperature(text @ video.T))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")

    with torch.no_grad():
        every = test.collate([test[i] for i in range(len(test))])
        similarity = model.encode_text(every["caption"]) @ model.encode_video(every["features"], every["mask"]).T
    # A clip with several captions is ranked once.
    _, columns, clip_of_caption = np.unique(every["clip_id"], return_index=True, return_inverse=True)
    found = retrieval_metrics(similarity[:, columns].numpy(), clip_of_caption)["text_to_video"]
    print(f"test: R@1 {found['R@1']:.1f} (chance {found['chance']['R@1']:.1f})")


if __name__ == "__main__":
    torch.manual_seed(0)
    main(Path(sys.argv[1]), sys.argv[2])
