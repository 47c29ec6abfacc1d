"""What a training step costs: ``python tests/benchmarks/training.py FOLDER --annotations DIR``, where DIR has
YouCook2's official files.

Captions and clips have YouCook2's lengths. ``... FOLDER fusion`` runs one part: fusion, step, loop, rerank. FOLDER
keeps the data set and the run that loop and rerank make.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import planted
import torch
import torch.nn.functional as F
from helpers.training import make_trainer
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.data.text_encoders import small_tokenizer
from vlalign.train.distributed import Workers
from vlalign.train.evaluation.ranking import Weightings, rank_split
from vlalign.train.loop.validation import Validation
from vlalign.train.losses import cascade_scores, fusion_nce, hard_negatives, sentence_nce, token_nce, token_similarity
from vlalign.train.models.tokens import TextTokens, VideoTokens
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.objectives.batch import Batch
from vlalign.train.recipes.train_config import train_config
from vlalign.train.scoring.scorer import stage_scores

K, NEGATIVES, MAX_TEXT, MAX_VIDEO = 128, 8, 30, 48  # TACo section 4.3
WIDTH, HEADS, TEXT_LAYERS, FEATURES = 256, 4, 12, 1024
ROWS_A_SECOND = 1.5
TURNS = 3
CONFIG = train_config(dataset="youcook2", features="s3d", batch_size=K, num_negatives=NEGATIVES, dropout=0.0)
Inputs = dict[str, Tensor]


def make_inputs(annotations: Path, seed: int) -> Inputs:
    """A batch as long as K of YouCook2's training captions and clips, padded to what is allowed; every third word is of
    interest."""
    database = json.loads(next(annotations.rglob("youcookii_annotations_trainval.json")).read_text())["database"]
    clips = [clip for video in database.values() if video["subset"] == "training" for clip in video["annotations"]]
    rng = np.random.default_rng(seed)
    chosen = [clips[n] for n in rng.choice(len(clips), K, replace=False)]
    tokenizer = small_tokenizer(clip["sentence"] for clip in clips)
    encoded = tokenizer(
        [c["sentence"] for c in chosen], truncation=True, max_length=MAX_TEXT, padding="max_length", return_tensors="pt"
    )
    rows = [min(int(ROWS_A_SECOND * (c["segment"][1] - c["segment"][0])) + 1, MAX_VIDEO) for c in chosen]
    mask = torch.arange(MAX_VIDEO) < torch.tensor(rows)[:, None]
    weights = (torch.arange(MAX_TEXT) % 3 == 2) * encoded["attention_mask"].float()
    return {
        "input_ids": encoded["input_ids"],
        "attention_mask": encoded["attention_mask"],
        "token_weights": weights / weights.sum(1, keepdim=True).clamp(min=1),
        "rows": torch.from_numpy(rng.standard_normal((K, MAX_VIDEO, FEATURES), dtype=np.float32)),
        "mask": mask,
    }


def make_model() -> VideoTextModel:
    torch.manual_seed(0)
    shape = {
        "hidden_size": WIDTH,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH,
    }
    config = BertConfig(**shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    bert = BertModel(config, add_pooling_layer=False)
    return VideoTextModel(FEATURES, bert, num_video_layers=1, num_fusion_layers=2, dropout=0.0).train()


def naive_encode(model: VideoTextModel, inputs: Inputs) -> tuple[TextTokens, VideoTokens]:
    """All of the padding."""
    ids, attention_mask, mask = inputs["input_ids"], inputs["attention_mask"], inputs["mask"]
    tokens = model.text_encoder(input_ids=ids, attention_mask=attention_mask).last_hidden_state * model.scale
    x = model.project((inputs["rows"] - model.feature_mean) / model.feature_std) + model.positions[:MAX_VIDEO]
    for layer in model.video_layers:
        x = nn.TransformerEncoderLayer.forward(layer, x, src_key_padding_mask=~mask)
    return TextTokens(tokens, attention_mask.bool(), inputs["token_weights"]), VideoTokens(x * model.scale, mask)


def encode(model: VideoTextModel, inputs: Inputs) -> tuple[TextTokens, VideoTokens]:
    texts = model.encode_texts(inputs)
    return texts, model.encode_videos(inputs["rows"], inputs["mask"])


def naive_pairs(
    model: VideoTextModel, texts: TextTokens, videos: VideoTokens, text_of_P: Tensor, video_of_P: Tensor
) -> Tensor:
    """Scores of pairs, each [30 text tokens, 48 video tokens], through the whole of every layer."""
    fusion = model.fusion
    text = texts.tokens_BND / model.scale + fusion.types.weight[0] + fusion.positions.weight[:MAX_TEXT]
    video = (
        videos.tokens_BMD / model.scale
        + fusion.types.weight[1]
        + fusion.positions.weight[MAX_TEXT : MAX_TEXT + MAX_VIDEO]
    )
    x = fusion.norm(torch.cat([text[text_of_P], video[video_of_P]], dim=1))
    padding = ~torch.cat([texts.mask_BN[text_of_P], videos.mask_BM[video_of_P]], dim=1)
    for layer in fusion.layers:
        x = nn.TransformerEncoderLayer.forward(layer, x, src_key_padding_mask=padding)
    return fusion.score(x[:, 0]).squeeze(-1)


def guidance(texts: TextTokens, videos: VideoTokens) -> Tensor:
    text_of_S, _, tokens_SD = texts.of_interest
    best = token_similarity(tokens_SD, video_BMD=videos.tokens_BMD, video_mask_BM=videos.mask_BM)
    sentence = texts.sentence_BD @ videos.mean_BD.T
    return cascade_scores(sentence_TV=sentence, token_SV=best, text_of_S=text_of_S).detach()


def naive_fusion(model: VideoTextModel, texts: TextTokens, videos: VideoTokens) -> Tensor:
    """Section 3.3 as it stands: 2 K (K' + 1) pairs, those of the texts and those of the videos."""
    guide = guidance(texts, videos)
    others = guide.masked_fill(torch.eye(K, dtype=torch.bool), float("-inf"))
    own = torch.arange(K)[:, None]
    videos_of = torch.cat([own, others.topk(NEGATIVES, dim=1).indices], dim=1)
    texts_of = torch.cat([own, others.T.topk(NEGATIVES, dim=1).indices], dim=1)
    beside = own.expand_as(videos_of).flatten()
    scores = naive_pairs(
        model, texts, videos, torch.cat([beside, texts_of.flatten()]), torch.cat([videos_of.flatten(), beside])
    ).view(2, K, NEGATIVES + 1)
    right = torch.zeros(K, dtype=torch.long)
    return (F.cross_entropy(scores[0], right) + F.cross_entropy(scores[1], right)) / 2


def our_fusion(model: VideoTextModel, texts: TextTokens, videos: VideoTokens) -> Tensor:
    text_candidates_BB, video_candidates_BB = hard_negatives(guidance(texts, videos), NEGATIVES)
    text_of_P, video_of_P = (text_candidates_BB | video_candidates_BB).nonzero(as_tuple=True)
    scores = model.fusion(model.token_bank(texts, videos, MAX_TEXT), text_of_P, video_of_P).pair_P
    return fusion_nce(
        scores.new_zeros(K, K).index_put((text_of_P, video_of_P), scores),
        text_candidates_BB=text_candidates_BB,
        video_candidates_BB=video_candidates_BB,
    )


def seconds_by_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Medians; in turns, so that a machine that changes its speed does so for all."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(TURNS + 1):
        for name, call in calls.items():
            seconds = seconds_of(call)
            if turn:  # the first one warms up
                taken[name].append(seconds)
    return {name: float(np.median(values)) for name, values in taken.items()}


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def print_ratios(what: str, taken: dict[str, float]) -> None:
    ours = taken["vlalign"]
    for name, value in taken.items():
        print(f"{what:<8}{name:<44}{value:>9.2f} s{value / ours:>8.1f}", flush=True)


def detached(texts: TextTokens, videos: VideoTokens) -> tuple[TextTokens, VideoTokens]:
    tokens, frames = texts.tokens_BND.detach().requires_grad_(), videos.tokens_BMD.detach().requires_grad_()
    return TextTokens(tokens, texts.mask_BN, texts.weights_BN), VideoTokens(frames, videos.mask_BM)


def fusion(folder: Path, annotations: Path) -> None:
    """The fusion stage alone, forward and backward, from the encoders' tokens."""
    model, inputs = make_model(), make_inputs(annotations, 0)
    texts, videos = detached(*encode(model, inputs))
    losses = [naive_fusion(model, texts, videos).item(), our_fusion(model, texts, videos).item()]
    assert abs(losses[0] - losses[1]) < 1e-4, losses
    text_candidates_BB, video_candidates_BB = hard_negatives(guidance(texts, videos), NEGATIVES)
    lengths = (
        f"{texts.mask_BN.sum(1).float().mean():.1f} text and {videos.mask_BM.sum(1).float().mean():.1f} video tokens"
    )
    num_pairs = int((text_candidates_BB | video_candidates_BB).sum())
    print(f"fusion  {num_pairs:,} of {2 * K * (NEGATIVES + 1):,} pairs are distinct; {lengths}")

    def all_pairs() -> None:
        """Forward and backward of every pair, in parts that fit into memory."""
        every = torch.cartesian_prod(torch.arange(K), torch.arange(K))
        for part in every.split(512):
            naive_pairs(model, texts, videos, part[:, 0], part[:, 1]).sum().backward()

    calls = {
        "vlalign": lambda: our_fusion(model, texts, videos).backward(),
        "2 K (K' + 1) pairs, padded": lambda: naive_fusion(model, texts, videos).backward(),
    }
    print_ratios("fusion", seconds_by_turns(calls) | {"all K K pairs, padded": seconds_of(all_pairs)})


def step(folder: Path, annotations: Path) -> None:
    """A whole step: encoders, three losses, backward, Adam."""
    model, inputs = make_model(), make_inputs(annotations, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def naive_loss() -> Tensor:
        texts, videos = naive_encode(model, inputs)
        text_of_S, weights_S, tokens_SD = texts.of_interest
        best = token_similarity(tokens_SD, video_BMD=videos.tokens_BMD, video_mask_BM=videos.mask_BM)
        token = token_nce(best, text_of_S=text_of_S, weights_S=weights_S, num_texts=len(texts.mask_BN))
        sentence = sentence_nce(texts.sentence_BD @ videos.mean_BD.T)
        return sentence + CONFIG.objective.token_loss_weight * token + naive_fusion(model, texts, videos)

    def our_loss() -> Tensor:
        texts, videos = encode(model, inputs)
        batch = Batch(texts, videos, Workers(), torch.Generator(), max_text_tokens=CONFIG.data.max_text_tokens)
        return sum(CONFIG.objective.compute_loss(model, batch).values())

    losses = [naive_loss().item(), our_loss().item()]
    assert abs(losses[0] - losses[1]) < 1e-3, losses

    def run(loss: Callable[[], Tensor]) -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    print_ratios(
        "step",
        seconds_by_turns({"vlalign": lambda: run(our_loss), "padded, cascade as it stands": lambda: run(naive_loss)}),
    )


def make_data(folder: Path, annotations: Path) -> DatasetFolder:
    """Planted features (``planted.py``) of all test videos."""
    dataset = DatasetFolder(folder, "youcook2", "")
    planted.NUM_TEST_CLIPS = 1_000_000
    planted.make_data(dataset, annotations)
    return dataset


def loop(folder: Path, annotations: Path) -> None:
    """Which part of the time the model computes; the rest waits for data, and writes down what happened."""
    dataset = make_data(folder, annotations)
    config = train_config(
        dataset="youcook2", features=planted.NAME, batch_size=K, num_steps=40, num_fusion_layers=1, validate_every=40
    )
    trainer = make_trainer(dataset, config, folder / "loop", Workers(), torch.device("cpu"))
    inside, compute = [], trainer.train_step

    def timed(inputs: object) -> list[dict[str, float]]:
        start = time.perf_counter()
        events = compute(inputs)
        inside.append(time.perf_counter() - start)
        return events

    trainer.train_step = timed
    trainer.validation = Validation(trainer.validation.metric, lambda *_: {})
    trainer._save_if_best = lambda event: setattr(trainer.state, "best", {"step": 0, trainer.validation.metric: None})
    start = time.perf_counter()
    trainer.run()
    share = sum(inside) / (time.perf_counter() - start)
    print(f"loop    {config.optimization.num_steps} steps of {K}: {share:.3f} of the time in the model")


def rerank(folder: Path, annotations: Path) -> None:
    """All test clips by all test captions: with the fusion layers (two, as in the paper) on the 50 best, and on all
    pairs. With planted.py's text encoder, 64 wide, for time."""
    dataset = make_data(folder, annotations)
    encoder = str(folder / "text_encoder")
    config = train_config(
        dataset="youcook2",
        features=planted.NAME,
        text_encoder=encoder,
        num_steps=200,
        learning_rate=2e-3,
        max_video_tokens=8,
    )
    trainer = make_trainer(dataset, config, folder / "rerank", Workers(), torch.device("cpu"))
    for inputs in trainer.prefetched_inputs(0):
        [event] = trainer.train_step(inputs)
    print(f"rerank  trained {config.optimization.num_steps} steps, loss {event['loss']:.2f}", flush=True)
    pairs = trainer.examples.pairs["test"]
    recall, taken = {}, {}
    for name, number in (("vlalign", 50), ("all pairs", None)):
        start = time.perf_counter()
        scores = stage_scores(
            trainer.scorer, pairs.captions, pairs.clips, rerank=number, both_ways=True, show_progress=True
        )
        taken[name] = time.perf_counter() - start
        weightings = Weightings(config.score_weights, [])
        recall[name] = rank_split(scores, pairs, weightings, "average", temperature=1.0).metrics
    print(f"rerank  {len(pairs.captions):,} captions, {len(pairs.clips):,} clips; 50 best of each query, and all pairs")
    for name, metrics in recall.items():
        recalls = [f"{metrics[way]['R@1']:.2f} {way.replace('_', ' ')}" for way in ("text_to_video", "video_to_text")]
        print(f"rerank  {name:<12}R@1 {', '.join(recalls)}")
    print_ratios("rerank", taken)


PARTS = {"fusion": fusion, "step": step, "loop": loop, "rerank": rerank}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--annotations", type=Path, required=True)
    args = parser.parse_args()
    for name, part in PARTS.items():
        if args.part in (None, name):
            part(args.folder, args.annotations)


if __name__ == "__main__":
    main()
