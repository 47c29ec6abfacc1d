"""Five strong models that the default should not be behind:
``python tests/benchmarks/baselines.py FOLDER --sets SET:FEATURES,...``, where FOLDER has prepared data sets
(``made_sets.py``, ``planted_sets.py``, or the demo's).

Four are solved, in plain numpy:

- ``ridge``: ridge regression from a clip's mean to the TF-IDF of its captions' words; the score is a cosine.
- ``cca``: regularised canonical correlations of both, directions weighted by powers of their correlations.
- ``ridge+cca``: the sum of both.
- ``rows``: for each word the discriminant direction between the rows of clips whose captions have it and all rows; a
  word's score is the soft maximum over rows, a caption's their sum, weighted by TF-IDF.
- ``bag``: words in any order and the mean row, each through a linear layer, trained by InfoNCE.

With ``--text-encoder`` there is one more, ``ridge+sentences``: ridge regression to the words and to the encoder's
sentence vectors. A clip is its mean, or its mean and its maximum, whichever is better on validation, as are strengths,
powers, sharpness, learning rate, weight decay and number of steps. Without a validation split it is a tenth of the
training videos, those that ``vlalign-train`` holds out with seed 0. The test split is asked once.

Ranks of the right clip for each test caption are in ``FOLDER/SET/baselines/FEATURES.npz``.
"""

import argparse
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
BATCH, WIDTH = 128, 256
CHECKS = (50, 100, 200, 400)
"""Numbers of steps to choose from."""
RATES, DECAYS = (1e-3, 3e-3), (1e-3, 1e-1)
HELD_OUT = 0.1
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""In mean variances of a clip's numbers."""
CLIP_PENALTIES, WORD_PENALTIES, POWERS = (0.1, 0.3, 1.0, 3.0), (0.5, 2.0, 8.0, 32.0), (1.0, 2.0, 3.0)
SHARPNESSES = (0.0, 1.0, 2.0, 4.0)
POOLINGS = ("mean", "mean and maximum")
MODELS = ("ridge", "cca", "ridge+cca", "rows", "bag")


@dataclass(frozen=True)
class Part:
    """Clips and their captions."""

    rows: Tensor
    """Standardised features [C, M, F], 0 at padding."""
    mask: Tensor
    texts: list[str]
    """Captions."""
    words: list[list[int]]
    """Different words of each caption, numbered from 0."""
    clip_of: np.ndarray
    """Index of each caption's clip."""

    def __getitem__(self, clips: Sequence[int]) -> "Part":
        new = {clip: index for index, clip in enumerate(clips)}
        kept = [i for i, clip in enumerate(self.clip_of) if clip in new]
        texts, words = [self.texts[i] for i in kept], [self.words[i] for i in kept]
        return Part(
            self.rows[list(clips)],
            self.mask[list(clips)],
            texts,
            words,
            np.array([new[self.clip_of[i]] for i in kept]),
        )

    def clips(self, pooling: str) -> np.ndarray:
        mean = mean_of(self.rows, self.mask)
        largest = self.rows.masked_fill(~self.mask[:, :, None], -torch.inf).amax(dim=1)
        return (mean if pooling == "mean" else torch.cat([mean, largest], dim=1)).double().numpy()


@dataclass(frozen=True)
class Data:
    """A data set, split."""

    train: Part
    validation: Part
    test: Part
    num_words: int

    @property
    def idf(self) -> np.ndarray:
        counts = np.bincount([word for of in self.train.words for word in of], minlength=self.num_words)
        return np.log(len(self.train.words) / np.maximum(counts, 1))

    def tf_idf(self, part: Part) -> np.ndarray:
        y, idf = np.zeros((len(part.words), self.num_words)), self.idf
        for row, words in enumerate(part.words):
            y[row, words] = idf[words]
        return unit(y)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def mean_of(x_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    return (x_BLD * mask_BL[:, :, None]).sum(dim=1) / mask_BL.sum(dim=1, keepdim=True).clamp(min=1)


def read(root: Path, name: str, features: str, seed: int = 0) -> Data:
    dataset = DatasetFolder(root, name)
    clips = ClipFeatures(open_stores(dataset, features, recordings=False).features)
    with Problems(quiet=True) as problems:
        pairs = read_pairs(dataset, clips, problems)
    known = sorted({word.lower() for caption in pairs["train"].captions for word in caption.words})
    index = {word: number for number, word in enumerate(known)}
    parts: dict[str, Part] = {}
    center = scale = torch.zeros(())
    for split, of_split in pairs.items():
        if not len(of_split.clips):
            continue
        rows, mask = pad_rows(clips.rows(of_split.clips, MOST_ROWS), clips.dim)
        rows = rows.float()
        if split == "train":
            center, scale = rows[mask].mean(dim=0), rows[mask].std(dim=0).clamp(min=1e-6)
        words = [
            list(dict.fromkeys(index[w.lower()] for w in c.words if w.lower() in index)) for c in of_split.captions
        ]
        rows = (rows - center) / scale * mask[:, :, None]
        texts = [caption.caption for caption in of_split.captions]
        parts[split] = Part(rows, mask, texts, words, np.array(of_split.clip_of_caption))
    if "validation" not in parts:
        video_of, ids = pairs["train"].clips.video, sorted(pairs["train"].clips.video_ids)
        drawn = random.Random(f"{seed} validation").sample(ids, max(round(HELD_OUT * len(ids)), 1))
        held = {index for index, video_id in enumerate(pairs["train"].clips.video_ids) if video_id in set(drawn)}
        of_held = [i for i, video in enumerate(video_of) if video in held]
        rest = [i for i, video in enumerate(video_of) if video not in held]
        parts |= {"validation": parts["train"][of_held], "train": parts["train"][rest]}
    return Data(parts["train"], parts["validation"], parts["test"], len(known))


def ranks(scores: np.ndarray, part: Part) -> np.ndarray:
    """Rank of the right clip for each caption; a tie counts as half."""
    right = scores[np.arange(len(scores)), part.clip_of][:, None]
    return 1 + (scores > right).sum(axis=1) + ((scores == right).sum(axis=1) - 1) / 2


@dataclass(frozen=True)
class Tried:
    """Scores of a model with one choice of its settings."""

    validation: np.ndarray
    test: np.ndarray
    how: str


def best_of(tried: Iterator[Tried], data: Data) -> Tried:
    """The one with the highest mean reciprocal rank on validation."""
    return max(tried, key=lambda of: float((1 / ranks(of.validation, data.validation)).mean()))


def both(data: Data, score, how: str) -> Tried:
    return Tried(score(data.validation), score(data.test), how)


def centered_clips(data: Data, pooling: str, part: Part) -> np.ndarray:
    x = data.train.clips(pooling)
    return (part.clips(pooling) - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-6)


def caption_means(data: Data, y: np.ndarray) -> np.ndarray:
    """The mean of each training clip's captions."""
    counts = np.bincount(data.train.clip_of, minlength=len(data.train.rows))
    means = np.zeros((len(counts), y.shape[1]))
    np.add.at(means, data.train.clip_of, y)
    return means / counts[:, None]


def ridges(data: Data, targets: np.ndarray, of_captions) -> Iterator[Tried]:
    """Ridge regression from clips to numbers of their captions, and its cosine with these of a caption."""
    y = caption_means(data, targets)
    for pooling in POOLINGS:
        x = centered_clips(data, pooling, data.train)
        values, vectors = np.linalg.eigh(x @ x.T / len(x) if len(x) < x.shape[1] else x.T @ x / len(x))
        of_values = np.maximum(values, 0)
        total = of_values.sum() / x.shape[1]
        for strength in RIDGES:
            if len(x) < x.shape[1]:  # the same in the space of clips
                inner = (vectors / (of_values + strength * total)) @ vectors.T
                weights = x.T @ inner @ (y - y.mean(axis=0)) / len(x)
            else:
                weights = (vectors / (of_values + strength * total)) @ vectors.T @ x.T @ (y - y.mean(axis=0)) / len(x)

            def score(part: Part, pooling: str = pooling, weights: np.ndarray = weights) -> np.ndarray:
                return unit(of_captions(part)) @ unit(centered_clips(data, pooling, part) @ weights).T

            yield both(data, score, f"{pooling}, strength {strength:g}")


def ridge(data: Data) -> Tried:
    return best_of(ridges(data, data.tf_idf(data.train), data.tf_idf), data)


def ccas(data: Data) -> Iterator[Tried]:
    y_all = data.tf_idf(data.train)
    share = 1 / np.bincount(data.train.clip_of)[data.train.clip_of] / len(data.train.rows)
    mean = share @ y_all
    y = y_all - mean
    yy = (y * share[:, None]).T @ y
    for pooling in POOLINGS:
        x = centered_clips(data, pooling, data.train)
        left, values, right = np.linalg.svd(x, full_matrices=False)
        kept = values > 1e-6 * values[0]
        z, variances, back = left[:, kept] * values[kept], values[kept] ** 2 / len(x), right[kept].T
        zy = (z[data.train.clip_of] * share[:, None]).T @ y
        for of_words in WORD_PENALTIES:
            solved = np.linalg.solve(yy + of_words * np.trace(yy) / len(yy) * np.eye(len(yy)), zy.T)
            for of_clips in CLIP_PENALTIES:
                white = (variances + of_clips * variances.sum() / x.shape[1]) ** -0.5
                squares, directions = np.linalg.eigh(white[:, None] * (zy @ solved) * white)
                squares, directions = squares[::-1][:WIDTH], directions[:, ::-1][:, :WIDTH]
                correlations = np.sqrt(np.maximum(squares, 1e-12))
                a = white[:, None] * directions
                b = solved @ a / correlations
                a = back @ a
                for power in POWERS:

                    def score(part: Part, pooling=pooling, a=a, b=b, weight=correlations ** (power / 2)) -> np.ndarray:
                        texts = (data.tf_idf(part) - mean) @ b * weight
                        return unit(texts) @ unit(centered_clips(data, pooling, part) @ a * weight).T

                    yield both(data, score, f"{pooling}, clips {of_clips:g}, words {of_words:g}, power {power:g}")


def cca(data: Data) -> Tried:
    return best_of(ccas(data), data)


def sums(first: Tried, second: Tried) -> Iterator[Tried]:
    for share in (0.25, 0.5, 0.75):

        def total(one: np.ndarray, other: np.ndarray, share: float = share) -> np.ndarray:
            return share * one / one.std() + (1 - share) * other / other.std()

        yield Tried(
            total(first.validation, second.validation), total(first.test, second.test), f"{share:g} of the first"
        )


def rows(data: Data) -> Tried:
    return best_of(row_detectors(data), data)


def row_detectors(data: Data) -> Iterator[Tried]:
    train = data.train
    flat = train.rows[train.mask].double().numpy()
    covariance = np.cov(flat[:: max(len(flat) // 50_000, 1)].T)
    values, vectors = np.linalg.eigh(covariance)
    means = mean_of(train.rows, train.mask).double().numpy()
    has = np.zeros((data.num_words, len(train.rows)))
    for words, clip in zip(train.words, train.clip_of, strict=True):
        has[words, clip] += 1
    has /= np.bincount(train.clip_of)
    differences = (has @ (means - means.mean(axis=0))) / (has.sum(axis=1, keepdims=True) + 2)
    for strength in (0.05, 0.5):
        white = vectors / np.sqrt(np.maximum(values, 0) + strength * values.mean())
        directions = torch.from_numpy(unit(differences @ white)).float()
        turned = torch.from_numpy(white).float()
        for sharpness in SHARPNESSES:

            def score(part: Part, directions=directions, turned=turned, sharpness=sharpness) -> np.ndarray:
                found = []
                for first in range(0, len(part.rows), 32):
                    mask = part.mask[first : first + 32]
                    fits = torch.einsum("vd,bmd->vbm", directions, part.rows[first : first + 32] @ turned)
                    if sharpness:
                        whole = (fits * sharpness).masked_fill(~mask, -torch.inf).logsumexp(dim=2) / sharpness
                        whole = whole - mask.sum(dim=1).log() / sharpness
                    else:
                        whole = (fits * mask).sum(dim=2) / mask.sum(dim=1)
                    found.append(whole)
                return data.tf_idf(part) @ torch.cat(found, dim=1).double().numpy()

            yield both(data, score, f"strength {strength:g}, sharpness {sharpness:g}")


class Bag(nn.Module):
    """Cosine of a text's vector and a video's, times a learned factor."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.66))  # 1 / 0.07
        self.words = nn.EmbeddingBag(data.num_words + 1, WIDTH, padding_idx=data.num_words)
        self.rows = nn.Linear(data.train.rows.shape[2], WIDTH)

    def forward(self, words_TN: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        texts, videos = self.words(words_TN), self.rows(mean_of(rows, mask))
        return self.log_scale.exp() * F.normalize(texts, dim=1) @ F.normalize(videos, dim=1).T


def padded(words: Sequence[list[int]], padding: int) -> Tensor:
    longest = max(1, *map(len, words))
    return torch.tensor([of + [padding] * (longest - len(of)) for of in words])


def asked(model: Bag, padding: int, part: Part) -> np.ndarray:
    return model(padded(part.words, padding), part.rows, part.mask).numpy()


def bags(data: Data, seed: int) -> Iterator[Tried]:
    for rate, decay in itertools.product(RATES, DECAYS):
        torch.manual_seed(seed)
        rng, model, part = np.random.default_rng(seed), Bag(data), data.train
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
        captions: list[list[int]] = [[] for _ in part.rows]
        for caption, clip in enumerate(part.clip_of):
            captions[clip].append(caption)
        order = np.zeros(0, dtype=np.int64)
        for step in range(1, max(CHECKS) + 1):
            size = min(BATCH, len(part.rows))
            order = order if len(order) >= size else rng.permutation(len(part.rows))
            clips, order = order[:size], order[size:]
            words = padded([part.words[rng.choice(captions[clip])] for clip in clips], data.num_words)
            logits, right = model(words, part.rows[clips], part.mask[clips]), torch.arange(size)
            loss = F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step in CHECKS:
                with torch.no_grad():
                    how = f"rate {rate:g}, decay {decay:g}, {step} steps"
                    yield both(data, partial(asked, model, data.num_words), how)


def bag(data: Data, seed: int = 0) -> Tried:
    return best_of(bags(data, seed), data)


def run(data: Data, encoder: str | None = None) -> dict[str, Tried]:
    """Every model's best."""
    found = {"ridge": ridge(data), "cca": cca(data)}
    found["ridge+cca"] = best_of(sums(found["ridge"], found["cca"]), data)
    found |= {"rows": rows(data), "bag": bag(data)}
    if encoder is not None:
        from sentence_vectors import sentence_vectors

        mean = sentence_vectors(encoder, data.train.texts).mean(axis=0)

        def vectors(part: Part) -> np.ndarray:
            return unit(sentence_vectors(encoder, part.texts) - mean)

        sentences = best_of(ridges(data, vectors(data.train), vectors), data)
        found["ridge+sentences"] = best_of(itertools.chain([sentences], sums(found["ridge"], sentences)), data)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", required=True, help="such as demo:s3d,made-few:planted")
    parser.add_argument("--text-encoder", help="folder of a model of sentence-transformers")
    args = parser.parse_args()
    for name, features in [of.split(":") for of in args.sets.split(",")]:
        start, data = time.perf_counter(), read(args.folder, name, features)
        found = run(data, args.text_encoder)
        path = args.folder / name / "baselines" / f"{features}.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **{model: ranks(of.test, data.test) for model, of in found.items()})
        for model, of in found.items():
            valid, test = (
                100 * (r < 2).mean() for r in (ranks(of.validation, data.validation), ranks(of.test, data.test))
            )
            print(f"{name}:{features} {model}: validation {valid:.1f}, test {test:.1f} ({of.how})", flush=True)
        print(f"{name}:{features}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
