"""The query of ``make demo``, and the scenes that it is about."""

import re
from pathlib import Path

from vlalign.preprocess.datasets.demo import VERBS, Scene, plan_scenes

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"


def demo_query() -> str:
    """Return what ``make demo`` searches for."""
    found = re.search(r'vlalign-search .*"(.+)" --by video', MAKEFILE.read_text(encoding="utf-8"))
    assert found
    return found[1]


def fits(query: str, scene: Scene) -> bool:
    """Return whether a query is about a scene, such as "a red circle falls"."""
    return query == f"a {scene['colour']} {scene['shape']} {VERBS[scene['verb']][0]}"


def scenes_for(query: str) -> list[tuple[str, Scene]]:
    """Return (split, scene) of all scenes of the demo that a query is about."""
    return [(split, scene) for split, scene in plan_scenes(0) if fits(query, scene)]
