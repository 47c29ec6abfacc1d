"""MSR-VTT (Xu et al. 2016): 10,000 web clips with 20 captions each.

Protocols:

- ``1k-A``: trains on 9,000 clips and tests on 1,000 pairs (Yu et al. 2018, JSFusion; TACo's split1).
- ``1k-A-7k``: the same test set; trains on the 7,010 official training and validation clips (Miech et al. 2019;
  TACo's split2).
- ``1k-B``: other lists of 6,656 and 1,000 clips (Miech et al. 2018), tested with the first caption of each (CE, MMT).
- ``full``: the official splits, all captions.

The training split of 1k-B contains 453 test clips of 1k-A: do not test a model of one protocol with the other.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_lines, read_rows, text

SENTENCES = ("MSRVTT_data.json", "train_val_videodatainfo.json", "test_videodatainfo.json")
MIRRORS = ("msrvtt_train_9k.json", "msrvtt_train_7k.json", "msrvtt_test_1k.json")
"""The lists of 1k-A with their captions, as published on the Hugging Face hub (friedrichor/MSR-VTT and others). A test
clip has its caption as a text, and a training clip has a list of captions."""
BY_VIDEO = ("sgn_train.json", "sgn_val.json", "sgn_test.json")
FOLDS = tuple(f"MSRVTT_val_fold_{number}.csv" for number in range(1, 5))
"""Files with the first caption of each training clip of 1k-A."""
PAIRS = "MSRVTT_JSFUSION_test.csv"

LISTS: dict[str, dict[str, tuple[str, ...]]] = {
    "1k-A": {"train": ("MSRVTT_train.9k.csv", MIRRORS[0]), "test": (PAIRS, MIRRORS[2])},
    "1k-A-7k": {"train": ("MSRVTT_train.7k.csv", MIRRORS[1]), "test": (PAIRS, MIRRORS[2])},
    "1k-B": {"train": ("train_list_miech.txt",), "test": ("test_list_miech.txt",)},
    "full": {
        "train": ("train_list_full.txt", "MSRVTT_train.full.csv"),
        "validation": ("val_list_full.txt",),
        "test": ("test_list_full.txt", "MSRVTT_test.full.csv"),
    },
}
"""For each protocol and split, the names under which its list of clips is published."""


class ListedSentence(NamedTuple):
    """A caption as read from a file, unchecked."""

    path: Path
    row: str
    """Place in the file, for messages."""
    number: int
    sentence: Any


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of the listed clips. Missing captions are reported in one line per list."""
    lists = _lists(annotations, protocol)
    files = [
        path for name in (*SENTENCES, *BY_VIDEO, *MIRRORS[:2], *FOLDS) if (path := annotations.find_optional(name))
    ]
    captions: dict[str, list[ListedSentence]] = {}
    for path in files:  # all captions of a clip come from one file: the first that has any
        captions = _read_captions(annotations, path) | captions
    for split, path in lists.items():
        available = _read_captions(annotations, path) if path.name in (PAIRS, MIRRORS[2]) else captions
        videos = _read_list(annotations, path)
        num_captions = 1 if (protocol, split) == ("1k-B", "test") else None
        _report_missing(annotations, path, videos, available, files, first_is_enough=num_captions is not None)
        for video in videos:
            for sentence in available.get(video, [])[:num_captions]:
                try:
                    yield _caption(video, split, sentence)
                except ValueError as error:
                    annotations.drop(sentence.path, sentence.row, str(error))


def _report_missing(
    annotations: Annotations,
    path: Path,
    videos: list[str],
    captions: Mapping[str, list[ListedSentence]],
    files: Iterable[Path],
    *,
    first_is_enough: bool,
) -> None:
    """Report how many clips of the list at ``path`` lack captions."""
    num_without = sum(video not in captions for video in videos)
    num_first_only = sum(video in captions and captions[video][0].path.name in FOLDS for video in videos)
    lacks = [(num_without, f"have no captions in {', '.join(file.name for file in files) or 'any file there'}")]
    if not first_is_enough:
        lacks.append((num_first_only, "have only their first caption, from MSRVTT_val_fold_*.csv"))
    if reasons := [f"{count:,} of {len(videos):,} videos {reason}" for count, reason in lacks if count]:
        annotations.problems.add(
            f"{path}: {' and '.join(reasons)}; needs {SENTENCES[0]} ({annotations.published[SENTENCES[0]]})"
        )


def list_sizes(annotations: Annotations, protocol: str) -> dict[str, int]:
    """Return the number of clips listed for each split, with or without captions."""
    return {split: len(_read_list(annotations, path)) for split, path in _lists(annotations, protocol).items()}


def _lists(annotations: Annotations, protocol: str) -> dict[str, Path]:
    names = {split: next(filter(annotations.find_optional, same), same[0]) for split, same in LISTS[protocol].items()}
    return dict(zip(names, annotations.find(*names.values()), strict=True))


def _read_list(annotations: Annotations, path: Path) -> list[str]:
    """Return the ids in a list of clips, without duplicates."""
    if path.name in MIRRORS:
        return list(_read_mirror(annotations, path))
    if path.suffix == ".txt":
        return list(dict.fromkeys(read_lines(path)))
    return list(dict.fromkeys(row["video_id"] for _, row in read_rows(path, ("video_id",))))


def _read_captions(annotations: Annotations, path: Path) -> dict[str, list[ListedSentence]]:
    """Return the captions of each clip, ordered by their numbers; not every file has this order."""
    if path.suffix == ".csv":
        captions: dict[str, list[ListedSentence]] = {}
        for line, row in read_rows(path, ("video_id", "sentence")):
            captions.setdefault(row["video_id"], []).append(ListedSentence(path, f"line {line}", line, row["sentence"]))
        return captions
    if path.name in MIRRORS:
        return _read_mirror(annotations, path)
    numbered: dict[str, dict[int, ListedSentence]] = {}
    with as_published(path):
        content = annotations.read_json(path)
        rows = content["sentences"] if path.name in SENTENCES else _by_video(content)
        for position, row in enumerate(rows, start=1):
            with as_published(path, f"sentence {position} of the file"):
                number = int(str(row["sen_id"]))  # through text, so that infinity is also a ValueError
                sentence = ListedSentence(path, f"sentence {number}", number, row["caption"])
                of_video = numbered.setdefault(row["video_id"], {})
                if number in of_video:
                    annotations.drop(
                        path, sentence.row, f"a second sentence of video {row['video_id']!r} with this number"
                    )
                else:
                    of_video[number] = sentence
    return {video: [of_video[number] for number in sorted(of_video)] for video, of_video in numbered.items()}


def _read_mirror(annotations: Annotations, path: Path) -> dict[str, list[ListedSentence]]:
    captions: dict[str, list[ListedSentence]] = {}
    for position, clip in enumerate(annotations.read_json(path, list), start=1):
        with as_published(path, f"clip {position}"):
            video_id, sentences = clip["video_id"], clip["caption"]
            if not isinstance(video_id, str) or not isinstance(sentences, str | list):
                raise TypeError("expected video_id, a text, and caption, a text or a list")
        listed = captions.setdefault(video_id, [])
        for sentence in [sentences] if isinstance(sentences, str) else sentences:
            listed.append(ListedSentence(path, f"clip {position}, caption {len(listed) + 1}", len(listed), sentence))
    return captions


def _by_video(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for video_id, sentences in content.items():
        for sen_id, caption in sentences.items():
            yield {"video_id": video_id, "sen_id": sen_id, "caption": caption}


def _caption(video_id: str, split: str, sentence: ListedSentence) -> Caption:
    if not video_id.strip():
        raise ValueError("no video_id")
    return Caption(video_id=video_id, caption=text(sentence.sentence), split=split)


def facts(annotations: Annotations, protocol: str) -> dict[str, int | str]:
    """Return the sizes of the lists."""
    return {f"videos listed for {split}": size for split, size in list_sizes(annotations, protocol).items()}


CLIP4CLIP = "https://github.com/ArrowLuo/CLIP4Clip/releases/download/v0.0/msrvtt_data.zip"
EXPERTS = "https://github.com/albanie/collaborative-experts, misc/datasets/msrvtt/"
DATASET = Dataset(
    read,
    {
        **dict.fromkeys((SENTENCES[0], PAIRS, "MSRVTT_train.9k.csv", "MSRVTT_train.7k.csv"), CLIP4CLIP),
        **dict.fromkeys(MIRRORS, "https://huggingface.co/datasets/friedrichor/MSR-VTT"),
        **dict.fromkeys(SENTENCES[1:], "http://ms-multimedia-challenge.com/2017/dataset"),
        **dict.fromkeys(("train_list_miech.txt", "test_list_miech.txt"), EXPERTS),
        **dict.fromkeys(("train_list_full.txt", "val_list_full.txt", "test_list_full.txt"), EXPERTS),
    },
    protocols=tuple(LISTS),
    facts=facts,
)
