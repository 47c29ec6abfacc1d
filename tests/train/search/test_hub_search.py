"""Search in a store that an encoder of transformers made: its own text tower, pictures, training and comparing."""

import shutil

import numpy as np
import pytest
import torch
from helpers.clips_of_text import save_clip_with_processor
from helpers.hub_models import SMALL
from helpers.toy import make_toy
from helpers.videos import extract_two_shapes
from PIL import Image
from transformers import AutoModel, Blip2Config, CLIPProcessor
from vlalign.storage import FeatureStore, UserError
from vlalign.train import open_search
from vlalign.train.cli.search import main as search_main
from vlalign.train.search.query_checks import parse_example


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_clip_with_processor(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def dataset(model, tmp_path_factory):
    return extract_two_shapes(
        tmp_path_factory.mktemp("root"), "--features", f"hf:{model},s3d", "--weights", "s3d=random"
    )


@pytest.mark.slow
@torch.inference_mode()
def test_texts_get_the_models_own_vectors(model, dataset):
    search = open_search(dataset.path, features=f"hf:{model}")
    clip, processor = AutoModel.from_pretrained(model).eval(), CLIPProcessor.from_pretrained(model)
    for text in ("a red ball falls", "a blue box", "a box a ball " * 40):
        tokens = processor(text=[text], return_tensors="pt", truncation=True, max_length=77)
        expected = clip.get_text_features(**tokens).pooler_output[0].numpy()
        np.testing.assert_allclose(
            search.encoder.encode_text(text), expected / np.linalg.norm(expected), rtol=1e-5, atol=1e-6
        )
    found = search("a red ball falls", num_results=2)
    assert {moment.video_id for moment in found} == {"v0", "v1"}
    [unknown] = search.warnings("a blue box", "video")  # two videos without captions cannot tell what fits
    assert unknown.startswith("whether anything fits the text is unknown: these videos have fewer than 20 captions")
    [warning] = [line for line in search.warnings("a blue box " * 40, "video") if line != unknown]
    assert " 77 " in warning


def test_a_picture_gets_the_models_own_vector(model, dataset, tmp_path):
    search = open_search(dataset.path, features="small", weights=model)
    picture = tmp_path / "x.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(picture)
    clip, processor = AutoModel.from_pretrained(model).eval(), CLIPProcessor.from_pretrained(model)
    with torch.inference_mode():
        pixels = processor(images=Image.open(picture), return_tensors="pt")["pixel_values"]
        expected = clip.get_image_features(pixel_values=pixels).pooler_output[0].numpy()
    found = search.encoder.encode_image(picture)
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), rtol=1e-4, atol=1e-5)


def test_the_command_finds_and_says_what_is_wrong(model, dataset, tmp_path, capsys):
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", f"hf:{model}", "a red ball falls"]
    assert search_main(call) == 0
    assert "v0" in capsys.readouterr().out
    other = tmp_path / "small"
    shutil.copytree(model, other)
    (other / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"SHA-256 .*\bsmall\b"):
        open_search(dataset.path, features="small", weights=other)


def test_a_model_whose_texts_nobody_prepares_finds_what_looks_alike(model, tmp_path):
    """A BLIP-2 gives pictures a vector; which texts it can be compared with is for another class."""
    text = {"model_type": "opt", "num_hidden_layers": 1, "ffn_dim": 32, "vocab_size": 300}
    sizes = {"hidden_size": 32, "num_attention_heads": 2}
    config = Blip2Config(
        vision_config=SMALL | {"image_size": 224, "patch_size": 32},
        qformer_config=sizes | {"num_hidden_layers": 1, "encoder_hidden_size": 32, "vocab_size": 300},
        text_config=text | sizes,
    )
    folder = tmp_path / "blip2"
    AutoModel.from_config(config).save_pretrained(folder)
    CLIPProcessor.from_pretrained(model).save_pretrained(folder)
    dataset = extract_two_shapes(tmp_path, "--features", f"hf:{folder}")
    assert "texts" not in FeatureStore(dataset.features("blip2")).shards[0].made_with
    search = open_search(dataset.path, features=f"hf:{folder}")
    assert not search.encoder.reads_texts
    assert {moment.video_id for moment in search(like=parse_example("v0"))} == {"v1"}
    with pytest.raises(UserError, match="'blip-2'") as refused:
        search("a red ball")
    assert "\n" not in str(refused.value)


def test_a_run_trains_on_such_a_store(tmp_path, model):
    toy = make_toy(tmp_path)
    store = FeatureStore(toy.features("s3d"))
    shutil.copytree(store.folder, toy.features("small"))
    from vlalign.train import train

    run = train(tmp_path / "toy", settings={"features": f"hf:{model}", "num_steps": 2})
    assert run.config.data.features == "small" and "small" in run.folder.name
