"""What a GPU may give otherwise than a CPU: they round differently, and so break ties differently."""

import ctypes
import re
from typing import Any

import pytest
import torch
from vlalign.extract.decoding import torchcodec_backend

NEAR = 2e-3
"""Scores that differ by less may change places."""
HIT = re.compile(r"^ *(-?[\d.]+) +([\d.]+ - +[\d.]+) +(?:[\d.]+|-) +(.+)$", re.MULTILINE)


def lacks_nvdec() -> list[str]:
    """Return what is missing to try NVIDIA's video engine."""
    if not torch.cuda.is_available():
        return ["CUDA"]
    try:
        ctypes.CDLL("libnvcuvid.so.1")
    except OSError:
        return ["NVDEC (the driver has no libnvcuvid.so.1)"]
    return [] if torchcodec_backend.has_torchcodec() else ["torchcodec"]


def assert_figures_near(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare two contents of ``metrics.json``: one of the GPU, and one of the CPU."""
    devices = [figures["fingerprint"].pop("device") for figures in (found, expected)]
    assert devices[0] != devices[1] == "cpu", "an evaluation is compared with itself"
    _assert_near(found, expected)


def _assert_near(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            _assert_near(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _assert_near(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    else:
        assert found == expected


def assert_hits_near(found: str, expected: str) -> None:
    """Compare what two searches printed: hits of nearly equal scores may change places."""
    scores, scores_of_cpu = ([float(score) for score, _, _ in HIT.findall(printed)] for printed in (found, expected))
    assert scores and scores == pytest.approx(scores_of_cpu, abs=NEAR)
    hits, hits_of_cpu = (
        {(span, video): float(score) for score, span, video in HIT.findall(printed)} for printed in (found, expected)
    )
    for hit in hits.keys() | hits_of_cpu.keys():
        last = scores_of_cpu[-1]
        assert hits.get(hit, last) == pytest.approx(hits_of_cpu.get(hit, last), abs=NEAR), hit
