"""Three simple models that a default should beat:
``python tests/benchmarks/baselines.py FOLDER --sets SET:FEATURES,...``, where FOLDER
has prepared data sets (``planted_sets.py``, or the demo's).

- ``bag``: words in any order and the mean row, each through a linear layer; cosine with a learned temperature.
- ``gated``: a gated embedding of the words and one of the mean of each feature; the words decide how much each feature
  counts (CE, Liu et al. 2019).
- ``transformer``: two self-attention layers over the words and one over the rows; cosine with a learned temperature.

Learning rate, weight decay and number of steps are those with the best R@1 on the validation split, or, without one, on
a tenth of the training videos (drawn by the seed). The test split is asked once, with these. With ``--tune-once``, rate
and decay are those of the first seed; that takes a fourth of the time for each other seed.
"""

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.data.clip_features import ClipFeatures, pad_rows
from vlalign.train.data.pairs import read_pairs
from vlalign.train.data.stores import open_stores

MOST_ROWS = 64
BATCH = 128
WIDTH = 256
CHECKS = (50, 100, 200, 400)
"""Numbers of steps to choose from."""
RATES = (1e-3, 3e-3)
DECAYS = (1e-3, 1e-1)
HELD_OUT = 0.1


@dataclass(frozen=True)
class Part:
    """Clips and their captions."""

    rows: Tensor
    """Standardised features [C, M, F], 0 at padding."""
    mask: Tensor
    words: list[list[int]]
    """Of each caption; 0 is padding."""
    clip_of: list[int]

    def __getitem__(self, clips: Sequence[int]) -> "Part":
        new = {clip: index for index, clip in enumerate(clips)}
        kept = [i for i, clip in enumerate(self.clip_of) if clip in new]
        rows = self.rows[list(clips)], self.mask[list(clips)]
        return Part(*rows, [self.words[i] for i in kept], [new[self.clip_of[i]] for i in kept])


@dataclass(frozen=True)
class Data:
    """A data set, split."""

    train: Part
    validation: Part
    test: Part
    num_words: int
    widths: list[int]
    """Of each feature."""


class Pair(nn.Module):
    """Cosine of a text's vector and a video's, times a learned factor."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.66))  # 1 / 0.07

    def forward(self, words_TN: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        text_TD, video_VD = self.text(words_TN), self.video(rows, mask)
        return self.log_scale.exp() * F.normalize(text_TD, dim=1) @ F.normalize(video_VD, dim=1).T

    def text(self, words_TN: Tensor) -> Tensor:
        raise NotImplementedError

    def video(self, rows: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError


class Bag(Pair):
    def __init__(self, data: Data) -> None:
        super().__init__()
        self.words, self.rows = (
            nn.EmbeddingBag(data.num_words, WIDTH, padding_idx=0),
            nn.Linear(sum(data.widths), WIDTH),
        )

    def text(self, words_TN: Tensor) -> Tensor:
        return self.words(words_TN)

    def video(self, rows: Tensor, mask: Tensor) -> Tensor:
        return self.rows(mean(rows, mask))


class Gate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.gate = nn.Linear(width, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return F.normalize(x * torch.sigmoid(self.gate(x)), dim=-1)


class Gated(Pair):
    def __init__(self, data: Data) -> None:
        super().__init__()
        self.widths, self.words = data.widths, nn.EmbeddingBag(data.num_words, WIDTH, padding_idx=0)
        self.texts = nn.ModuleList(Gate(WIDTH) for _ in data.widths)
        self.videos = nn.ModuleList(Gate(width) for width in data.widths)
        self.shares = nn.Linear(WIDTH, len(data.widths))

    def forward(self, words_TN: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        text_TD, shares_TE = self.words(words_TN), torch.softmax(self.shares(self.words(words_TN)), dim=1)
        parts = mean(rows, mask).split(self.widths, dim=1)
        experts = zip(self.texts, self.videos, parts, shares_TE.T, strict=True)
        return self.log_scale.exp() * sum(share[:, None] * (t(text_TD) @ v(part).T) for t, v, part, share in experts)


class Transformer(Pair):
    def __init__(self, data: Data) -> None:
        super().__init__()
        self.words = nn.Embedding(data.num_words, WIDTH, padding_idx=0)
        self.rows = nn.Linear(sum(data.widths), WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(256, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, WIDTH * 2, batch_first=True, norm_first=True) for _ in range(3)
        )

    def text(self, words_TN: Tensor) -> Tensor:
        lengths = (words_TN > 0).sum(dim=1)
        order = lengths.argsort()
        # Texts of like lengths together: paragraphs of 20 to 256 words would be mostly padding.
        vectors = [self._encode(words_TN[of, : lengths[of].max()]) for of in order.split(16)]
        return torch.cat(vectors)[order.argsort()]

    def _encode(self, words_TN: Tensor) -> Tensor:
        x, mask = self.words(words_TN) + self.places[: words_TN.shape[1]], words_TN > 0
        for layer in list(self.layers)[:2]:
            x = layer(x, src_key_padding_mask=~mask)
        return mean(x, mask)

    def video(self, rows: Tensor, mask: Tensor) -> Tensor:
        x = self.rows(rows) + self.places[: rows.shape[1]]
        return mean(self.layers[2](x, src_key_padding_mask=~mask), mask)


MODELS: dict[str, type[Bag | Gated | Transformer]] = {"bag": Bag, "gated": Gated, "transformer": Transformer}


def mean(x_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    return (x_BLD * mask_BL[:, :, None]).sum(dim=1) / mask_BL.sum(dim=1, keepdim=True).clamp(min=1)


def padded(words: Sequence[list[int]]) -> Tensor:
    """Padded to the longest; a caption without a known word has word 1."""
    longest = max(map(len, words))
    return torch.tensor([(of or [1]) + [0] * (longest - max(len(of), 1)) for of in words])


def read(root: Path, name: str, features: str, seed: int) -> Data:
    dataset = DatasetFolder(root, name)
    clips = ClipFeatures(open_stores(dataset, features, recordings=False).features)
    with Problems(quiet=True) as problems:
        pairs = read_pairs(dataset, clips, problems)
    known = sorted({word.lower() for caption in pairs["train"].captions for word in caption.words})
    index = {word: number for number, word in enumerate(known, start=2)}  # 0: padding, 1: nothing known
    parts: dict[str, Part] = {}
    center = scale = torch.zeros(())
    for split, of_split in pairs.items():
        if not len(of_split.clips):
            continue
        rows, mask = pad_rows(clips.rows(of_split.clips, MOST_ROWS), clips.dim)
        rows = rows.float()
        if split == "train":
            center, scale = rows[mask].mean(dim=0), rows[mask].std(dim=0).clamp(min=1e-6)
        words = [[index[w.lower()] for w in c.words if w.lower() in index][:256] for c in of_split.captions]
        rows = (rows - center) / scale * mask[:, :, None]
        parts[split] = Part(rows, mask, words, [int(clip) for clip in of_split.clip_of_caption])
    if "validation" not in parts:
        video_of, num_videos = pairs["train"].clips.video, len(pairs["train"].clips.video_ids)
        held = set(random.Random(seed).sample(range(num_videos), max(round(HELD_OUT * num_videos), 1)))
        of_held = [i for i, video in enumerate(video_of) if video in held]
        rest = [i for i, video in enumerate(video_of) if video not in held]
        parts |= {"validation": parts["train"][of_held], "train": parts["train"][rest]}
    widths = [store.profile.dimension for store in clips.stores]
    return Data(parts["train"], parts["validation"], parts["test"], len(known) + 2, widths)


@torch.inference_mode()
def recall(model: Pair, part: Part) -> float:
    """R@1 of clips by caption, in percent; a tie counts as half."""
    model.eval()
    scores = model(padded(part.words), part.rows, part.mask)
    right = scores.gather(1, torch.tensor(part.clip_of)[:, None])
    model.train()
    return 100 * float(((scores > right).sum(dim=1) + ((scores == right).sum(dim=1) - 1) / 2 < 1).float().mean())


def train(data: Data, name: str, rate: float, decay: float, seed: int) -> tuple[float, float, int]:
    """Return R@1 on validation and on test, and the number of steps, where validation is best."""
    torch.manual_seed(seed)
    rng, model, part = np.random.default_rng(seed), MODELS[name](data), data.train
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    captions: list[list[int]] = [[] for _ in part.rows]
    for caption, clip in enumerate(part.clip_of):
        captions[clip].append(caption)
    best, order = (-1.0, 0.0, 0), np.zeros(0, dtype=np.int64)
    for step in range(1, max(CHECKS) + 1):
        size = min(BATCH, len(part.rows))
        order = order if len(order) >= size else rng.permutation(len(part.rows))
        clips, order = order[:size], order[size:]
        words = padded([part.words[rng.choice(captions[clip])] for clip in clips])
        longest = int(part.mask[clips].sum(dim=1).max())
        logits = model(words, part.rows[clips, :longest], part.mask[clips, :longest])
        right = torch.arange(size)
        loss = F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in CHECKS and (valid := recall(model, data.validation)) > best[0]:
            best = valid, recall(model, data.test), step
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", required=True, help="such as demo:s3d,planted-msrvtt:planted")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tune-once", action="store_true", help="rate and decay with the first seed only")
    args = parser.parse_args()
    for (name, features), model in itertools.product(
        [of.split(":") for of in args.sets.split(",")], args.models.split(",")
    ):
        tried = list(itertools.product(RATES, DECAYS))
        for seed in map(int, args.seeds.split(",")):
            start, data = time.perf_counter(), read(args.folder, name, features, seed)
            grid = {(rate, decay): train(data, model, rate, decay, seed) for rate, decay in tried}
            (rate, decay), (valid, test, steps) = max(grid.items(), key=lambda item: item[1][0])
            tried = [(rate, decay)] if args.tune_once else tried
            chosen = f"rate {rate:g}, decay {decay:g}, {steps} steps"
            seconds = time.perf_counter() - start
            print(
                f"{name}:{features} {model} seed {seed}: validation {valid:.1f}, test {test:.1f} "
                f"({chosen}; {seconds:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
