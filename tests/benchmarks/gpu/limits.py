"""What a GPU can give by its own limits, for each network: ``python tests/benchmarks/gpu/limits.py [NAME ...]``.

Nothing is computed: tensors have a shape and no memory, and networks take the path that they take on a GPU. For each
profile, of one window in a batch as large as on a GPU: its frames' bytes, FLOPs (torch.utils.flop_counter), operators
that are no views (which stand for kernels), and the bytes that these read and write if nothing stays in a cache. The
limit of a GPU is the smaller one of peak FLOPs / FLOPs and bandwidth / bytes.
"""

import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from helpers.gpu_counts import VIEWS
from vlalign.extract.models import MODELS
from vlalign.storage.common.device import on_meta_device
from vlalign.storage.profiles import PROFILES

GPUS = {  # dense TFLOP/s in TF32 and bf16, GB/s
    "H200": (494.5, 989.5, 4800),
    "H100 80GB HBM3": (494.5, 989.5, 3350),
    "A100 80GB": (156.0, 312.0, 2039),
    "L4": (60.0, 121.0, 300),
}
"""NVIDIA's data sheets, which state twice as much for H200, H100 (SXM) and L4: with sparsity, which these networks have
not."""
WHOLE_FRAME = (224, 298)
"""Size of a frame of 4:3 for profiles that do not crop."""


class _Traffic(TorchDispatchMode):
    """Counts operators that are no views, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.num_operators = self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in VIEWS:
            self.num_operators += 1
            tensors = [x for x in tree_leaves((args, kwargs, made)) if isinstance(x, Tensor)]
            self.num_bytes += sum(x.numel() * x.element_size() for x in {id(x): x for x in tensors}.values())
        return made


def measure(name: str, dtype: torch.dtype) -> tuple[float, float, int]:
    """Return FLOPs and bytes of a window, and operators of a batch."""
    profile, kind = PROFILES[name], MODELS[name]
    with on_meta_device():
        network = kind().eval().requires_grad_(False)
    network.fold().to(dtype)
    batch = kind.batch_sizes["cuda"]
    size = (profile.crop_px, profile.crop_px) if profile.crop_px else WHOLE_FRAME
    window = () if profile.window == 1 else (profile.window,)
    x = torch.empty(batch, *window, *size, 3, dtype=dtype, device="meta").movedim(-1, 1)
    with torch.inference_mode(), FlopCounterMode(display=False) as flops, _Traffic() as traffic:
        network(x)
    return flops.get_total_flops() / batch, traffic.num_bytes / batch, traffic.num_operators


def gpu_of(title: str) -> str | None:
    """Return the key of ``GPUS`` for what a device calls itself, such as "NVIDIA A100-SXM4-80GB"; None: it has none."""
    words = set(title.replace("-", " ").split())
    return next((gpu for gpu in GPUS if words.issuperset(gpu.split())), None)


def limit(gpu: str, dtype: torch.dtype, flops: float, traffic: float) -> tuple[float, str]:
    """Return the most windows a second, and what limits them: "FLOPs" or "bytes".

    Args:
        gpu: A key of ``GPUS``.
        dtype: What the network computes in; float32 means TF32.
        flops: Of a window.
        traffic: Bytes of a window.
    """
    tf32, bf16, bandwidth = GPUS[gpu]
    peak = tf32 if dtype == torch.float32 else bf16
    return min((1e12 * peak / flops, "FLOPs"), (1e9 * bandwidth / traffic, "bytes"))


def main(names: list[str]) -> None:
    columns = "".join(f" {gpu}: TF32 | {gpu}: bf16 |" for gpu in GPUS)
    print(f"| features | frames, kB | GFLOP | MB in fp32 | operators a batch |{columns}")
    print("|---|---|---|---|---|" + "---|" * 2 * len(GPUS))
    for name in names or [name for name in PROFILES if name in MODELS]:
        profile = PROFILES[name]
        side = (profile.crop_px, profile.crop_px) if profile.crop_px else WHOLE_FRAME
        flops, traffic, operators = measure(name, torch.float32)
        _, traffic_16, _ = measure(name, torch.bfloat16)
        cells = []
        for gpu in GPUS:
            for dtype, moved in ((torch.float32, traffic), (torch.bfloat16, traffic_16)):
                most, limited_by = limit(gpu, dtype, flops, moved)
                cells.append(f"{most:,.0f} ({limited_by})")
        kilobytes = 3 * math.prod(side) * profile.window / 1e3
        print(
            f"| `{name}` | {kilobytes:,.0f} | {flops / 1e9:,.1f} | {traffic / 1e6:,.0f} | {operators:,} | "
            f"{' | '.join(cells)} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
