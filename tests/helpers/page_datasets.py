"""Small data sets that pages name: annotations in the published layouts, and features of random numbers."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.datasets.crosstask import NUM_TRAIN
from vlalign.preprocess.datasets.demo import plan_scenes
from vlalign.storage import VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import read_captions
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

from .annotation_files import coin_video, howto_video, question_files, youcook, youcook_clip
from .numbered import constant
from .readers import lines, write
from .text_frames import frame

TEXTS = ("cut the onion", "fry the fish", "pour the water", "stir the rice", "wash the pan", "peel the egg")
SECONDS = 20
NUM_CROSSTASK = NUM_TRAIN + 4
"""Two videos are validation, and two are left for the test."""
LINES_OF_MSRVTT = {
    "MSRVTT_train.9k.csv": lines("video_id", *(f"video{number}" for number in range(4))),
    "MSRVTT_train.7k.csv": lines("video_id", *(f"video{number}" for number in range(3))),
    "MSRVTT_JSFUSION_test.csv": lines(
        "key,vid_key,video_id,sentence", *(f"ret{n},msr{n},video{n},{TEXTS[n]}" for n in (4, 5))
    ),
}


def folder_of(folder: Path, dataset: str) -> DatasetFolder:
    """Return a data set at the place where commands that run in a folder look for it."""
    return DatasetFolder(folder / "vlalign_data", dataset)


def write_rows(dataset: DatasetFolder, features: str, video_ids: list[str], seconds: int = SECONDS) -> None:
    """Write a random feature vector for each second of some videos; all such features have the same weights."""
    rng, profile = np.random.default_rng(0), PROFILES[features]
    times = {"start_seconds": np.arange(seconds), "end_seconds": np.arange(seconds) + 1}
    times |= {"valid_frames": np.ones(seconds, int), "duration_seconds": float(seconds)}
    videos = [
        VideoFeatures(video_id=video_id, features=rng.normal(size=(seconds, profile.dimension)), **times)
        for video_id in video_ids
    ]
    write_shard(dataset.features(features), profile, Weights(name="made", sha256="0" * 64), videos, made_with={})


def write_official(folder: Path, dataset: str) -> DatasetFolder:
    """Write the annotations of a data set where its publisher's files belong, and the features of its recipes."""
    files, features, video_ids = OFFICIAL[dataset]
    made = folder_of(folder, dataset)
    write(made.path / "annotations", files)
    for name in features:
        write_rows(made, name, video_ids)
    return made


def _youcook2() -> Mapping[str, object]:
    clips = [youcook_clip(number, 4 * number, 4 * number + 4, TEXTS[number]) for number in range(4)]
    return {
        "youcookii_annotations_trainval.json": {"database": {f"y{n}": youcook(clips) for n in range(3)}},
        "validation_youcook.csv": "end,start,task,text,video_id\n9,3,102,stir the rice,y3\n19,10,102,wash the pan,y3\n",
    }


def _howto100m() -> Mapping[str, object]:
    cues = [(5 * n, 5 * n + 5, f"now you {text} and then we sharpen a knife") for n, text in enumerate(TEXTS[:4])]
    return {"caption.json": {f"id{number}": howto_video(*cues) for number in range(1, 5)}}


def _crosstask() -> Mapping[str, object]:
    files = {"tasks_primary.txt": "1\nMake Tea\nhttp://x\n2\npour water,stir tea\n\n"}
    files["videos.csv"] = "".join(f"1,c{number},http://c{number}\n" for number in range(NUM_CROSSTASK))
    files["videos_val.csv"] = "1,c2,http://c2\n1,c3,http://c3\n"
    return files | {f"annotations/1_c{number}.csv": "1,0.0,2.5\n2,5.0,9.0\n" for number in range(NUM_CROSSTASK)}


def _coin() -> Mapping[str, object]:
    segments = [("7", [1.0, 6.0], "pour water"), ("8", [8.0, 15.0], "stir tea")]
    splits = ("training", "training", "training", "training", "testing", "testing")
    return {
        "COIN.json": {"database": {f"s{n}": coin_video(split, segments, SECONDS) for n, split in enumerate(splits)}}
    }


def _msrvtt() -> Mapping[str, object]:
    sentences = [
        {"caption": text, "video_id": f"video{video}", "sen_id": 6 * video + number}
        for video in range(6)
        for number, text in enumerate(TEXTS)
    ]
    videos = [{"video_id": f"video{number}", "split": "train", "url": "?"} for number in range(6)]
    return {"MSRVTT_data.json": {"videos": videos, "sentences": sentences}, **LINES_OF_MSRVTT}


def _msvd_qa() -> Mapping[str, object]:
    questions = {name.replace("__", "."): content for name, content in question_files("json").items()}
    return questions | {"youtube_mapping.txt": lines(*(f"clip-_{n}_{n}_{n + 4} vid{n}" for n in range(300)))}


OFFICIAL = {
    "youcook2": (_youcook2(), ("resnet152", "s3d"), [f"y{number}" for number in range(4)]),
    "howto100m": (_howto100m(), ("resnet152", "s3d"), [f"id{number}" for number in range(1, 5)]),
    "crosstask": (_crosstask(), ("resnet152", "s3d"), [f"c{number}" for number in range(NUM_CROSSTASK)]),
    "coin": (_coin(), ("s3d",), [f"s{number}" for number in range(6)]),
    "msrvtt": (_msrvtt(), (), []),
    "msvd_qa": (_msvd_qa(), ("resnet152", "i3d_resnext101"), [f"clip-_{n}_{n}_{n + 4}" for n in range(300)]),
}
"""{data set: (annotations, features, videos)}"""


def write_demo_rows(folder: Path) -> None:
    """Write features of the data set demo, whose captions are there."""
    dataset = folder_of(folder, "demo")
    video_ids = sorted({caption.video_id for caption in read_captions(dataset.captions)})
    for name in ("resnet152", "s3d"):
        write_rows(dataset, name, video_ids, seconds=2)


def write_demo_video(folder: Path) -> None:
    """Write a video of the demo."""
    folder.mkdir(parents=True)
    render_video(plan_scenes(0)[0][1], folder / "longer.mp4")


def write_word_vectors(path: Path) -> None:
    """Write vectors of words as word2vec does, as text."""
    words = sorted(
        {word for text in TEXTS for word in text.split()} | {"what", "who", "man", "rice", "cooking", "rain"}
    )
    rows = np.random.default_rng(0).normal(size=(len(words), 20))
    path.write_text(
        f"{len(words)} 20\n"
        + "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, rows.round(4), strict=True))
    )


def write_files_of_other_tools(folder: Path) -> None:
    """Write features as VideoFeatureExtractor, video_features, CLIP4Clip's users and MMPT do."""
    rng = np.random.default_rng(0)
    files = {"resnet152/a": 2048, "resnext101/a": 2048, "s3d/a_s3d": 1024, "i3d/a_rgb": 1024, "feat_how2_s3d/a": 512}
    for name, width in files.items():
        (folder / name).parent.mkdir()
        np.save(folder / f"{name}.npy", rng.normal(size=(3, width)).astype(np.float32))
    (folder / "clip4clip.pickle").write_bytes(pickle.dumps({"a": rng.normal(size=(3, 512)).astype(np.float32)}))
    (folder / "seconds.csv").write_text("video_id,seconds\na,6\n")


def write_experts(folder: Path) -> None:
    """Write two features of a video into one pickle, as {video: {feature: rows}}."""
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(3, width)).astype(np.float32) for name, width in (("rgb", 1024), ("audio", 128))}
    (folder / "experts.pkl").write_bytes(pickle.dumps({"a": rows}))


def write_text_video(path: Path) -> None:
    """Write a video of three seconds that shows a line of text."""
    constant(path, 72, picture=lambda number: frame("preheat the oven"))
