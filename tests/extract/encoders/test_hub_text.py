"""Text towers of transformers: vectors are those of the library's own tokenizers and models, in batches of its own."""

import json

import numpy as np
import pytest
import transformers
from helpers.dual_encoders import FAMILIES, TEXTS, TOO_LONG, own_text_vectors, save_dual_encoder
from helpers.hub_models import SMALL
from vlalign.extract.encoders.hub_text import load_hub_text_tower
from vlalign.extract.encoders.text_preparation import NoTextRule
from vlalign.storage import Weights
from vlalign.storage.hub.files import ModelFiles
from vlalign.storage.profiles import PROFILES

pytestmark = pytest.mark.portable


def load(folder):
    used = Weights(name=folder.name, sha256=ModelFiles(folder, folder.name, "").sha256())
    return load_hub_text_tower(PROFILES["clip_vit_b32"], used, folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_get_the_librarys_own_vectors(tmp_path, name):
    """Of different lengths, with capitals and punctuation, empty, and too long; alone and together."""
    folder = save_dual_encoder(name, tmp_path / name)
    texts = [*TEXTS, TOO_LONG]
    theirs = own_text_vectors(name, folder, texts).numpy()
    assert (theirs @ theirs.T).min() < 0.999, "vectors that are the same for all texts would prove nothing"
    tower = load(folder)
    for ours in (tower.encode(texts), np.concatenate([tower.encode([text]) for text in texts])):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert [tower.is_cut(text) for text in texts] == [False] * len(TEXTS) + [True]


@pytest.mark.parametrize("name", ["siglip", "siglip2", "siglip2_naflex"])
def test_capitals_do_not_count_for_siglip(tmp_path, name):
    tower = load(save_dual_encoder(name, tmp_path / name))
    lower, upper = tower.encode(["a dog catches a frisbee", "A Dog catches a FRISBEE"])
    np.testing.assert_array_equal(lower, upper)


def test_a_type_without_a_rule_is_refused(tmp_path):
    """BLIP-2's pictures and texts are compared by another class than the one that extracts."""
    folder = save_dual_encoder("dual", tmp_path / "dual")
    text = {"model_type": "opt", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32}
    transformers.Blip2Config(vision_config=SMALL, text_config=text).save_pretrained(folder)
    with pytest.raises(NoTextRule, match="'blip-2'") as refused:
        load(folder)
    assert "\n" not in str(refused.value)


def test_texts_that_depend_on_padding_are_refused_without_a_rule(tmp_path):
    """A tokenizer that gives no mask, for a BERT."""
    folder = save_dual_encoder("dual", tmp_path / "dual")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_input_names": ["input_ids"]}))
    with pytest.raises(NoTextRule, match=r"^features ") as refused:
        load(folder)
    assert "\n" not in str(refused.value)


def test_a_text_that_just_fits_is_not_cut(tmp_path):
    """A token more than the tower has places for; padding does not count."""
    tower = load(save_dual_encoder("siglip2", tmp_path / "siglip2"))
    counts = {}
    for num_words in range(1, 40):
        text = " ".join(f"w{number}" for number in range(num_words))
        counts[len(tower.processor.tokenizer(text)["input_ids"])] = tower.is_cut(text)
    assert {True, False} == set(counts.values())
    assert all(is_cut == (num_tokens > 64) for num_tokens, is_cut in counts.items())
