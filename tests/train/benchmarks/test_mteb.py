"""mteb's scores of a model and a task of ours, beside our own evaluation of the same data."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.clips_of_text import save_clip_with_processor
from helpers.needs import package
from helpers.toy import make_toy
from helpers.training import GATED
from helpers.videos import encode_frames
from vlalign.extract import ExtractionSettings, extract_dataset
from vlalign.storage import UserError, read_captions
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import EvaluationSettings, evaluate, mteb_model, mteb_task, open_search, train
from vlalign.train.metrics import retrieval_metrics

mteb = package("mteb")

SHORT = {"batch_size": 4, "num_steps": 2, "validate_every": 1}
CASES = {
    "taco": {"objective": "taco", "num_negatives": 2},  # three stages, one of them with fusion layers
    "mil-nce": {"objective": "mil-nce", **GATED},  # one vector for each side
}
SAME = {"hit_rate_at_1": "R@1", "hit_rate_at_5": "R@5", "hit_rate_at_10": "R@10", "ndcg_at_10": "nDCG@10"}
"""{measure of mteb: of ours}"""
DIRECTIONS = ("text_to_video", "video_to_text")


@pytest.fixture(autouse=True)
def caches_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "cache"))


def scores_of(model, task) -> dict[str, float]:
    """Return what mteb computes, in percent."""
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)[0]
    return {name: 100 * result.scores["test"][0][name] for name in (*SAME, "recall_at_5", "main_score")}


@pytest.fixture(scope="module", params=CASES)
def evaluated(request, tmp_path_factory):
    """A data set with one run, evaluated here."""
    toy = make_toy(tmp_path_factory.mktemp("mteb"), num_videos=80)
    run = train(toy.path, run_name="mine", device="cpu", settings={"features": "s3d"} | SHORT | CASES[request.param])
    return toy, run.folder, evaluate(run.folder, settings=EvaluationSettings(device="cpu")).metrics["metrics"]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_run_has_the_scores_of_our_evaluation(evaluated, direction):
    toy, run, own = evaluated
    found = scores_of(mteb_model(run, dataset=toy.path, device="cpu"), mteb_task(toy.path, direction=direction))
    assert own[direction]["num_queries"] == own[direction]["num_candidates"] == 20
    assert 5 < own[direction]["R@5"] < 100
    for theirs, ours in SAME.items():
        assert found[theirs] == pytest.approx(own[direction][ours], abs=0.01), theirs
    assert found["main_score"] == found["ndcg_at_10"]


def test_the_metadata_say_what_the_score_is_made_of(evaluated):
    toy, run, _ = evaluated
    meta = mteb_model(run, dataset=toy.path, device="cpu").mteb_model_meta
    has_vectors = "mil-nce" in (run / "run.json").read_text()
    assert (meta.name, meta.modalities, meta.framework) == ("vlalign/mine", ["text", "video"], ["PyTorch"])
    assert (meta.embed_dim, meta.similarity_fn_name) == ((16, "dot") if has_vectors else (None, "custom"))


def with_captions(dataset: DatasetFolder, toy: DatasetFolder) -> None:
    """Give the videos of a data set captions of another one: two of each in training, one to three in the others."""
    captions = iter(read_captions(toy.captions))
    numbers = {"train": (2, 2, 2, 2, 2, 2), "validation": (1, 1, 1, 1, 1, 1), "test": (1, 2, 3, 1, 2, 3)}
    made = [
        replace(next(captions), video_id=f"v{video}", split=split)
        for split, counts in numbers.items()
        for video, count in enumerate(counts)
        for _ in range(count)
    ]
    write_part(dataset.captions, 0, made, {})
    write_captions_about(dataset.captions, {"protocol": "toy"})
    for path in (toy.idf, toy.word_vectors):
        shutil.copy(path, dataset.path)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return save_clip_with_processor(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def filmed(clip, tmp_path_factory):
    """A data set of six videos of noise with features of a CLIP, and a run that reads them."""
    root = tmp_path_factory.mktemp("filmed")
    (root / "videos").mkdir()
    chance = np.random.default_rng(0)
    for number in range(6):
        frames = [chance.integers(0, 256, (16, 16, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1) for _ in range(24)]
        encode_frames(root / "videos" / f"v{number}.mp4", frames, 8)
    dataset = DatasetFolder(root, "mine")
    extract_dataset(ExtractionSettings(dataset=dataset.path, features=f"hf:{clip}", videos=root / "videos"))
    with_captions(dataset, make_toy(root, num_videos=80))
    run = train(dataset.path, run_name="mine", device="cpu", settings={"features": "small"} | SHORT | CASES["mil-nce"])
    return dataset, run.folder


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_decoded_videos_have_the_scores_of_the_store(filmed, clip, direction):
    """Also with several captions of a video, of which mteb's recall counts each, and ours one."""
    dataset, run = filmed
    own = evaluate(run, settings=EvaluationSettings(device="cpu")).metrics["metrics"][direction]
    task = mteb_task(dataset.path, direction=direction)
    stored = scores_of(mteb_model(run, dataset=dataset.path, device="cpu"), task)
    decoded = scores_of(mteb_model(run, weights=clip, device="cpu"), task)
    assert stored == decoded
    for theirs, ours in SAME.items():
        assert decoded[theirs] == pytest.approx(own[ours], abs=0.01), theirs
    assert (decoded["recall_at_5"] == pytest.approx(own["R@5"], abs=0.01)) == (direction == "text_to_video")


def test_an_encoder_has_the_scores_of_its_own_vectors(filmed, clip):
    dataset, _ = filmed
    found = open_search(dataset.path, features="small", weights=clip).encoder
    captions = [caption for caption in read_captions(dataset.captions) if caption.split == "test"]
    videos = list(dict.fromkeys(caption.video_id for caption in captions))
    vectors = [found.store.get(video).features.astype(np.float32) for video in videos]
    means = [(rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(axis=0) for rows in vectors]
    texts = np.stack([found.encode_text(caption.caption) for caption in captions])
    similarity = texts @ np.stack([mean / np.linalg.norm(mean) for mean in means]).T
    own = retrieval_metrics(similarity, [videos.index(caption.video_id) for caption in captions])
    for direction in DIRECTIONS:
        task = mteb_task(dataset.path, direction=direction)
        decoded = scores_of(mteb_model(features=f"hf:{clip}", device="cpu"), task)
        assert decoded == scores_of(mteb_model(features="small", dataset=dataset.path), task)
        for theirs, ours in SAME.items():
            assert decoded[theirs] == pytest.approx(own[direction][ours], abs=0.01), theirs


def test_a_video_that_cannot_be_decoded_is_a_miss_in_both_directions(filmed, clip, tmp_path):
    dataset, _ = filmed
    copied = DatasetFolder(tmp_path, "mine")
    shutil.copytree(dataset.path, copied.path)
    (tmp_path / "not.mp4").write_bytes(b"no video")
    copied.write_videos(
        [replace(of, path=str(tmp_path / "not.mp4")) if of.video_id == "v2" else of for of in copied.read_videos()]
    )
    model = mteb_model(features=f"hf:{clip}", device="cpu")
    for direction, num_lost, num_queries in (("text_to_video", 3, 12), ("video_to_text", 1, 6)):
        whole = scores_of(model, mteb_task(dataset.path, direction=direction))["hit_rate_at_10"]
        with pytest.warns(UserWarning, match="1 of 6 videos have no features and count as misses, such as video v2: "):
            rest = scores_of(model, mteb_task(copied.path, direction=direction))["hit_rate_at_10"]
        assert (whole, rest) == (pytest.approx(100), pytest.approx(100 * (1 - num_lost / num_queries), abs=0.01))


def test_videos_may_come_as_bytes_and_msr_vtt_of_mteb_is_said_to_have_879_pairs(filmed, clip):
    from datasets import Dataset, Video

    dataset, _ = filmed
    model, task = mteb_model(features=f"hf:{clip}", device="cpu"), mteb.get_task("MSRVTTT2V")
    files = sorted((dataset.root / "videos").glob("*.mp4"))
    queries = Dataset.from_dict({"id": ["0", "1"], "text": ["a red ball falls", "a blue box"]})
    ids, found = [str(number) for number in range(len(files))], []
    for videos in (map(str, files), ({"bytes": path.read_bytes(), "path": "/etc/passwd"} for path in files)):
        corpus = Dataset.from_dict({"id": ids, "video": list(videos)}).cast_column("video", Video())
        model.index(corpus, task_metadata=task.metadata)
        with pytest.warns(UserWarning, match=r"879 of the 1,000 pairs"):
            found.append(model.search(queries, task_metadata=task.metadata, top_k=3))
    assert found[0] == found[1] and [len(best) for best in found[0].values()] == [3, 3]
    other = mteb_task(dataset.path).metadata
    chosen = model.search(queries, task_metadata=other, top_k=3, top_ranked={"0": ["4"], "1": ["2", "5"]})
    assert [set(best) for best in chosen.values()] == [{"4"}, {"2", "5"}]


def test_another_run_of_the_same_name_has_another_revision(evaluated, tmp_path):
    toy, run, _ = evaluated
    before = mteb_model(run, dataset=toy.path, device="cpu").mteb_model_meta.revision
    assert before == mteb_model(run, dataset=toy.path, device="cpu").mteb_model_meta.revision
    other = make_toy(tmp_path, num_videos=80, seed=1)
    again = train(other.path, run_name="mine", device="cpu", settings={"features": "s3d"} | SHORT | CASES["taco"])
    assert before != mteb_model(again.folder, dataset=other.path, device="cpu").mteb_model_meta.revision


def test_what_cannot_be_asked_ends_in_one_line(filmed, clip, tmp_path, monkeypatch):
    dataset, run = filmed
    with pytest.raises(SettingError, match="run"):
        mteb_model()
    with pytest.raises(SettingError, match="weights"):
        mteb_model(run, dataset=dataset.path, weights=clip)
    with pytest.raises(SettingError, match="split"):
        mteb_task(dataset.path, split="tset")
    with pytest.raises(SettingError, match="direction"):
        mteb_task(dataset.path, direction="t2v")
    model = mteb_model(features=f"hf:{clip}", device="cpu")
    with pytest.raises(UserError, match=r"queries are video, its candidates audio; expected texts and videos"):
        asked_of(model, mteb.get_task("MSRVTTV2A").metadata)
    cut = DatasetFolder(tmp_path, "cut")
    shutil.copytree(dataset.path, cut.path)
    captions = [replace(of, start_seconds=0.0, end_seconds=1.0) for of in read_captions(dataset.captions)]
    shutil.rmtree(cut.captions)
    write_part(cut.captions, 0, captions, {})
    write_captions_about(cut.captions, {"protocol": "toy"})
    with pytest.raises(UserError, match="parts of videos"):
        mteb_task(cut.path)
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(UserError, match=r"mteb is not installed.*mteb>="):
        mteb_model(run)


def asked_of(model, metadata) -> None:
    from datasets import Dataset

    side = Dataset.from_dict({"id": ["0"]})
    model.index(side, task_metadata=metadata)
    model.search(side, task_metadata=metadata, top_k=1)


def test_models_of_mteb_take_a_task_of_ours(filmed, clip):
    """An image model of mteb, which decodes the files by itself and averages 24 frames; ours averages 3."""
    from mteb.models import Video2ImagesWrapper
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerMultimodalEncoderWrapper

    dataset, _ = filmed
    model = SentenceTransformerMultimodalEncoderWrapper(str(clip), device="cpu")
    model.mteb_model_meta = model.mteb_model_meta.model_copy(update={"modalities": ["text", "image"]})
    theirs = Video2ImagesWrapper(model, num_frames=24)
    for direction in DIRECTIONS:
        found = scores_of(theirs, mteb_task(dataset.path, direction=direction))
        assert 0 < found["ndcg_at_10"] <= 100 and found["hit_rate_at_10"] == 100


def test_columns_that_a_task_does_not_compare_change_nothing(filmed, clip):
    """Data sets of MVEB also have the sound beside each video."""
    dataset, _ = filmed
    model, task = mteb_model(features=f"hf:{clip}", device="cpu"), mteb_task(dataset.path)
    expected = scores_of(model, task)
    task.load_data()
    of_split = task.dataset["default"]["test"]
    of_split["corpus"] = of_split["corpus"].add_column("audio", [f"{number}.wav" for number in range(6)])
    assert scores_of(model, task) == expected


def test_the_page_names_the_tasks_that_work():
    text = (Path(__file__).parents[3] / "docs" / "mteb.md").read_text(encoding="utf-8")
    for name in ("MVEB(text, video, v1)", "MVEB(v1)", "MVEB(video, v1)"):
        about = [task.metadata for task in mteb.get_benchmark(name).tasks]
        work = {each.name for each in about if each.type == "Any2AnyRetrieval" and each.category in ("t2v", "v2t")}
        [row] = [line for line in text.splitlines() if line.startswith(f"| `{name}` | ")]
        assert f"| {len(work)} of {len(about)}" in row, (name, len(work), len(about))
        assert set(re.findall(r"`(\w+)`", row.partition(" | ")[2])) == work
