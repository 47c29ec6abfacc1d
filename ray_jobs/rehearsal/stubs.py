"""Stand-ins for the expensive parts: a network and a tagger, which the steps load like any other.

Both are in a folder on PYTHONPATH. The network is an encoder of one's own (docs/encoders.md); the tagger is an
installed spaCy pipeline, whose tokens are those of spaCy's English.
"""

import json
from pathlib import Path

import numpy as np

from .made import FRAME_SECONDS, TAGS, WIDTH, MadeVideo

FEATURES, TAGGER = "rehearsal", "rehearsal_tagger"
MODULE, DIMENSION = "rehearsal_network", 32
STUBBED = (
    "the network (mean colours instead of s3d), the tagger (spaCy's tokens, tags by first letters), the word vectors "
    "(random), and the pictures (8 x 8 pixels, not compressed)"
)
NETWORK = f"""
from torch import nn

class MeanColours(nn.Module):
    def forward(self, frames):
        return frames.float().mean(dim=(2, 3)).repeat(1, {DIMENSION})[:, :{DIMENSION}]

def make(weights):
    return MeanColours()
"""
PIPELINE = f"""
import spacy
from spacy.language import Language

@Language.component("rehearsal_tags")
def tags(doc):
    for token in doc:
        token.pos_ = {TAGS!r}.get(token.text[0], "X")
    return doc

def load(**_):
    pipeline = spacy.blank("en")
    pipeline.add_pipe("rehearsal_tags", name="tagger")
    return pipeline
"""
PROFILE = {
    "name": FEATURES,
    "model": "mean colour",
    "weights": "none",
    "fps": 1 / FRAME_SECONDS,
    "window": 1,
    "stride": 1,
    "short_side_px": WIDTH,
    "crop_px": WIDTH,
    "resize": "bilinear, libswscale",
    "value_range": "0..255",
    "mean": [0, 0, 0],
    "std": [1, 1, 1],
    "tail": "none",
    "layer": "mean",
    "dimension": DIMENSION,
    "precision": "fp32",
    "network": f"{MODULE}:make",
}


def write_stubs(folder: Path) -> Path:
    """Write network and tagger into a folder. Return the file that names the network."""
    about = folder / f"{TAGGER}-1.0.dist-info"
    for made in (folder / TAGGER, about):
        made.mkdir(parents=True)
    (folder / f"{MODULE}.py").write_text(NETWORK)
    (folder / TAGGER / "__init__.py").write_text(PIPELINE)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {TAGGER}\nVersion: 1.0\n")
    profile = folder / "rehearsal.json"
    profile.write_text(json.dumps(PROFILE))
    return profile


def rows_of(video: MadeVideo) -> dict[str, np.ndarray]:
    """Return the columns of a shard that the network gives for a video."""
    starts = np.arange(len(video.colours), dtype="<f8") * FRAME_SECONDS
    return {
        "features": np.tile(video.colours.astype("<f2"), (1, DIMENSION))[:, :DIMENSION],
        "start_seconds": starts,
        "end_seconds": starts + FRAME_SECONDS,
        "valid_frames": np.ones(len(starts), "<i4"),
    }
