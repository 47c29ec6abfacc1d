"""CLIP's text tower is transformers' own, to rounding, and files that are not one are refused in one line."""

import json
import shutil

import numpy as np
import pytest
import torch
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from vlalign.extract import load_extractor
from vlalign.extract.encoders.text_tower import load_text_tower
from vlalign.extract.encoders.weights_paths import remember_weights
from vlalign.storage import UserError, Weights
from vlalign.storage.profiles import PROFILES

TEXTS = ["a dog catches a frisbee", "Onions!  and\ttomatoes, 12 of them", "", "ÜBER 円 🙂", "word " * 200]
CLIP = PROFILES["clip_vit_b32"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    tokenizer = word_tokenizer(TEXTS[:2])
    model = new_clip(tokenizer)
    return save_clip(model, tokenizer, tmp_path_factory.mktemp("clip") / "small-clip"), model, tokenizer


def used(folder):
    return load_extractor("clip_vit_b32", weights=folder).weights


def test_texts_get_the_vectors_of_transformers(clip):
    folder, model, tokenizer = clip
    tower = load_text_tower(CLIP, used(folder), folder)
    for text in TEXTS:
        inputs = tokenizer([text], truncation=True, max_length=77, return_tensors="pt")
        assert tower.token_ids(text) == inputs["input_ids"][0].tolist(), text
        with torch.inference_mode():
            expected = model.get_text_features(**inputs)
        expected = getattr(expected, "pooler_output", expected)[0].numpy()
        np.testing.assert_allclose(tower.encode([text])[0], expected / np.linalg.norm(expected), atol=2e-6)
    assert tower.is_cut(TEXTS[-1]) and not tower.is_cut(TEXTS[0])


def test_frames_get_the_vectors_of_transformers(clip):
    folder, model, _ = clip
    frames = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), dtype=np.uint8)
    normalised = (torch.from_numpy(frames).float() / 255 - torch.tensor(CLIP.mean)) / torch.tensor(CLIP.std)
    with torch.inference_mode():
        expected = model.get_image_features(pixel_values=normalised.movedim(-1, 1))
    expected = getattr(expected, "pooler_output", expected)
    extractor = load_extractor("clip_vit_b32", weights=folder)
    assert extractor.weights.name == "small-clip" and len(extractor.weights.sha256) == 64
    torch.testing.assert_close(extractor.features(frames), expected, atol=1e-5, rtol=1e-4)


def test_the_place_of_weights_is_remembered(clip):
    folder, _, _ = clip
    weights = used(folder)
    with pytest.raises(UserError, match=r"small-clip.* clip_vit_b32.*--weights"):
        load_text_tower(CLIP, weights)
    remember_weights(weights, folder)
    assert load_text_tower(CLIP, weights).encode(["dog"]).shape == (1, 512)


def test_what_has_no_text_tower_is_refused(clip):
    folder, _, _ = clip
    with pytest.raises(UserError, match=r"s3d: S3D-G .*clip_vit_b32"):
        load_text_tower(PROFILES["s3d"], Weights(name="x", sha256="0" * 64))
    with pytest.raises(UserError, match=r"\(seed 0\)"):
        load_text_tower(CLIP, Weights(name="random (seed 0)", sha256="0" * 64), folder)
    with pytest.raises(UserError, match=r"SHA-256 .*\bother, 0{16}"):
        load_text_tower(CLIP, Weights(name="other", sha256="0" * 64), folder)


def edit(folder, name, change):
    about = json.loads((folder / name).read_text())
    change(about)
    (folder / name).write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", lambda c: c.update(model_type="bert"), "config.json.*'bert'"),
        ("config.json", lambda c: c["text_config"].update(num_hidden_layers=10**9), "model.safetensors.* 1000000000 "),
        ("config.json", lambda c: c["text_config"].update(hidden_size=10**6), "model.safetensors.*1000000"),
        ("config.json", lambda c: c["text_config"].update(num_attention_heads=7), r"config\.json.*\b7 "),
        ("config.json", lambda c: c["text_config"].update(hidden_act="__import__"), "hidden_act"),
        ("tokenizer.json", lambda c: c.pop("model"), r"tokenizer\.json"),
        ("tokenizer.json", lambda c: c["model"]["merges"].append(["no", "such"]), r"tokenizer\.json"),
        ("tokenizer.json", lambda c: c["model"]["vocab"].update(new=10**6), r"tokenizer\.json"),
    ],
)
def test_hostile_folders_are_refused_in_one_line(clip, tmp_path, name, change, message):
    folder, _, _ = clip
    copy = shutil.copytree(folder, tmp_path / "copy")
    edit(copy, name, change)
    with pytest.raises(UserError, match=message) as refused:
        load_text_tower(CLIP, used(folder), copy)
    assert "\n" not in str(refused.value)


def test_a_folder_without_tokenizer_says_what_belongs_there(clip, tmp_path, monkeypatch):
    folder, _, _ = clip
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    with pytest.raises(UserError, match=r"tokenizer\.json: .*vocab\.json"):
        load_text_tower(CLIP, used(folder), copy)
    with pytest.raises(UserError, match=r"projection_dim 64, .* 512"):
        edit(copy, "config.json", lambda c: c.update(projection_dim=64))
        load_extractor("clip_vit_b32", weights=copy)
