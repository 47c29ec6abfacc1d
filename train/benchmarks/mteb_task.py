"""A data set as a retrieval task of mteb, for models of mteb as well as for ``mteb_model``."""

# pyright: reportMissingImports=false
# mteb needs Python 3.11; types are checked on 3.10 too.

import hashlib
from pathlib import Path
from typing import Any, Literal

from ...storage.captions.files import choose_protocol, read_captions
from ...storage.common.errors import SettingError, UserError
from ...storage.dataset.folder import find_prepared
from ...storage.records import SPLITS, Caption
from ..data.usable_captions import captions_of_split
from .mteb_model import check_mteb

Direction = Literal["text_to_video", "video_to_text"]
CATEGORIES: dict[Direction, Literal["t2v", "v2t"]] = {"text_to_video": "t2v", "video_to_text": "v2t"}


def mteb_task(
    dataset: Path | str, *, split: str = "test", direction: Direction = "text_to_video", protocol: str = ""
) -> Any:
    """Return a split of a data set as a task that ``mteb.evaluate`` takes.

    The captions, and the videos that have captions, are the queries and the candidates. Videos have the ids of the data
    set, so that ``mteb_model`` can look up their features. Models that decode videos need the files that the data set
    lists.

    Args:
        dataset: The data set's folder, with captions.
        split: Name of the split: "train", "validation" or "test".
        direction: "text_to_video": captions find videos; "video_to_text": videos find captions.
        protocol: Protocol of the data set; "" for the usual one.

    Returns:
        The task, an ``AbsTaskRetrieval`` called ``<data set>-<split>-t2v`` or ``-v2t``, whose main score is nDCG@10, as
        for the tasks of MVEB.

    Raises:
        UserError: mteb is not installed; the data set or the split has no captions; or captions are about parts of
            videos, which tasks of mteb do not have.

    Example:
        >>> from vlalign.train import mteb_task
        >>> task = mteb_task("vlalign_data/demo")  # mteb.evaluate(model, task) evaluates a model on it
        >>> task.metadata.name
        'demo-test-t2v'
    """
    check_mteb()
    from datasets import Dataset, Video
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata

    if split not in SPLITS:
        raise SettingError("split", split, f"expected one of {', '.join(SPLITS)}")
    if direction not in CATEGORIES:
        raise SettingError("direction", direction, f"expected one of {', '.join(CATEGORIES)}")
    found = choose_protocol(find_prepared(dataset, having="captions", hint="vlalign-preprocess"), protocol)
    captions = list(captions_of_split(read_captions(found.captions), split))
    _check(captions, f"{found.captions}: the {split} split")
    files = {video.video_id: found.video_file(video) for video in found.read_videos() if not video.url}
    text_ids = [str(number) for number in range(len(captions))]
    video_ids = list(dict.fromkeys(caption.video_id for caption in captions))
    sides = {
        "text": Dataset.from_dict({"id": text_ids, "text": [caption.caption for caption in captions]}),
        "video": Dataset.from_dict(
            {"id": video_ids, "video": [files.get(video_id, video_id) for video_id in video_ids]}
        ).cast_column("video", Video()),
    }
    right: dict[str, dict[str, int]] = {}
    for text_id, caption in zip(text_ids, captions, strict=True):
        query, document = (text_id, caption.video_id) if direction == "text_to_video" else (caption.video_id, text_id)
        right.setdefault(query, {})[document] = 1
    queries, corpus = direction.split("_to_")

    class DatasetTask(AbsTaskRetrieval):
        """The data set's split."""

        metadata = TaskMetadata(
            name="-".join(filter(None, (found.name, found.protocol, split, CATEGORIES[direction]))),
            description=f"The {split} split of the data set {found.name}, as vlalign has it.",
            dataset={"path": f"vlalign/{found.name}", "revision": _checksum(captions)},
            type="Any2AnyRetrieval",
            category=CATEGORIES[direction],
            modalities=["text", "video"],
            eval_splits=[split],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, num_proc: int | None = None, **options: Any) -> None:
            """Set the queries, the corpus and the relevant documents."""
            del num_proc, options
            of_split = RetrievalSplitData(
                queries=sides[queries], corpus=sides[corpus], relevant_docs=right, top_ranked=None
            )
            self.dataset = {"default": {split: of_split}}
            self.data_loaded = True

    return DatasetTask()


def _check(captions: list[Caption], where: str) -> None:
    if not captions:
        raise UserError(f"{where} has no captions; pass another split")
    part = next((caption for caption in captions if (caption.start_seconds, caption.end_seconds) != (None, None)), None)
    if part is not None:
        problem = f"has captions of parts of videos ({part.video_id}), and tasks of mteb rank whole files"
        raise UserError(f"{where} {problem}; cut the videos, or use vlalign-evaluate")


def _checksum(captions: list[Caption]) -> str:
    """Return a checksum of the captions: mteb evaluates again if it changed."""
    lines = "\n".join(f"{caption.video_id}\t{caption.caption}" for caption in captions)
    return hashlib.sha256(lines.encode()).hexdigest()[:40]
