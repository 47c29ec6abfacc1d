"""One part of a GPU's table, for ``run.py``: ``python tests/benchmarks/gpu/measure.py PART PRECISION``.

Prints "columns: A | B" and, for each row, "begins: NAME" and then "| ... |". A row that fails says why and costs no
other; after an error of the device itself, which all later rows would repeat, the process ends.
"""

from vlalign.storage.cli.command import limit_spinning

limit_spinning()

import argparse
import contextlib
import faulthandler
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch
from transformers import BertConfig, BertModel

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from helpers import paper_step
from helpers.fake_cuda import pretended
from limits import gpu_of, limit, measure
from rates import SIZES, a_batch, calls_a_second, decoding_and_together, make_video, seconds_of, waits
from torch import Tensor
from vlalign.extract import load_extractor
from vlalign.extract.extractor import DTYPES, Extractor
from vlalign.extract.models import MODELS
from vlalign.storage.common.device import device_title
from vlalign.train.distributed import Workers
from vlalign.train.loop.prefetch import PrefetchedInputs
from vlalign.train.loop.step import backward
from vlalign.train.loop.trainer import READ_LOSSES_EVERY
from vlalign.train.models.layers import GROUP_SIZES
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.recipes.train_config import train_config

CUDA = torch.device("cuda")
EACH_SECONDS = 1.2
"""Time for one rate; some take several times as long."""
ROW_SECONDS = 60
"""A row that takes longer hangs: its process ends, with a traceback."""
NETWORKS = ("s3d", "resnet152", "clip_vit_b32", "i3d_resnext101", "i3d_resnet152", "r2plus1d", "slowfast")
NETWORKS += ("slowfast_r101", "clip_vit_b32_map")
"""The most asked for first. ``s3d_univl`` is as ``s3d``."""
PRETENDED_NETWORKS = ("clip_vit_b32", "resnet152")
PIPELINES = [(name, size) for size in ("240p", "1080p") for name in ("s3d", "resnet152")]
PIPELINES += [(name, "240p") for name in ("clip_vit_b32", "r2plus1d", "slowfast")]
MORE_LAUNCHES = 20
NEW_SHAPES = 8
"""Steps of training with lengths that were not seen before."""


class Part:
    """What one part of the table measures."""

    columns: str
    is_pretended: bool = False

    def __init__(self, precision: str, videos: Path) -> None:
        """Take the precision, and a folder for videos."""
        self.precision, self.videos = precision, videos

    def cases(self) -> list[tuple[str, ...]]:
        """Return what each row is about."""
        raise NotImplementedError

    def cells(self, *case: str) -> list[str]:
        """Measure a row; return its cells after those that say what it is about."""
        raise NotImplementedError

    def extractor(self, name: str) -> Extractor:
        """Load a network with random weights."""
        return load_extractor(name, weights="random", device="cuda", precision=self.precision)

    def finish(self) -> None:
        """Wait for the device."""
        if not self.is_pretended:
            torch.cuda.synchronize()


class Alone(Part):
    """Networks alone: whole batches from the host's memory, and the network by itself, its input on the GPU."""

    columns = (
        "features | precision | batch | load and first batch, s | windows/s | part of its limit | "
        "input on the GPU, windows/s | launches, ms a batch | network, ms a batch | GPU memory, GiB | waits a batch"
    )

    def cases(self) -> list[tuple[str, ...]]:
        """Return the networks."""
        return [(name, self.precision) for name in (PRETENDED_NETWORKS if self.is_pretended else NETWORKS)]

    def cells(self, name: str, precision: str) -> list[str]:
        """Measure one network."""
        began = time.monotonic()
        extractor = self.extractor(name)
        frames = a_batch(extractor)
        extractor.features(frames)
        first = time.monotonic() - began
        size = extractor.batch_size
        rate = size * calls_a_second(lambda: extractor.features(frames), time.monotonic() + EACH_SECONDS)
        waited = "-" if self.is_pretended else waits(lambda: extractor.features(frames), CUDA)
        network = extractor.network
        assert network is not None
        with torch.inference_mode():
            x = frames.to(CUDA).to(DTYPES[precision]).movedim(-1, 1)
            network(x)
            self.finish()
            number = 1 if self.is_pretended else MORE_LAUNCHES
            began = time.monotonic()
            for _ in range(number):
                network(x)
            launched = (time.monotonic() - began) / number
            self.finish()
            whole = (time.monotonic() - began) / number
        limited = "-" if self.is_pretended else part_of_limit(name, DTYPES[precision], rate)
        times = [f"{size / whole:,.1f}", f"{1e3 * launched:.2f}", f"{1e3 * whole:.2f}"]
        return [str(size), f"{first:.1f}", f"{rate:,.1f}", limited, *times, peak_memory(), waited]


def part_of_limit(name: str, dtype: torch.dtype, rate: float) -> str:
    """Return what part of the limit of this GPU (``limits.py``) a network reaches."""
    gpu = gpu_of(device_title(CUDA))
    if gpu is None:
        return "-"
    counted_in = torch.float32 if dtype == torch.float32 else torch.bfloat16
    flops, traffic, _ = measure(name, counted_in)
    return f"{rate / limit(gpu, counted_in, flops, traffic)[0]:.2f}"


class Pipeline(Part):
    """Extraction as a command does it: decoders in processes of their own, and full batches."""

    columns = (
        "features | video | precision | network alone, windows/s | decoding alone, windows/s | together, windows/s | "
        "part of the slower | hours of video an hour | GPU memory, GiB"
    )

    def cases(self) -> list[tuple[str, ...]]:
        """Return the networks, and the sizes of video."""
        return [(PRETENDED_NETWORKS[0], "240p")] if self.is_pretended else PIPELINES

    def cells(self, name: str, size: str) -> list[str]:
        """Measure one network with one size of video."""
        extractor = self.extractor(name)
        path = make_video(self.videos, size, seconds_of(extractor, 2 * extractor.batch_size))
        frames = a_batch(extractor)
        extractor.features(frames)
        until = time.monotonic() + EACH_SECONDS
        alone = extractor.batch_size * calls_a_second(lambda: extractor.features(frames), until)
        longest = ROW_SECONDS if self.is_pretended else 12 * EACH_SECONDS  # a rehearsal may run on a busy machine
        decoded, both = decoding_and_together(extractor, path, 2 * EACH_SECONDS, longest)
        hours = both * (extractor.profile.stride or extractor.profile.window) / extractor.profile.fps
        rates = [f"{alone:,.1f}", f"{decoded:,.1f}", f"{both:,.1f}", f"{both / min(alone, decoded):.2f}"]
        return [self.precision, *rates, f"{hours:,.1f}", peak_memory()]


class Training(Part):
    """TACo's step at the paper's size, each with a new batch that another thread makes, as in a run."""

    columns = (
        "precision | layers | groups | first step, s | the next, ms each | steps/s | waiting for batches | "
        "GPU memory, GiB | waits a step"
    )
    all_cases = (("bf16", "eager", "shipped"), ("fp32", "eager", "shipped"), ("bf16", "eager", "as on a CPU"))

    def cases(self) -> list[tuple[str, ...]]:
        """Return precisions, eager or compiled layers, and how sequences are grouped."""
        return list(self.all_cases[:1] if self.is_pretended else self.all_cases)

    def cells(self, precision: str, layers: str, groups: str) -> list[str]:
        """Measure one of them."""
        size = 8 if self.is_pretended else paper_step.BATCH
        config = train_config(dataset="none", features="s3d", batch_size=size)
        made = PrefetchedInputs(
            range(1_000_000),
            read=lambda _: None,
            make=lambda step: paper_step.make_inputs(step, size).pinned(),
            device=CUDA,
        )
        began = time.monotonic()
        model = new_model(precision, compiled=layers == "compiled", is_pretended=self.is_pretended)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        losses: list[dict[str, Tensor]] = []

        def step() -> None:
            terms = backward(model, next(stream), config, 0, Workers())
            losses.append({name: loss.detach() for name, loss in terms.items()})
            optimizer.step()
            if len(losses) == READ_LOSSES_EVERY:
                Workers().mean({(i, name): loss for i, terms in enumerate(losses) for name, loss in terms.items()})
                losses.clear()

        own = GROUP_SIZES["cuda" if groups == "shipped" else "cpu"]
        with mock.patch.dict(GROUP_SIZES, {"cuda": own}), contextlib.closing(iter(made)) as stream:
            step()
            self.finish()
            first, began = time.monotonic() - began, time.monotonic()
            number = 1 if self.is_pretended else NEW_SHAPES
            for _ in range(number):
                step()
            self.finish()
            others = (time.monotonic() - began) / number
            steps = calls_a_second(step, time.monotonic() + 4 * EACH_SECONDS)
            waited = "-" if self.is_pretended else waits(step, CUDA)
        times = [f"{first:.1f}", f"{1e3 * others:.0f}", f"{steps:.2f}", f"{made.waited_share:.0%}"]
        return [*times, peak_memory(), waited]


class Compiled(Training):
    """The same with compiled layers."""

    all_cases = (("bf16", "compiled", "shipped"),)

    def cases(self) -> list[tuple[str, ...]]:
        """Return none on a pretended GPU, which compiles nothing."""
        return [] if self.is_pretended else super().cases()


class Launches(Part):
    """What S3D could gain: one launch for the whole network (a CUDA graph), and copies beside the computation."""

    columns = (
        "features | precision | as it is, ms a batch | network as a CUDA graph, ms | copy, ms | copy beside it, ms"
    )

    def cases(self) -> list[tuple[str, ...]]:
        """Return none on a pretended GPU, which has neither."""
        return [] if self.is_pretended else [("s3d", self.precision)]

    def cells(self, name: str, precision: str) -> list[str]:
        """Measure with frames in pinned memory, as the engine has them."""
        extractor = self.extractor(name)
        network, frames, beside = extractor.network, a_batch(extractor), torch.cuda.Stream()
        assert network is not None

        def milliseconds(call: Callable[[], object]) -> float:
            call()
            torch.cuda.synchronize()
            began = time.monotonic()
            for _ in range(MORE_LAUNCHES):
                call()
            torch.cuda.synchronize()
            return 1e3 * (time.monotonic() - began) / MORE_LAUNCHES

        with torch.inference_mode():
            as_it_is = milliseconds(lambda: extractor.features(frames))
            x = frames.to(CUDA).to(DTYPES[precision]).movedim(-1, 1)
            with torch.cuda.stream(beside):  # as PyTorch's documentation of graphs asks
                for _ in range(3):
                    network(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                network(x)
            target = torch.empty_like(frames, device=CUDA)

            def both() -> None:
                with torch.cuda.stream(beside):
                    target.copy_(frames, non_blocking=True)
                graph.replay()

            copied = milliseconds(lambda: target.copy_(frames, non_blocking=True))
            return [f"{of:.2f}" for of in (as_it_is, milliseconds(graph.replay), copied, milliseconds(both))]


PARTS: dict[str, type[Part]] = {
    "alone": Alone,
    "training": Training,
    "pipeline": Pipeline,
    "compiled": Compiled,
    "launches": Launches,
}


def new_model(precision: str, *, compiled: bool, is_pretended: bool) -> VideoTextModel:
    """Return a model as large as the paper's, or a small one on a pretended GPU."""
    width, depth = (64, 2) if is_pretended else (768, 12)
    shape = {"hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 4 * width}
    bert = BertModel(BertConfig(vocab_size=100, num_hidden_layers=depth, **shape), add_pooling_layer=False)
    model = VideoTextModel(paper_step.FEATURES, bert, num_video_layers=1, num_fusion_layers=2, dropout=0.1)
    model.to(CUDA).train().set_precision(precision)
    if compiled:
        model.compile_layers()
    return model


def peak_memory() -> str:
    """Return the GPU memory that was in use at most since the row began."""
    return f"{torch.cuda.max_memory_allocated() / 2**30:.2f}"


def print_rows(
    columns: str, cases: Sequence[tuple[str, ...]], cells: Callable[..., list[str]], *, skip: int, seconds: float
) -> None:
    """Print a row for each case.

    Args:
        columns: Titles of the columns.
        cases: First cells of each row.
        cells: Returns the other cells of a case.
        skip: Number of cases to skip.
        seconds: A row that takes longer ends the process.
    """
    print(f"columns: {columns}", flush=True)
    for case in cases[skip:]:
        print(f"begins: {' | '.join(case)}", flush=True)
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
        try:
            print(f"| {' | '.join([*case, *cells(*case)])} |", flush=True)
        except Exception as error:
            words = str(error).strip().splitlines() or [""]
            print(
                f"| {' | '.join(case)} | failed: {type(error).__name__}: {words[0][:200].replace('|', '/')} |",
                flush=True,
            )
            traceback.print_exc()
            if isinstance(error, torch.AcceleratorError):  # each later call of the device would raise it again
                sys.stderr.flush()
                os._exit(3)
        finally:
            faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """Everything on the pretended GPU, with small batches."""
    sizes = {name: MODELS[name].batch_sizes for name in PRETENDED_NETWORKS}
    SIZES["240p"] = (64, 48)
    with contextlib.ExitStack() as stack:
        stack.enter_context(pretended())
        for name in sizes:
            stack.enter_context(mock.patch.object(MODELS[name], "batch_sizes", {"cpu": 1, "cuda": 1}))
        torch.set_num_threads(1)
        yield


def main() -> None:
    """Measure a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("precision", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--skip", type=int, default=0, help="rows to skip (default: %(default)s)")
    parser.add_argument("--videos", type=Path, default=Path(tempfile.gettempdir()), help="folder for videos")
    parser.add_argument("--pretend", action="store_true", help="on a pretended GPU, with tiny sizes")
    args = parser.parse_args()
    part = PARTS[args.part](args.precision, args.videos)
    part.is_pretended = args.pretend

    def cells(*case: str) -> list[str]:
        if not args.pretend:
            torch.cuda.reset_peak_memory_stats()
        return part.cells(*case)

    with pretended_gpu() if args.pretend else contextlib.nullcontext():
        seconds = 10 * ROW_SECONDS if args.pretend else 3 * ROW_SECONDS if args.part == "compiled" else ROW_SECONDS
        print_rows(part.columns, part.cases(), cells, skip=args.skip, seconds=seconds)


if __name__ == "__main__":
    main()
