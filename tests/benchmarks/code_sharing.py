"""When both modalities share CMCM's codewords: ``python tests/benchmarks/code_sharing.py RESULTS [--only NAME,NAME]``.

Encoders are frozen: a clip's tokens and a caption's are drawn, and f, f_high and f_code are trained with the codebook,
as after the paper's warm start. There are K concepts, each with a vector of its own for each modality; few are frequent
(Zipf). A pair has some of them, the same on both sides, and noise. Each row of the sweep changes one thing. Sharing and
precision are counted on pairs held out.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from vlalign.storage.common.files import read_jsonl
from vlalign.train.distributed import Workers
from vlalign.train.evaluation.codewords import Uses, sharing
from vlalign.train.losses import code_log_probabilities, code_matching, code_similarity, masked_margin_softmax
from vlalign.train.models.codebook import SharedCodebook, quantize
from vlalign.train.models.tokens import TextTokens, TokenSizes, VideoTokens


@dataclass(frozen=True)
class Row:
    """A row of the sweep."""

    codewords: int = 256
    concepts: int = 500
    in_pair: int = 3
    """Concepts of a pair."""
    tokens: int = 6
    """Tokens of each side."""
    noise: float = 1.0
    """Of each number of a token; those of concepts have a variance of 1."""
    zipf: float = 1.0
    """Exponent of the concepts' frequencies; 0: all are as frequent."""
    width: int = 32
    """D of the shared space."""
    distances: float = 1.0
    """Factor of the distances between tokens and codewords in the code matching loss; the paper has none."""
    batch: int = 128
    steps: int = 500
    alpha: float = 0.1
    rate: float = 1e-3
    seed: int = 0


INPUT = 128
BASE = Row()
ROWS = {
    "base": BASE,
    "alpha 0": replace(BASE, alpha=0.0),
    "alpha 1": replace(BASE, alpha=1.0),
    "16 codewords": replace(BASE, codewords=16),
    "64 codewords": replace(BASE, codewords=64),
    "1,024 codewords": replace(BASE, codewords=1024),
    "20 concepts": replace(BASE, concepts=20),
    "100 concepts": replace(BASE, concepts=100),
    "2,000 concepts": replace(BASE, concepts=2000),
    "equally frequent": replace(BASE, zipf=0.0),
    "1 concept in a pair": replace(BASE, in_pair=1),
    "batch 32": replace(BASE, batch=32),
    "batch 512": replace(BASE, batch=512),
    "noise 0.3": replace(BASE, noise=0.3),
    "noise 2": replace(BASE, noise=2.0),
    "128 dimensions": replace(BASE, width=128),
    "1,024 dimensions": replace(BASE, width=1024),
    "1,024 dimensions, alpha 1": replace(BASE, width=1024, alpha=1.0),
    "1,024 dimensions, distances / 5.7": replace(BASE, width=1024, distances=32**-0.5),
    "1,024 dimensions, distances / 5.7, alpha 1": replace(BASE, width=1024, distances=32**-0.5, alpha=1.0),
    "1,024 codewords, alpha 1": replace(BASE, codewords=1024, alpha=1.0),
    "1,024 codewords, 2,000 steps": replace(BASE, codewords=1024, steps=2000),
    "rate 1e-4": replace(BASE, rate=1e-4),
    "2,000 steps": replace(BASE, steps=2000),
}


class Pairs:
    """Draws pairs of clips and captions."""

    def __init__(self, row: Row) -> None:
        rng = np.random.default_rng(row.seed)
        self.vectors = rng.normal(size=(2, row.concepts, INPUT)).astype(np.float32)
        frequency = 1 / np.arange(1, row.concepts + 1) ** row.zipf
        self.frequency, self.row = frequency / frequency.sum(), row

    def draw(self, rng: np.random.Generator, number: int) -> tuple[Tensor, Tensor, np.ndarray]:
        """Return the tokens of both sides, [2, B, L, D], and the concept of each."""
        row = self.row
        of_pair = rng.choice(row.concepts, (number, row.in_pair), p=self.frequency)
        which = rng.integers(row.in_pair, size=(2, number, row.tokens))
        concepts = np.take_along_axis(np.stack([of_pair, of_pair]), which, axis=2)
        tokens = np.stack([self.vectors[side][concepts[side]] for side in (0, 1)])
        tokens += row.noise * rng.normal(size=tokens.shape).astype(np.float32)
        return torch.from_numpy(tokens[0]), torch.from_numpy(tokens[1]), concepts


def run(row: Row) -> dict[str, float]:
    """Train a codebook and return what was found."""
    torch.manual_seed(row.seed)
    workers, generator = Workers(), torch.Generator().manual_seed(row.seed)
    codebook = SharedCodebook(TokenSizes(row.width, text=INPUT, video=INPUT), row.codewords)
    codebook.high = torch.nn.ModuleDict({side: torch.nn.Linear(INPUT, row.width) for side in ("text", "video")})
    optimizer = torch.optim.Adam(codebook.parameters(), lr=row.rate)
    pairs, rng, started = Pairs(row), np.random.default_rng(row.seed + 1), time.monotonic()
    losses = []
    for _ in range(row.steps):
        clips, captions, _ = pairs.draw(rng, row.batch)
        video, text = (quantize(codebook, side, workers) for side in (of_clips(clips), of_captions(captions)))
        similarity = text.vector_BD @ video.vector_BD.T / row.width**0.5
        loss = (masked_margin_softmax(similarity) + masked_margin_softmax(similarity.T)) / 2
        logs = [
            code_log_probabilities(row.distances * side.tokens_BLD, side.mask_BL, row.distances * codebook.codewords)
            for side in (text, video)
        ]
        codes = code_similarity(text_TV=logs[0], video_CV=logs[1])
        code_loss = (code_matching(codes) + code_matching(codes.T)) / 2
        optimizer.zero_grad()
        (loss + row.alpha * code_loss).backward()
        codebook.update(torch.cat([text.tokens_TD, video.tokens_TD]).detach(), workers, generator)
        optimizer.step()
        losses.append(float(code_loss.detach()))
    found = measure(codebook, pairs, np.random.default_rng(999))
    return found | {"code_loss": float(np.mean(losses[-20:])), "seconds": time.monotonic() - started}


@torch.no_grad()
def measure(codebook: SharedCodebook, pairs: Pairs, rng: np.random.Generator) -> dict[str, float]:
    """Return sharing, precision and recall at 1 of 1,000 pairs held out."""
    codebook.eval()
    clips, captions, concepts = pairs.draw(rng, 1000)
    video, text = (quantize(codebook, side, Workers()) for side in (of_clips(clips), of_captions(captions)))
    codes = [codebook.nearest(side.tokens_BLD).numpy() for side in (video, text)]
    shared = sharing(Uses(list(codes[0]), list(codes[1]), []), codebook.size)
    right = (text.vector_BD @ video.vector_BD.T).argmax(dim=1) == torch.arange(1000)
    return {
        "live": shared["live"],
        "joint": 100 * shared["joint"],
        "joint_uses": 100 * uses_of_joint(codes, codebook.size),
        "precision": 100 * float(np.mean(list(precisions(codes[0], concepts[0])))),
        "R@1": 100 * float(right.float().mean()),
    }


def uses_of_joint(codes: list[np.ndarray], size: int) -> float:
    """Return the share of the uses that are of codewords which both sides use (neither more than 90 %)."""
    counts = np.stack([np.bincount(side.ravel(), minlength=size) for side in codes]).astype(float)
    part = counts[0] / np.maximum(counts.sum(axis=0), 1)
    return float(counts[:, (part <= 0.9) & (part >= 0.1)].sum() / counts.sum())


def precisions(codes: np.ndarray, concepts: np.ndarray) -> Iterator[float]:
    """Yield the share of each codeword's rows that are of its most frequent concept."""
    for code in np.unique(codes):
        yield np.bincount(concepts[codes == code]).max() / (codes == code).sum()


def of_clips(tokens: Tensor) -> VideoTokens:
    """Return the tokens of clips."""
    return VideoTokens(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))


def of_captions(tokens: Tensor) -> TextTokens:
    """Return the tokens of captions, whose summary is their mean."""
    mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
    return TextTokens(tokens, mask, torch.zeros(tokens.shape[:2]), whole_BD=tokens.mean(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", help="rows, joined by ;")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = {row["name"]: row for row in read_jsonl(args.results)} if args.results.exists() else {}
    for name in args.only.split(";") if args.only else ROWS:
        if name not in known:
            known[name] = {"name": name, **run(ROWS[name]), "settings": asdict(ROWS[name])}
            with args.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(known[name]) + "\n")
    columns = ("live", "joint", "joint_uses", "precision", "R@1", "code_loss", "seconds")
    print(f"{'':<32}" + "".join(f"{name:>12}" for name in columns))
    for name, row in known.items():
        print(f"{name:<32}" + "".join(f"{row[column]:>12.1f}" for column in columns))


if __name__ == "__main__":
    main()
