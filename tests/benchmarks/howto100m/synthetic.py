"""A synthetic HowTo100M of any size. What its files hold is computed again from the seed, without reading them.

Of the real one it has the form of the JSON, the captions per video, the words per caption, and the lengths of clips
and videos: 1.22 million videos of 6.5 minutes with 110 captions each, of 4 seconds and 4 words that are no stop words
(Miech et al. 2019, section 3). Its pictures are flat colours, and its words have no meaning.

Two stand-ins for the expensive parts belong to it, a network and a tagger, which the steps load like any other. Both
are in a folder on PYTHONPATH. The network is an encoder of one's own (docs/encoders.md); the tagger is an installed
spaCy pipeline, whose tokens are those of spaCy's English.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord

FRAME_SECONDS = 64
FEWEST_FRAMES, MOST_FRAMES = 3, 9
CAPTIONS_PER_FRAME = 19
"""Six frames of 64 s with 19 captions each: 384 s and 114 captions a video."""
CLIP_SECONDS = 2.0, 6.0
MOST_WORDS = 12
NUM_WORDS = 20_000
VECTOR_SIZE = 16
"""Numbers in the vector of a word."""
WIDTH = 8
"""Of a picture, in pixels."""
TAGS = {"b": "NOUN", "m": "VERB", "s": "ADJ"}
"""{first letter of a word: its part of speech}"""
SYLLABLES = [consonant + vowel for consonant in "dfgklnprtv" for vowel in "aou"]
HELD_OUT_NAME, MOST_HELD_OUT = "held_out", 200
"""The data set of the evaluation, with one caption of each of the first videos."""


@cache
def vocabulary() -> list[str]:
    """Return all words; three syllables tell them apart, and keep them from being English."""
    base = len(SYLLABLES)
    tails = (SYLLABLES[n % base] + SYLLABLES[n // base % base] + SYLLABLES[n // base**2] for n in range(NUM_WORDS))
    return ["bbbmms"[number % 6] + "a" + tail for number, tail in enumerate(tails)]


@dataclass(frozen=True)
class Clip:
    """A caption as the file has it."""

    start_seconds: float
    end_seconds: float
    text: str


@dataclass(frozen=True)
class SyntheticVideo:
    """A video, and what is said in it. Both are drawn when they are asked for, the same each time."""

    number: int
    seed: int

    @property
    def video_id(self) -> str:
        """The video's name."""
        return f"v{self.number:010d}"

    @property
    def record(self) -> VideoRecord:
        """The line of ``videos.jsonl``."""
        return VideoRecord(video_id=self.video_id, path=f"videos/{self.video_id[:8]}/{self.video_id}.avi")

    @cached_property
    def colours(self) -> np.ndarray:
        """The pictures, uint8 [frames, 3]."""
        rng = np.random.default_rng([self.seed, self.number])
        return rng.integers(0, 256, (int(rng.integers(FEWEST_FRAMES, MOST_FRAMES + 1)), 3), dtype=np.uint8)

    @cached_property
    def clips(self) -> list[Clip]:
        """The captions."""
        rng = np.random.default_rng([self.seed, self.number, 1])
        num_clips = CAPTIONS_PER_FRAME * len(self.colours)
        starts = (np.arange(num_clips) + rng.random(num_clips)) * (FRAME_SECONDS / CAPTIONS_PER_FRAME)
        starts = np.floor(100 * starts) / 100  # rounded up, the last one could start at the video's end
        ends = starts + rng.uniform(*CLIP_SECONDS, num_clips)
        counts = np.minimum(1 + rng.poisson(3.0, num_clips), MOST_WORDS)
        words = (NUM_WORDS * rng.random(counts.sum()) ** 3).astype(int).tolist()  # some words are frequent
        known, texts, first = vocabulary(), [], 0
        for count in counts.tolist():
            texts.append(" ".join(known[word] for word in words[first : first + count]))
            first += count
        times = zip(starts.tolist(), ends.round(2).tolist(), texts, strict=True)
        return [Clip(*clip) for clip in times]


@dataclass(frozen=True)
class SyntheticDataset:
    """All videos of the data set."""

    num_videos: int
    seed: int

    def __iter__(self) -> Iterator[SyntheticVideo]:
        return map(self.video, range(self.num_videos))

    def video(self, number: int) -> SyntheticVideo:
        """Return a video."""
        return SyntheticVideo(number, self.seed)

    @property
    def num_held_out(self) -> int:
        """Number of videos of the evaluation."""
        return min(self.num_videos, MOST_HELD_OUT)

    def write(self, dataset: DatasetFolder) -> int:
        """Write videos, their list, and the file of captions into the data set's folder.

        Returns:
            The number of captions.
        """
        annotations, num_captions = dataset.path / "annotations", 0
        annotations.mkdir(parents=True)
        with (annotations / "caption.json").open("w") as file:
            for number, video in enumerate(self):
                path = dataset.path / video.record.path
                if number % 1000 == 0:
                    path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(film(video.colours))
                columns = {
                    "start": [clip.start_seconds for clip in video.clips],
                    "end": [clip.end_seconds for clip in video.clips],
                    "text": [clip.text for clip in video.clips],
                }
                file.write(f'{", " if number else "{"}"{video.video_id}": {json.dumps(columns)}')
                num_captions += len(video.clips)
            file.write("}")
        dataset.write_videos([video.record for video in self])
        return num_captions

    def write_word_vectors(self, path: Path) -> Path:
        """Write a random vector for each word, in word2vec's text format. Return the file."""
        vectors = np.random.default_rng(self.seed).standard_normal((NUM_WORDS, VECTOR_SIZE)).round(3).tolist()
        lines = (" ".join([word, *map(str, vector)]) for word, vector in zip(vocabulary(), vectors, strict=True))
        path.write_text("\n".join([f"{NUM_WORDS} {VECTOR_SIZE}", *lines]) + "\n")
        return path

    def write_held_out(self, dataset: DatasetFolder) -> Path:
        """Write a table with the first caption of some videos, and let their features be those of ``dataset``.

        Returns:
            The table.
        """
        held_out = DatasetFolder(dataset.root, HELD_OUT_NAME)
        held_out.path.mkdir(exist_ok=True)
        (held_out.path / "features").symlink_to(dataset.path / "features")
        lines = ["video_id,start_seconds,end_seconds,split,caption"]
        for video in map(self.video, range(self.num_held_out)):
            clip = video.clips[0]
            lines.append(f"{video.video_id},{clip.start_seconds},{clip.end_seconds},test,{clip.text}")
        table = held_out.path / "captions.csv"
        table.write_text("\n".join(lines) + "\n")
        return table


def film(colours: np.ndarray) -> bytes:
    """Return an AVI file, not compressed, with a picture of one colour every ``FRAME_SECONDS``.

    Args:
        colours: uint8 [frames, 3]
    """
    count, size = len(colours), 3 * WIDTH**2
    pictures = [bytes(reversed(colour)) * WIDTH**2 for colour in colours.tolist()]
    main = struct.pack("<10I16x", FRAME_SECONDS * 10**6, size, 0, 0x10, count, 0, 1, size, WIDTH, WIDTH)
    stream = struct.pack("<4s3IHH4I", b"vids", 0, 0, 0, 0, 0, FRAME_SECONDS, 1, 0, count)
    stream += struct.pack("<IiI4H", size, -1, 0, 0, 0, WIDTH, WIDTH)
    bitmap = struct.pack("<IiiHHII16x", 40, WIDTH, WIDTH, 1, 24, 0, size)
    header = b"hdrl" + _chunk(b"avih", main)
    header += _chunk(b"LIST", b"strl" + _chunk(b"strh", stream) + _chunk(b"strf", bitmap))
    movie = b"movi" + b"".join(_chunk(b"00db", picture) for picture in pictures)
    places = (struct.pack("<4s3I", b"00db", 0x10, 4 + number * (8 + size), size) for number in range(count))
    return _chunk(
        b"RIFF", b"AVI " + _chunk(b"LIST", header) + _chunk(b"LIST", movie) + _chunk(b"idx1", b"".join(places))
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content


FEATURES, TAGGER = "mean_colours", "letter_tagger"
MODULE, DIMENSION = "mean_colours_network", 32
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

@Language.component("tags_by_letter")
def tags(doc):
    for token in doc:
        token.pos_ = {TAGS!r}.get(token.text[0], "X")
    return doc

def load(**_):
    pipeline = spacy.blank("en")
    pipeline.add_pipe("tags_by_letter", name="tagger")
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
    profile = folder / "mean_colours.json"
    profile.write_text(json.dumps(PROFILE))
    return profile


def rows_of(video: SyntheticVideo) -> dict[str, np.ndarray]:
    """Return the columns of a shard that the network gives for a video."""
    starts = np.arange(len(video.colours), dtype="<f8") * FRAME_SECONDS
    return {
        "features": np.tile(video.colours.astype("<f2"), (1, DIMENSION))[:, :DIMENSION],
        "start_seconds": starts,
        "end_seconds": starts + FRAME_SECONDS,
        "valid_frames": np.ones(len(starts), "<i4"),
    }
