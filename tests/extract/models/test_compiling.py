"""torch.compile takes each network whole, once, for all numbers and sizes of windows.

Counted by PyTorch's own compiler front end, on tensors that have a shape and no memory. Networks take the same path on
them as on a GPU.
"""

import pytest
import torch
from torch._dynamo.utils import counters
from vlalign.extract.models import MODELS
from vlalign.storage.common.device import on_meta_device
from vlalign.storage.profiles import PROFILES


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROFILES if name in MODELS])
def test_a_network_is_compiled_once_and_in_one_piece(name):
    profile = PROFILES[name]
    sizes = [(224, 224), (224, 224)] if profile.crop_px else [(224, 298), (398, 224)]
    with on_meta_device():
        network = MODELS[name]().eval().requires_grad_(False)
    network.fold()
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(network, backend="eager", dynamic=True)
    with torch.inference_mode():
        for num_windows, size in zip((4, 3), sizes, strict=True):
            window = () if profile.window == 1 else (profile.window,)
            x = torch.empty(num_windows, 3, *window, *size, device="meta")
            assert compiled(x).shape == (num_windows, profile.dimension)
    torch._dynamo.reset()
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
