"""Encoders that transformers loads: pixels and features of the library's own processor and model, and refusals."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import transformers
from helpers.hub_models import (
    FRAMES,
    IMAGE_MODELS,
    OPTIONS,
    TEXT,
    VIDEO_MODELS,
    own_features,
    own_pixels,
    save_model,
    windows_of,
)
from helpers.videos import scene
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.video_utils import VideoMetadata, default_sample_indices_fn
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.decoding.decode import decode_video
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.sampling import Window
from vlalign.extract.encoders.hub import HubEncoder
from vlalign.extract.extractor import load_for_store
from vlalign.extract.pipeline.video_jobs import frame_spec_of
from vlalign.extract.videos.demo import render_video
from vlalign.storage import FeatureStore, UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.hub.names import read_hub_name

WIDTH, HEIGHT = 100, 70
SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
MODELS = [*IMAGE_MODELS, *VIDEO_MODELS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: save_model(name, folder) for name in MODELS}


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "x.mp4"
    render_video(scene(3.0, width=WIDTH, height=HEIGHT), path)
    return path


def encoder_of(folder) -> str:
    return f"hf:{folder}{OPTIONS.get(folder.name, '')}"


@pytest.mark.parametrize("name", MODELS)
def test_pixels_and_features_are_the_librarys_own(folders, video, name):
    folder = folders[name]
    extractor = load_extractor(encoder_of(folder))
    profile = extractor.profile
    assert profile.window == (FRAMES if name in VIDEO_MODELS else 1)
    rows = windows_of(video, profile.fps, profile.window)
    if name == "clip-pillow":  # the library reads it with torchvision unless it is told otherwise
        return
    expected = torch.cat([own_pixels(folder, row) for row in rows])
    wanted = [
        part.frames.copy()
        for part in decode_video(probe_video(video), [frame_spec_of(profile)])
        if isinstance(part, Window)
    ]
    ours = (torch.from_numpy(np.stack(wanted)).float() / 255 - torch.tensor(profile.mean)) / torch.tensor(profile.std)
    torch.testing.assert_close(ours.movedim(-1, -3), expected, rtol=0, atol=2e-6 * 255)
    theirs = own_features(folder, expected)
    assert theirs.std(dim=0).max() > 1e-3, "features that are the same for all rows would prove nothing"
    found = extract_video(video, [extractor])[profile.name].features
    np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))
    backwards = extractor.features(np.stack(wanted[::-1])).numpy()
    one_by_one = np.concatenate([extractor.features(frames[None]).numpy() for frames in wanted])
    for other in (backwards[::-1], one_by_one):
        np.testing.assert_allclose(other, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("name", ["vjepa2", "xclip"])
def test_frames_are_spread_over_the_whole_video(folders, video, name, tmp_path):
    """As many as the model sees, those that the library's own video processors take of a video."""
    [frames] = windows_of(video, 25, 75)
    taken = default_sample_indices_fn(VideoMetadata(total_num_frames=len(frames)), num_frames=FRAMES)
    expected = own_features(folders[name], own_pixels(folders[name], [frames[index] for index in taken]))
    extractor = load_extractor(f"hf:{folders[name]}{':mean' if name == 'vjepa2' else ''}:whole")
    assert extractor.profile.fps is None and extractor.profile.name.endswith("--whole")
    found = extract_video(video, [extractor])[extractor.profile.name]
    np.testing.assert_allclose(found.features, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert (found.start_seconds.tolist(), found.end_seconds.tolist()) == ([0.0], [3.0])
    picture = tmp_path / "x.png"
    Image.fromarray(frames[0]).save(picture)
    same = own_features(folders[name], own_pixels(folders[name], frames[:1] * FRAMES))
    found = extract_video(picture, [extractor])[extractor.profile.name].features
    np.testing.assert_allclose(found, same, rtol=1e-4, atol=1e-4 * float(same.abs().max()))


def test_an_encoder_over_the_whole_video_is_found_again(folders, video):
    """By the profile of its store, such as for the vector of a picture that is searched for."""
    extractor = load_extractor(f"hf:{folders['xclip']}:whole")
    again = load_for_store(extractor.profile, folders["xclip"])
    assert (again.profile, again.weights) == (extractor.profile, extractor.weights)
    name = extractor.profile.name
    first, second = (extract_video(video, [each])[name].features for each in (extractor, again))
    np.testing.assert_array_equal(first, second)


def test_pooling_is_what_the_name_says(folders, video):
    rows = {}
    for option in ("", ":mean", ":first", ":tokens"):
        extractor = load_extractor(f"hf:{folders['dinov2']}{option}")
        rows[option] = extract_video(video, [extractor])[extractor.profile.name].features
    tokens = rows[":tokens"].reshape(len(rows[""]), 17, 32)
    np.testing.assert_allclose(rows[":mean"], tokens.mean(axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rows[":first"], tokens[:, 0])
    np.testing.assert_allclose(rows[""], tokens[:, 0], rtol=1e-5, atol=1e-5)  # DINOv2's own vector


def test_the_command_extracts_with_a_folder_and_refuses_other_weights(folders, video, tmp_path, capsys):
    videos = tmp_path / "videos"
    videos.mkdir()
    shutil.copy(video, videos)
    folder = tmp_path / "mine"
    shutil.copytree(folders["siglip"], folder)
    call = ["--root", str(tmp_path), "--dataset", "own", "--videos", str(videos), "--features", f"hf:{folder},s3d"]
    assert extract_main([*call, "--weights", "s3d=random"]) == 0
    store = FeatureStore(DatasetFolder(tmp_path, "own").features("mine"))
    assert store.get("x").features.shape == (3, 32)
    assert store.profile.weights == "mine" and store.profile.model == "mine (SiglipModel)"
    assert store.shards[0].made_with["transformers"] == transformers.__version__
    save_model("siglip", tmp_path / "other", seed=1)
    shutil.copy(tmp_path / "other" / "siglip" / "model.safetensors", folder)
    shutil.copy(videos / "x.mp4", videos / "y.mp4")
    assert extract_main([*call, "--weights", "s3d=random"]) == 2
    assert "features/mine: " in capsys.readouterr().err
    call[-1] = f"hf:{folder}"
    assert extract_main([*call, "--fps", "2"]) == 0
    two = FeatureStore(DatasetFolder(tmp_path, "own").features("mine--2fps"))
    assert two.get("x").features.shape == (6, 32)
    assert extract_main([*call[:-1], "s3d", "--fps", "2"]) == 2
    error = capsys.readouterr().err
    assert "--fps 2" in error and "s3d" in error


def edited(folder, path, name="config.json", **values):
    """Return a copy of a model whose configuration says something else."""
    shutil.copytree(folder, path)
    about = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**about, **values}))
    return path


def test_what_cannot_be_used_is_refused_in_one_line(folders, tmp_path):
    dinov2, text = folders["dinov2"], tmp_path / "text"
    transformers.BertModel(
        transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    ).save_pretrained(text)
    whisper, qwen = tmp_path / "whisper", tmp_path / "qwen"
    transformers.WhisperModel(
        transformers.WhisperConfig(d_model=384, encoder_layers=1, decoder_layers=1, vocab_size=9, **SPECIAL_TOKENS)
    ).save_pretrained(whisper)
    sizes = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 32}
    transformers.Qwen3VLConfig(vision_config=sizes, text_config=TEXT | {"head_dim": 16}).save_pretrained(qwen)
    transformers.Qwen2VLImageProcessor().save_pretrained(qwen)
    language_bind = edited(dinov2, tmp_path / "languagebind", model_type="LanguageBindVideo")
    unknown = edited(dinov2, tmp_path / "unknown", model_type="dinov9")
    own_code = edited(dinov2, tmp_path / "own_code", model_type="mine", auto_map={"AutoModel": "mine.py"})
    quantised = edited(dinov2, tmp_path / "quantised", quantization_config={"quant_method": "bitsandbytes"})
    nothing = edited(dinov2, tmp_path / "sizeless", "preprocessor_config.json", do_resize=False)
    no_weights = edited(dinov2, tmp_path / "no_weights")
    (no_weights / "model.safetensors").unlink()
    half = edited(dinov2, tmp_path / "half")
    state = load_file(half / "model.safetensors")
    save_file(dict(list(state.items())[:-3]), half / "model.safetensors", metadata={"format": "pt"})
    doubled = edited(dinov2, tmp_path / "doubled")
    save_file({n: v.double() for n, v in state.items()}, doubled / "model.safetensors", metadata={"format": "pt"})
    cut = edited(dinov2, tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((dinov2 / "model.safetensors").read_bytes()[:100])
    no_processor = edited(dinov2, tmp_path / "no_processor")
    (no_processor / "preprocessor_config.json").unlink()
    cases = {
        f"{tmp_path}/nowhere": "/nowhere: .*save_pretrained",
        f"{tmp_path}": r"config\.json",
        f"{text}": r"\w+Model ",
        f"{whisper}": "WhisperModel ",
        f"{qwen}": "qwen3_vl .*siglip2",
        f"{language_bind}": "'LanguageBindVideo'",
        f"{unknown}": "'dinov9'",
        f"{own_code}": "'mine'",
        f"{quantised}": "quantised|quantization_config",
        f"{nothing}": "ImageProcessor",
        f"{no_weights}": r"model\.safetensors",
        f"{half}": " 3 .*\\(",
        f"{doubled}": "float64.*float32, float16, bfloat16",
        f"{cut}": r"model\.safetensors",
        f"{no_processor}": re.escape(str(no_processor)),
        f"{folders['videomae']}": r" 4 .*:8fps.*:whole",
        f"{folders['dinov2']}:whole": " one frame .*:whole",
        f"{folders['vjepa2']}:4fps": ":mean, :first.*:tokens",
    }
    for name, words in cases.items():
        with pytest.raises(UserError, match=words) as refused:
            load_extractor(f"hf:{name}")
        assert "\n" not in str(refused.value), name


def test_a_model_of_the_hub_is_taken_from_its_cache(folders, tmp_path, monkeypatch):
    """As huggingface_hub lays it out; the hub itself cannot be reached."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commit = "1234567890" * 4
    cached = tmp_path / "models--org--small" / "snapshots" / commit
    shutil.copytree(folders["vit"], cached)
    (tmp_path / "models--org--small" / "refs").mkdir()
    (tmp_path / "models--org--small" / "refs" / "main").write_text(commit)
    for name in ("hf:org/small", f"hf:org/small@{commit}", "hf:org/small@main"):
        profile = HubEncoder.find(read_hub_name(name)).profile
        assert (profile.name, profile.weights) == ("org--small", f"org/small@{commit}")
    with pytest.raises(UserError, match="org/other --local-dir"):
        load_extractor("hf:org/other")


def test_features_made_by_others_are_compared(folders, video, tmp_path, capsys):
    """Squeezed by Pillow, as some do, they are found to have another kernel."""
    (tmp_path / "videos").mkdir()
    shutil.copy(video, tmp_path / "videos")
    extractor = load_extractor(f"hf:{folders['siglip']}")
    processor = transformers.SiglipImageProcessorPil.from_pretrained(folders["siglip"])
    frames = [row[0] for row in windows_of(video, 1, 1)]
    pixels = torch.from_numpy(np.stack(processor(images=frames, return_tensors="np")["pixel_values"]))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    call = ["--root", str(tmp_path), "--dataset", "own", "--videos", str(tmp_path / "videos")]
    call += ["--features", f"hf:{folders['siglip']}", "--verify-against", str(theirs)]
    for rows, words in (
        (extract_video(video, [extractor])["siglip"].features, "1 of 1 videos "),
        (own_features(folders["siglip"], pixels).numpy(), "1 of 1 videos "),
        (np.random.default_rng(0).normal(size=(3, 32)), "0 of 1 videos "),
    ):
        np.save(theirs / "x.npy", rows)
        extract_main(call)
        assert words in capsys.readouterr().out


def test_a_plan_needs_no_weights(folders, video, tmp_path, capsys):
    (tmp_path / "videos").mkdir()
    shutil.copy(video, tmp_path / "videos")
    call = ["--root", str(tmp_path), "--dataset", "own", "--videos", str(tmp_path / "videos"), "--plan"]
    assert extract_main([*call, "--features", f"hf:{folders['videomae']}:8fps"]) == 0
    assert "videomae--8fps           1      0.00             6" in capsys.readouterr().out


def test_a_store_has_one_revision(folders, video, tmp_path, monkeypatch, capsys):
    import huggingface_hub.constants as constants

    cache = tmp_path / "cache" / "models--org--small"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache.parent))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commits = ["a" * 40, "b" * 40]
    for commit in commits:
        shutil.copytree(folders["vit"], cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (tmp_path / "videos").mkdir()
    shutil.copy(video, tmp_path / "videos")
    call = ["--root", str(tmp_path), "--dataset", "own", "--videos", str(tmp_path / "videos"), "--features"]
    (cache / "refs" / "main").write_text(commits[0])
    assert extract_main([*call, "hf:org/small"]) == 0
    (cache / "refs" / "main").write_text(commits[1])
    shutil.copy(video, tmp_path / "videos" / "y.mp4")
    assert extract_main([*call, "hf:org/small"]) == 2
    said = capsys.readouterr().err
    assert f"weights org/small@{commits[0]}" in said and f"org/small@{commits[1]}" in said
    assert extract_main([*call, f"hf:org/small@{commits[0]}"]) == 0
    assert len(FeatureStore(DatasetFolder(tmp_path, "own").features("org--small"))) == 2
