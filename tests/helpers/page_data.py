"""Data sets that the commands of the pages take for granted: small files in the published formats, and their videos."""

import csv
import json
import wave
from collections.abc import Iterable
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from vlalign.extract import extract_video, load_extractor
from vlalign.storage import VideoFeatures, Weights, read_captions, write_shard
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

from . import openai_clip
from .made_rows import in_bf16, swapped
from .numbered import busy_picture, numbered_picture, write_video
from .own_network import OWN_NETWORK
from .page_stage import LINES, Home
from .text_frames import frame
from .videos import encode_frames


def write_clips(folder: Path, names: Iterable[str], seconds: int = 4) -> None:
    """Write a short video for each name."""
    for number, name in enumerate(names):
        path = folder / f"{name}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        first = 24 * number
        write_video(path, range(first, first + 24 * seconds), Fraction(1, 24))


def write_photo(path: Path, number: int = 1) -> None:
    """Write an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(numbered_picture(number)).save(path)


def write_recording(path: Path) -> None:
    """Write a second of noise as WAV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(0).integers(-3000, 3000, 16000, dtype=np.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.tobytes())


def annotations(folder: Path, dataset: str) -> Path:
    """Make the folder that the authors' files are put into."""
    path = folder / "vlalign_data" / dataset / "annotations"
    path.mkdir(parents=True)
    return path


def write_youcook2(folder: Path) -> list[str]:
    """Write the files of YouCook2; return the ids of its videos."""
    names = [f"clip{number}" for number in range(len(LINES))]
    into = annotations(folder, "youcook2")
    database = {
        name: {
            "subset": "training",
            "duration": 4,
            "recipe_type": "101",
            "annotations": [{"id": 0, "segment": [0, 4], "sentence": line}],
        }
        for name, line in zip(names[:4], LINES, strict=False)
    }
    (into / "youcookii_annotations_trainval.json").write_text(json.dumps({"database": database}))
    with (into / "validation_youcook.csv").open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["video_id", "start", "end", "text", "task"])
        rows.writerows([name, 0, 4, line, "101"] for name, line in zip(names[4:], LINES[4:], strict=True))
    return names


def write_charades_sta(folder: Path) -> None:
    """Write the files and the videos of Charades-STA."""
    names = [f"AO{number}RW" for number in range(len(LINES))]
    sentences = [f"{name} 0.0 3.0##{line}.\n" for name, line in zip(names, LINES, strict=True)]
    into = annotations(folder, "charades_sta")
    (into / "charades_sta_train.txt").write_text("".join(sentences[:4]))
    (into / "charades_sta_test.txt").write_text("".join(sentences[4:]))
    write_clips(folder / "Charades_v1_480", names)


def write_qvhighlights(folder: Path) -> None:
    """Write the files and the videos of QVHighlights."""
    names, into = [f"id{number}_0.0_4.0" for number in range(len(LINES))], annotations(folder, "qvhighlights")
    scores = {"relevant_clip_ids": [0, 1], "saliency_scores": [[4, 3, 2], [4, 4, 1]], "relevant_windows": [[0, 4]]}
    rows = [
        json.dumps({"qid": number, "query": line, "vid": name, "duration": 4, **scores}) + "\n"
        for number, (name, line) in enumerate(zip(names, LINES, strict=True))
    ]
    (into / "highlight_train_release.jsonl").write_text("".join(rows[:4]))
    (into / "highlight_val_release.jsonl").write_text("".join(rows[4:]))
    write_clips(folder / "qvhighlights_videos", names)


def write_activitynet(folder: Path) -> None:
    """Write the files and the videos of ActivityNet Captions."""
    names, into = [f"v_{number}" for number in range(len(LINES))], annotations(folder, "activitynet")
    videos = {
        name: {"duration": 4.0, "timestamps": [[0, 2], [2, 4]], "sentences": [line, f"{line} again"]}
        for name, line in zip(names, LINES, strict=True)
    }
    for file, some in (("train.json", names[:4]), ("val_1.json", names[4:])):
        (into / file).write_text(json.dumps({name: videos[name] for name in some}))
    write_clips(folder / "activitynet_videos", names)


def write_vsc2022(folder: Path) -> None:
    """Write videos that are copies, and their ground truth."""
    for kind in ("Q10000", "R20000"):
        write_clips(folder / "vsc2022" / "train", [f"{kind}{number}" for number in range(3)])
    pairs = [f"Q10000{number},R20000{number}\n" for number in range(2)]
    (folder / "train_matching_ground_truth.csv").write_text("query_id,ref_id\n" + "".join(pairs))


def write_momentseeker(folder: Path) -> None:
    """Write a long video, and queries about its parts: one with an image, and one with a clip."""
    write_clips(folder / "LONG_VIDEOS", ["movie1"], seconds=16)
    write_photo(folder / "images" / "one.jpg", 30)
    parts = [f"/share/made/movie1/{4 * number:.2f}_{4 * number + 4:.2f}.mp4" for number in range(4)]
    query = {"candidate_video_list": [{"output_path": part} for part in parts], "gt_indices": [0]}
    examples = {
        "movie_ti2v": {"qry_img_path": "made/images/one.jpg", "qry_video_path": ""},
        "movie_tv2v": {"qry_img_path": "", "qry_video_path": parts[1]},
    }
    for name, example in examples.items():
        (folder / f"{name}.json").write_text(json.dumps([{"qry_text": LINES[0], **example, **query}]))


def write_spoken(folder: Path) -> None:
    """Write images and videos with recordings of captions, in the folders of Places and S-MiT."""
    write_photo(folder / "IMAGES" / "a" / "abbey" / "one.jpg")
    write_recording(folder / "PlacesAudio_400k_distro" / "wavs" / "1" / "utt1.wav")
    write_clips(folder / "S-MiT" / "videos" / "abseiling", ["one"])
    write_recording(folder / "RECORDINGS" / "audio" / "abseiling" / "one.wav")


def write_home_videos(folder: Path) -> None:
    """Write videos in a folder and one below it; some with speech, or with text in their frames; and a photo."""
    write_clips(folder / "Videos", ["beach", "2025/holiday/cake"])
    encode_frames(folder / "Videos" / "sign.mp4", [frame("Mind the gap")] * 10, 5)
    speech = Path(__file__).parents[1] / "videos" / "speech" / "english.mkv"
    (folder / "Videos" / "talk.mkv").write_bytes(speech.read_bytes())
    write_photo(folder / "photo.jpg")


def write_clip4clip(folder: Path) -> None:
    """Write a checkpoint of CLIP4Clip, and the CLIP that it began with, without weights.

    The text tower is as wide as the joint space, as in the published ViT-B/32.
    """
    with patch.dict(openai_clip.WIDTHS, {"": openai_clip.PROJECTION}):
        openai_clip.save_like(folder / "clip-vit-base-patch32")
        state = {f"clip.{name}": value for name, value in openai_clip.random_state().items()}
    torch.save(state | {"cross.embeddings.position_embeddings.weight": torch.zeros(3)}, folder / "pytorch_model.bin.4")


def write_own_network(folder: Path) -> None:
    """Write the profile, the module and the weights of a network of a reader's own."""
    (folder / "my_module.py").write_text(OWN_NETWORK)
    profile = asdict(PROFILES["resnet152"]) | {"name": "colours", "model": "mean colours", "weights": "none"}
    profile |= {"dimension": 3, "layer": "mean", "network": "my_module:make", "mean": [0, 0, 0], "std": [1, 1, 1]}
    (folder / "my_profile.json").write_text(json.dumps(profile))
    torch.save({"factor": torch.tensor(2.0)}, folder / "my_weights.pt")


def write_other_features(home: Home, folder: Path) -> None:
    """Write videos, and features of them that others made: normalised, shifted, with swapped colours, and in bf16."""
    (folder / "videos").mkdir()
    extractor = load_extractor("i3d_resnext101", weights=home.path / "cache" / "weights" / "resnext101.pth")
    (folder / "theirs").mkdir()
    kinds = (extractor, extractor, swapped(extractor), in_bf16(extractor))
    for number, of in zip(range(7010, 7014), kinds, strict=True):
        path, first = folder / "videos" / f"video{number}.mp4", 1000 * (number - 7010)
        write_video(path, range(first, first + 112), Fraction(1, 24), picture=busy_picture)
        rows = extract_video(path, [of])["i3d_resnext101"].features.astype(np.float32)
        if number == 7010:
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        np.save(folder / "theirs" / f"video{number}.npy", rows[2:] if number == 7011 else rows)


def write_features(dataset: DatasetFolder, features: str, words_of: dict[str, set[str]]) -> None:
    """Write features that are made of the words of each video's captions, and of noise.

    Args:
        dataset: The data set.
        features: Name of the store.
        words_of: {id of a video: the words of its captions}
    """
    width, rng = PROFILES[features].dimension, np.random.default_rng(0)
    known = sorted(set().union(*words_of.values()))
    vectors = {word: rng.normal(size=width) for word in known}
    times = {"start_seconds": np.arange(2.0), "end_seconds": np.arange(1.0, 3.0), "valid_frames": np.ones(2, int)}
    videos = [
        VideoFeatures(
            video_id=video_id,
            features=sum(vectors[word] for word in sorted(words)) + rng.normal(size=(2, width)),
            duration_seconds=2.0,
            **times,
        )
        for video_id, words in words_of.items()
    ]
    weights = Weights(name="random (seed 0)", sha256="0" * 64)
    write_shard(dataset.features(features), PROFILES[features], weights, videos, made_with={})


def words_of_captions(dataset: DatasetFolder) -> dict[str, set[str]]:
    """Return the words of each video's captions."""
    words: dict[str, set[str]] = {}
    for caption in read_captions(dataset.captions):
        words.setdefault(caption.video_id, set()).update(caption.caption.split())
    return words


def made_demo(home: Home) -> Path:
    """Make the demo once, with features that are made of its captions; return the root that it is in."""
    root = home.path / "made" / "vlalign_data"
    if not root.exists():
        root.parent.mkdir()
        home.call(root.parent, "vlalign-preprocess --dataset demo")
        dataset = DatasetFolder(root, "demo")
        for features in ("s3d", "resnet152"):
            write_features(dataset, features, words_of_captions(dataset))
    return root
