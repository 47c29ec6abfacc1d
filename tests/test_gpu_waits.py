"""The host waits for a GPU, or copies to it from memory that is not pinned, only where this file says that it must; and
a step launches no more kernels than this file says.

Counted on a pretended GPU. A new wait makes a test fail: remove it, or add it here with its reason. So does a new
kernel: do without it, or write the new number here.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from helpers.fake_cuda import pretended
from helpers.gpu_counts import GpuCounts
from helpers.labelled import make_questions, make_segments
from helpers.needs import SYSTEM, missing_precision, need
from helpers.paper_step import count
from helpers.spoken import make_spoken
from helpers.step_cases import WHOLE, made
from helpers.toy import make_toy
from helpers.training import SPOKEN, make_trainer, map_in_processes, settings_of
from vlalign.extract import load_extractor
from vlalign.extract.models import MODELS
from vlalign.storage.common.files import read_json, write_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.distributed import join_workers
from vlalign.train.recipes.train_config import TrainConfig, train_config

SLOW = pytest.mark.slow

LOSS = "train/distributed.py mean: a value for the host"
TEXTS = (
    "train/models/transformer.py _hidden_states, transformers' _ignore_bidirectional_mask_sdpa: a value for the host"
)
SSB_TEXTS = TEXTS.replace("transformer.py", "ssb.py")
TACO_PAIRS = "train/objectives/taco.py _fusion_loss: copy to the host"
TOCO_PAIRS = "train/objectives/toco.py compute_loss: copy to the host"
TOCO_TOKENS = "train/losses/taco.py fusion_token_nce: size of nonzero"
CODEWORDS = "train/models/codebook.py update: copy to the host"
WORDS = "train/objectives/words.py early_scores: size of _unique2"
REASONS = {
    LOSS: "losses are logged, and a run stops if one is not finite: the host reads those of several steps at once",
    TEXTS: "transformers asks whether the mask of a group of texts has padding",
    SSB_TEXTS: "the same",
    TACO_PAIRS: "the pairs for the fusion layers are put into groups by their length",
    TOCO_PAIRS: "the same",
    TOCO_TOKENS: "a pair whose weight is 0 leaves out its tokens of interest",
    CODEWORDS: "codewords that are not used are drawn anew, and their number is logged",
    WORDS: "each word of a batch is compared once",
}

MICRO = {"micro_batch_size": 5}
TACO = {"objective": "taco"}
CASES = {
    "taco": (TACO, {TEXTS: 1, TACO_PAIRS: 1}, 460),
    "taco, random": (TACO | {"negatives": "random"}, {TEXTS: 1, TACO_PAIRS: 1}, 460),
    "taco, all": (TACO | {"negatives": "all"}, {TEXTS: 1, TACO_PAIRS: 1}, 455),
    "taco, micro-batches": (TACO | MICRO, {TEXTS: 6, TACO_PAIRS: 1}, 1450),
    "taco-both": (WHOLE["taco-both"], {TEXTS: 1, TACO_PAIRS: 1}, 754),
    "toco": (WHOLE["toco"], {TEXTS: 1, TOCO_PAIRS: 1, TOCO_TOKENS: 1}, 489),
    "toco, micro-batches": (WHOLE["toco"] | MICRO, {TEXTS: 6, TOCO_PAIRS: 1, TOCO_TOKENS: 1}, 1419),
    "ssml": (WHOLE["ssml"], {}, 104),
    "ssml, transformer": ({"objective": "ssml"}, {TEXTS: 1}, 306),
    "intra-video": (WHOLE["intra-video"], {}, 120),
    "mil-nce": (WHOLE["mil-nce"], {}, 66),
    "mil-nce, transformer": ({"objective": "mil-nce"}, {TEXTS: 1}, 267),
    "ncl": (WHOLE["ncl"], {TEXTS: 1}, 322),
    "ncl-ssb": (WHOLE["ncl-ssb"], {SSB_TEXTS: 1}, 702),
    "hard-triplet, micro-batches": (WHOLE["hard-triplet"] | MICRO, {SSB_TEXTS: 6}, 2680),
    "ncl-gated": (WHOLE["ncl-gated"], {}, 162),
    "cmcm": (WHOLE["cmcm"], {TEXTS: 1, CODEWORDS: 1}, 541),
    "cmcm, micro-batches": (WHOLE["cmcm"] | MICRO, {TEXTS: 6, CODEWORDS: 1}, 1403),
    "cmcm-both": (WHOLE["cmcm-both"], {TEXTS: 1, CODEWORDS: 1}, 694),
    "words": (WHOLE["words"], {WORDS: 1}, 216),
    "asked": (WHOLE["asked"], {}, 255),
    "asked, transformer": ({"objective": "vqa"}, {TEXTS: 1}, 452),
    "segmented": (WHOLE["segmented"], {}, 90),
    "segmented, micro-batches": (WHOLE["segmented"] | MICRO, {}, 313),
    "spoken": (SPOKEN, {CODEWORDS: 1}, 1442),
}
"""{objective, encoder, negatives, micro-batches: (settings, waits of a step whose loss is not read yet, kernels)}"""
SLOW_CASES = {"spoken", "toco, micro-batches", "cmcm, micro-batches", "taco, random", "taco, all", "taco-both"}

LENGTHS = {
    "train/distributed.py largest: copy to the device": 2,
    "train/distributed.py largest: a value for the host": 2,
    "train/models/tokens.py lengths_of: copy to the host": 2,
}
"""The tokens of all processes are padded to the longest text and clip, and fused in groups by their length."""
TOGETHER: dict[str, dict[str, int]] = {
    "taco": LENGTHS,
    "taco, random": LENGTHS,
    "taco, all": LENGTHS,
    "toco": LENGTHS,
    "taco-both": {
        **dict.fromkeys(LENGTHS, 4),
        "train/models/tokens.py lengths_of: copy to the host": 2,
        "train/objectives/batch.py video_biases: indices by a mask": 6,
    },
    "words": LENGTHS | {"train/models/tokens.py lengths_of: copy to the host": 1},
}
"""{case: waits more of each of two processes}; others have none."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, DatasetFolder]:
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    spoken = make_spoken(toy.root, num_clips=12)
    return {"toy": toy, "spoken": spoken, "asked": make_questions(toy.root), "segmented": make_segments(toy.root)}


def of_a_step(datasets: dict[str, DatasetFolder], case: str, settings: dict, folder) -> tuple[Counter[str], int]:
    """Return waits and kernels of the second step; the first one also makes the optimiser's state."""
    with pretended() as gpu:
        of = made(datasets, case.partition(",")[0], folder, "cuda", num_steps=3, **settings)
        for inputs in islice(of.prefetched_inputs(0), 2):
            gpu.counts.clear()
            of.train_step(inputs)
    return gpu.counts.waits, gpu.counts.num_operators


@pytest.mark.parametrize("case", [pytest.param(case, marks=SLOW if case in SLOW_CASES else ()) for case in CASES])
def test_in_a_step_the_host_waits_only_where_it_must_and_no_kernel_is_new(datasets, tmp_path, case):
    settings, expected, most_kernels = CASES[case]
    waits, kernels = of_a_step(datasets, case, settings, tmp_path)
    assert waits == expected
    assert set(expected) <= set(REASONS)
    assert kernels <= most_kernels


def test_the_host_reads_the_losses_of_ten_steps_at_once(datasets, tmp_path):
    read = []
    with pretended() as gpu:
        of = made(datasets, "mil-nce", tmp_path, "cuda", num_steps=12, validate_every=11, **WHOLE["mil-nce"])
        for inputs in of.prefetched_inputs(0):
            gpu.counts.clear()
            read.append(([event["step"] for event in of.train_step(inputs)], gpu.counts.waits[LOSS]))
    of_ten = [([], 0)] * 9 + [(list(range(1, 11)), 1)]
    assert read == [*of_ten, ([11], 1), ([12], 1)], "also before a validation, and at the end"


def save_waits(cases: dict[str, tuple[DatasetFolder, TrainConfig]], out: Path) -> None:
    """In each of two processes: save the waits of the second step of each case."""
    found = {}
    with pretended(num_gpus=2) as gpu, join_workers("cuda") as (workers, device):
        for case, (dataset, config) in cases.items():
            of = make_trainer(dataset, config, out / case, workers, device)
            for inputs in islice(of.prefetched_inputs(0), 2):
                gpu.counts.clear()
                of.train_step(inputs)
            found[case] = dict(gpu.counts.waits)
    write_json(out / f"{workers.rank}.json", found)


@pytest.mark.parametrize("cases", [["mil-nce"], pytest.param([c for c in CASES if "micro" not in c], marks=SLOW)])
def test_each_of_two_processes_waits_only_where_it_must(datasets, tmp_path, cases):
    made_of, expected = {}, {}
    for case in cases:
        kind, (settings, waits, _) = case.partition(",")[0], CASES[case]
        dataset, features = datasets.get(kind, datasets["toy"]), "resnet152" if kind in datasets else "s3d"
        config = train_config(**settings_of(dataset=dataset.name, features=features, num_steps=3, **settings))
        made_of[case] = dataset, config
        expected[case] = waits | TOGETHER.get(case, {})
    map_in_processes(2, save_waits, made_of, tmp_path)
    for rank in range(2):
        assert read_json(tmp_path / f"{rank}.json") == expected


@SLOW
@pytest.mark.parametrize(("negatives", "most_kernels"), [("cascade", 1_647), ("all", 2_432)])
def test_a_step_of_the_papers_size_has_few_kernels_and_waits(negatives, most_kernels):
    _, counts = count(negatives, 0)
    assert counts.waits == {LOSS: 1, TEXTS: 1, TACO_PAIRS: 1}
    assert counts.num_operators <= most_kernels


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("resnet152", "fp32"),
        *(
            pytest.param(name, precision, marks=SLOW)
            for name in MODELS
            for precision in ("fp32", "fp16", "bf16")
            if (name, precision) != ("resnet152", "fp32")
        ),
    ],
)
def test_an_extractor_waits_once_a_batch_for_its_rows(name, precision):
    need(SYSTEM, missing_precision(precision))
    with pretended() as gpu:
        extractor = load_extractor(name, weights="random", device="cuda", precision=precision)
        side, window = 224 if name.startswith(("clip", "slowfast")) else 64, extractor.profile.window
        frames = torch.zeros(2, *([window] if window > 1 else []), side, side, 3, dtype=extractor.frame_dtype)
        gpu.counts.clear()
        extractor.features(frames)
    assert gpu.counts.waits == {"extract/extractor.py features: copy to the host": 1}


# The counting itself

ON_CPU = torch.arange(6)
WAITS: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "item": (lambda x: x[0].item(), "a value for the host"),
    "truth": (lambda x: bool(x[0] == 0), "a value for the host"),
    "list": (lambda x: x.tolist(), "a value for the host"),
    "equal": (lambda x: torch.equal(x, x), "a value for the host"),
    "cpu": (lambda x: x.cpu(), "copy to the host"),
    "copy_ to the host": (lambda x: torch.zeros(6).copy_(x), "copy to the host"),
    "copy_ from the host": (lambda x: x.copy_(ON_CPU), "copy to the device"),
    "blocking": (lambda x: ON_CPU.pin_memory().to(x.device), "copy to the device"),
    "not pinned": (lambda x: ON_CPU.to(x.device, non_blocking=True), "copy from memory that is not pinned"),
    "tensor": (lambda x: torch.tensor([1], device=x.device), "copy to the device"),
    "nonzero": (lambda x: x.nonzero(), "size of nonzero"),
    "unique": (lambda x: x.unique(), "size of _unique2"),
    "repeats": (lambda x: x.repeat_interleave(x), "size of repeat_interleave"),
    "mask": (lambda x: x[x > 2], "indices by a mask"),
    "set by a mask": (lambda x: x.index_put((x > 2,), x[0]), "indices by a mask"),
    "list of indices": (lambda x: x[[0, 1]], "indices on the host"),
}
NO_WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "arithmetic": lambda x: (x + 1).sum().exp(),
    "pinned": lambda x: ON_CPU.pin_memory().to(x.device, non_blocking=True),
    "a part of pinned memory": lambda x: ON_CPU.pin_memory()[2:].to(x.device, non_blocking=True),
    "made there": lambda x: torch.arange(3, device=x.device) + torch.zeros_like(x[:3]),
    "indices": lambda x: x[x],
    "known size": lambda x: x.nonzero_static(size=5),
}


def counts_of(call: Callable[[torch.Tensor], object]) -> GpuCounts:
    with pretended() as gpu:
        x = torch.arange(6, device="cuda")
        gpu.counts.clear()
        call(x)
    return gpu.counts


@pytest.mark.parametrize("what", WAITS)
def test_a_wait_is_counted_with_its_place_and_kind(what):
    call, kind = WAITS[what]
    assert counts_of(call).waits == {f"the test: {kind}": 1}


@pytest.mark.parametrize("what", NO_WAITS)
def test_what_the_device_does_alone_is_no_wait(what):
    assert not counts_of(NO_WAITS[what]).waits


def test_kernels_are_operators_without_views_and_dropout_is_one():
    assert counts_of(lambda x: (x.view(2, 3).t() + 1).sum()).num_operators == 2
    assert counts_of(lambda x: torch.nn.functional.dropout(x.float())).num_operators == 2


def test_tensors_of_two_devices_are_refused_together():
    with pretended():
        on_gpu = torch.arange(6, device="cuda")
        with pytest.raises(RuntimeError, match=r"two different devices|at least two devices"):
            on_gpu + ON_CPU
