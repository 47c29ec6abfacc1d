"""MSR-VTT (Xu et al. 2016): 10,000 web clips, 20 captions each.

Protocols: ``1k-A`` trains on 9,000 clips and tests on 1,000 pairs (Yu et al. 2018, JSFusion; TACo's split1); ``1k-A-7k`` has the same
test and trains on the authors' 7,010 training and validation clips (Miech et al. 2019; TACo's split2); ``1k-B`` is another list of
6,656 and 1,000 (Miech et al. 2018), tested with the first caption of each (CE, MMT); ``full`` is the authors' own, all captions.

1k-B trains on 453 test clips of 1k-A: a model of the one cannot be tested by the other.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_lines, read_rows, text

SENTENCES = ("MSRVTT_data.json", "train_val_videodatainfo.json", "test_videodatainfo.json")
BY_VIDEO = ("sgn_train.json", "sgn_val.json", "sgn_test.json")
FOLDS = tuple(f"MSRVTT_val_fold_{number}.csv" for number in range(1, 5))
"""The first caption of each of 1k-A's training clips."""
PAIRS = "MSRVTT_JSFUSION_test.csv"

LISTS: dict[str, dict[str, tuple[str, ...]]] = {
    "1k-A": {"train": ("MSRVTT_train.9k.csv",), "test": (PAIRS,)},
    "1k-A-7k": {"train": ("MSRVTT_train.7k.csv",), "test": (PAIRS,)},
    "1k-B": {"train": ("train_list_miech.txt",), "test": ("test_list_miech.txt",)},
    "full": {
        "train": ("train_list_full.txt", "MSRVTT_train.full.csv"),
        "validation": ("val_list_full.txt",),
        "test": ("test_list_full.txt", "MSRVTT_test.full.csv"),
    },
}
"""{protocol: {split: names of the same list}}"""


class Sentence(NamedTuple):
    path: Path
    row: str
    number: int
    sentence: Any


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Clips of a list without captions, or with fewer than there are, are one problem a list."""
    lists = _lists(annotations, protocol)
    files = [path for name in (*SENTENCES, *BY_VIDEO, *FOLDS) if (path := annotations.find_optional(name))]
    captions: dict[str, list[Sentence]] = {}
    for path in files:
        captions = (
            _captions_of(annotations, path) | captions
        )  # a clip's captions come from one file, the first that has some
    for split, path in lists.items():
        of_list = _captions_of(annotations, path) if path.name == PAIRS else captions
        videos = _videos(path)
        num_captions = 1 if (protocol, split) == ("1k-B", "test") else None
        missing = sum(video not in of_list for video in videos)
        of_folds = sum(video in of_list and of_list[video][0].path.name in FOLDS for video in videos)
        lacks = [(missing, f"have no captions in {', '.join(file.name for file in files) or 'any file there'}")]
        if num_captions is None:
            lacks.append((of_folds, "have only their first caption, from MSRVTT_val_fold_*.csv"))
        if lacks := [f"{count:,} of {len(videos):,} videos {what}" for count, what in lacks if count]:
            annotations.problems.add(
                f"{path}: {' and '.join(lacks)}; needs {SENTENCES[0]} ({annotations.published[SENTENCES[0]]})"
            )
        for video in videos:
            for sentence in of_list.get(video, [])[:num_captions]:
                try:
                    yield _caption(video, split, sentence)
                except ValueError as error:
                    annotations.drop(sentence.path, sentence.row, str(error))


def list_sizes(annotations: Annotations, protocol: str) -> dict[str, int]:
    """Videos of each split, with captions or without."""
    return {split: len(_videos(path)) for split, path in _lists(annotations, protocol).items()}


def _lists(annotations: Annotations, protocol: str) -> dict[str, Path]:
    names = {split: next(filter(annotations.find_optional, same), same[0]) for split, same in LISTS[protocol].items()}
    return dict(zip(names, annotations.find(*names.values()), strict=True))


def _videos(path: Path) -> list[str]:
    """Each once."""
    names = (
        read_lines(path) if path.suffix == ".txt" else (row["video_id"] for _, row in read_rows(path, ("video_id",)))
    )
    return list(dict.fromkeys(names))


def _captions_of(annotations: Annotations, path: Path) -> dict[str, list[Sentence]]:
    """Of each video, in the order of their numbers, which is not the order in every file."""
    if path.suffix == ".csv":
        captions: dict[str, list[Sentence]] = {}
        for line, row in read_rows(path, ("video_id", "sentence")):
            captions.setdefault(row["video_id"], []).append(Sentence(path, f"line {line}", line, row["sentence"]))
        return captions
    numbered: dict[str, dict[int, Sentence]] = {}
    with as_published(path):
        content = annotations.read_json(path)
        rows = content["sentences"] if path.name in SENTENCES else _by_video(content)
        for place, row in enumerate(rows, start=1):
            with as_published(path, f"sentence {place} of the file"):
                number = int(str(row["sen_id"]))  # an infinite one is a ValueError, too
                sentence = Sentence(path, f"sentence {number}", number, row["caption"])
                of_video = numbered.setdefault(row["video_id"], {})
                if number in of_video:
                    annotations.drop(path, sentence.row, f"the second of video {row['video_id']!r} with this number")
                else:
                    of_video[number] = sentence
    return {video: [of_video[number] for number in sorted(of_video)] for video, of_video in numbered.items()}


def _by_video(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for video_id, sentences in content.items():
        for sen_id, caption in sentences.items():
            yield {"video_id": video_id, "sen_id": sen_id, "caption": caption}


def _caption(video_id: str, split: str, sentence: Sentence) -> Caption:
    if not video_id.strip():
        raise ValueError("no video_id")
    return Caption(video_id=video_id, caption=text(sentence.sentence), split=split)


CLIP4CLIP = "https://github.com/ArrowLuo/CLIP4Clip/releases/download/v0.0/msrvtt_data.zip"
EXPERTS = "https://github.com/albanie/collaborative-experts, misc/datasets/msrvtt/"
DATASET = Dataset(
    read,
    {
        **dict.fromkeys((SENTENCES[0], PAIRS, "MSRVTT_train.9k.csv", "MSRVTT_train.7k.csv"), CLIP4CLIP),
        **dict.fromkeys(SENTENCES[1:], "http://ms-multimedia-challenge.com/2017/dataset"),
        **dict.fromkeys(("train_list_miech.txt", "test_list_miech.txt"), EXPERTS),
        **dict.fromkeys(("train_list_full.txt", "val_list_full.txt", "test_list_full.txt"), EXPERTS),
    },
    protocols=tuple(LISTS),
    facts=lambda annotations, protocol: {
        f"videos listed for {s}": n for s, n in list_sizes(annotations, protocol).items()
    },
)
