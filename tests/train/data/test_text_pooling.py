"""The sentence's vector of text encoders and text towers, beside the library's own on models that it saved."""

import json
import math
from pathlib import Path

import pytest
import torch
from helpers.text_encoders import KINDS, WEIGHTS, WORDS
from transformers import (
    AutoModel,
    AutoTokenizer,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    GemmaTokenizer,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
    T5Tokenizer,
)
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.records import Caption
from vlalign.train.data.text_encoders import new_text_encoder, saved_text_encoder
from vlalign.train.data.text_inputs import SubwordInputs
from vlalign.train.data.text_towers import POOLING_FILE, TextPooling
from vlalign.train.distributed import Workers
from vlalign.train.models.transformer import VideoTextModel

TEXTS = ["Cut the red  Onion, and fry it.", "a", "the the red onion and the cut it fry a b c"]
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**SMALL, "image_size": 8, "patch_size": 4}
LONGEST = 12


def inputs_of(folder: Path, max_tokens: int = LONGEST) -> SubwordInputs:
    return SubwordInputs(*new_text_encoder(str(folder), TEXTS, Workers()), WEIGHTS, max_tokens)


def model_of(inputs: SubwordInputs) -> VideoTextModel:
    model = VideoTextModel(
        5, inputs.encoder, num_video_layers=0, num_fusion_layers=None, dropout=0.0, pooling=inputs.pooling.method
    )
    return model.eval()


@torch.no_grad()
def sentences(inputs: SubwordInputs) -> torch.Tensor:
    """Vectors of ``TEXTS``, without the model's scale."""
    model = model_of(inputs)
    captions = [Caption(video_id="x", caption=text, split="test") for text in TEXTS]
    return model.encode_texts(inputs(captions)).sentence_BD / model.scale


def read_back(inputs: SubwordInputs, folder: Path) -> SubwordInputs:
    """The inputs as a run's folder gives them, with the weights."""
    inputs.save(folder)
    state = inputs.encoder.state_dict()
    read = SubwordInputs(
        *saved_text_encoder(folder, {name: tuple(value.shape) for name, value in state.items()}), WEIGHTS, LONGEST
    )
    read.encoder.load_state_dict(state)
    return read


def write_bert(folder: Path, pooling: dict | None, modules: tuple[str, ...] = ("Transformer", "Pooling")) -> Path:
    """A model as sentence-transformers lays it out."""
    config, tokenizer = KINDS["bert"]()
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if pooling is not None:
        paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(modules[1:], start=1))]
        types = [f"sentence_transformers.models.{kind}" for kind in modules]
        (folder / "modules.json").write_text(
            json.dumps(
                [
                    {"idx": i, "name": str(i), "path": p, "type": t}
                    for i, (p, t) in enumerate(zip(paths, types, strict=True))
                ]
            )
        )
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@torch.no_grad()
def by_library(folder: Path, method: str) -> torch.Tensor:
    """One text after the other, as sentence-transformers pools."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    model = model.get_encoder() if model.config.model_type == "t5" else model
    vectors = []
    for text in TEXTS:
        tokens = model(**tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")).last_hidden_state[0]
        vectors.append({"cls": tokens[0], "mean": tokens.mean(dim=0), "last": tokens[-1]}[method])
    return torch.stack(vectors)


@pytest.mark.parametrize(
    "declared, method",
    [
        (None, "cls"),
        ({"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": True}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "last"),
        ({"embedding_dimension": 16, "pooling_mode": "mean"}, "mean"),
    ],
)
def test_the_declared_pooling_is_used_saved_and_said(tmp_path, capsys, declared, method):
    folder = write_bert(tmp_path / "m", declared)
    inputs = inputs_of(folder)
    said = capsys.readouterr().err
    assert inputs.pooling == TextPooling(method)
    assert ("1_Pooling/config.json" in said) == (declared is not None)
    torch.testing.assert_close(sentences(inputs), by_library(folder, method), rtol=1e-5, atol=1e-5)
    read = read_back(inputs, tmp_path / "run")
    assert (tmp_path / "run" / POOLING_FILE).exists() == (method != "cls"), "[CLS] runs have the files of today"
    assert read.pooling == inputs.pooling and torch.equal(sentences(read), sentences(inputs))


def test_t5_begins_no_text_with_a_token_of_its_own(tmp_path):
    """A sentence's vector is the mean of its tokens, without padding."""
    config, tokenizer = KINDS["t5"]()
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    inputs = inputs_of(tmp_path / "m")
    assert inputs.pooling == TextPooling("mean")
    torch.testing.assert_close(sentences(inputs), by_library(tmp_path / "m", "mean"), rtol=1e-5, atol=1e-5)


def test_modules_that_are_not_used_are_said(tmp_path, capsys):
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    inputs_of(write_bert(tmp_path / "m", {"pooling_mode_mean_tokens": True}, kinds))
    assert "2_Dense" in capsys.readouterr().err


@pytest.mark.parametrize(
    "declared, named",
    [
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, "max, mean"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({}, "1_Pooling/config.json"),
    ],
)
def test_other_poolings_are_refused(tmp_path, declared, named):
    with pytest.raises(UserError, match=named):
        inputs_of(write_bert(tmp_path / "m", declared))


@pytest.mark.parametrize(
    "modules",
    [
        "[",
        "{}",
        "[1]",
        '[{"path": "../m/1_Pooling", "type": "a.Pooling"}]',
        '[{"path": "/etc", "type": "a.Pooling"}]',
        '[{"path": "none", "type": "a.Pooling"}]',
        "[" * 100_000,
    ],
)
def test_hostile_modules_are_one_line(tmp_path, modules):
    folder = write_bert(tmp_path / "m", {"pooling_mode_mean_tokens": True})
    (folder / "modules.json").write_text(modules)
    with pytest.raises(UserError) as refused:
        inputs_of(folder)
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)


@pytest.mark.parametrize(
    "content",
    ["[", "{}", '{"method": "max", "padded_to": 0}', '{"method": "last", "padded_to": 1000000}',
     '{"method": ["last"], "padded_to": 0}', '{"method": "mean", "padded_to": true}'],
)  # fmt: skip
def test_a_damaged_pooling_of_a_run_is_one_line(tmp_path, content):
    (tmp_path / POOLING_FILE).write_text(content)
    with pytest.raises(UserError) as refused:
        TextPooling.read(tmp_path)
    assert POOLING_FILE in str(refused.value) and "\n" not in str(refused.value)


def write_clip(folder: Path, projection: int = 16, eos: int | None = None) -> Path:
    ends = ["<|startoftext|>", "<|endoftext|>"]
    letters = [chr(letter) for letter in range(33, 127)]
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters), *(f"{word}</w>" for word in WORDS[:7]), *ends]
    vocab = {word: number for number, word in enumerate(dict.fromkeys(vocabulary))}
    text = {**SMALL, "vocab_size": len(vocab), "max_position_embeddings": LONGEST}
    text |= {"bos_token_id": vocab[ends[0]], "eos_token_id": eos or vocab[ends[1]], "pad_token_id": vocab[ends[1]]}
    torch.manual_seed(0)
    CLIPModel(CLIPConfig(text_config=text, vision_config=VISION, projection_dim=projection)).save_pretrained(folder)
    CLIPTokenizer(vocab=vocab, merges=[]).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("eos", [None, 2], ids=["first end token", "largest id"])
@torch.no_grad()
def test_clips_text_tower_gives_the_librarys_vectors(tmp_path, capsys, eos):
    folder = write_clip(tmp_path / "clip", eos=eos)
    model, tokenizer = CLIPModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    options = {"padding": True, "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
    expected = model.get_text_features(**tokenizer(TEXTS, **options)).pooler_output
    inputs = inputs_of(folder)
    assert inputs.pooling == TextPooling("last") and "end token" in capsys.readouterr().err
    torch.testing.assert_close(sentences(inputs), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(sentences(read_back(inputs, tmp_path / "run")), sentences(inputs))


def siglip_tokenizer(kind: str):
    if kind == "siglip":
        pieces = [(f"▁{word}", -float(number)) for number, word in enumerate(WORDS[:7])]
        letters = [(chr(letter), -50.0 - letter) for letter in range(33, 127)]
        return T5Tokenizer(
            vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -40.0), *pieces, *letters], extra_ids=0
        )
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    vocab = dict.fromkeys([*specials, "▁", *(chr(letter) for letter in range(33, 127))])
    vocab = {word: number for number, word in enumerate(vocab)}
    tokenizer = GemmaTokenizer(vocab=vocab, merges=[])
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    return tokenizer


def write_siglip(folder: Path, kind: str) -> Path:
    tokenizer = siglip_tokenizer(kind)
    text = {**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": LONGEST, "projection_size": 16}
    torch.manual_seed(0)
    SiglipModel(SiglipConfig(text_config=text, vision_config=VISION)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if kind == "siglip":  # as published; its own class needs sentencepiece, which is not installed
        about = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(about | {"tokenizer_class": "SiglipTokenizer"}))
    return folder


def test_a_tokenizer_that_needs_a_missing_package_is_one_line(tmp_path):
    (write_siglip(tmp_path / "m", "siglip") / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"not loadable \(.*SentencePiece library"):
        inputs_of(tmp_path / "m")


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
@torch.no_grad()
def test_siglips_text_tower_gives_the_librarys_vectors(tmp_path, capsys, kind):
    folder = write_siglip(tmp_path / "m", kind)
    reader = PreTrainedTokenizerFast if kind == "siglip" else AutoTokenizer
    model, tokenizer = SiglipModel.from_pretrained(folder).eval(), reader.from_pretrained(folder)
    texts = [text.lower() for text in TEXTS]
    if kind == "siglip":  # as SiglipTokenizer.canonicalize_text does
        texts = [text.replace(",", "").replace(".", "") for text in texts]
    options = {"padding": "max_length", "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
    ids = tokenizer(texts, padding_side="right", **options)["input_ids"]
    expected = model.get_text_features(input_ids=ids).pooler_output
    inputs = inputs_of(folder)
    assert inputs.pooling == TextPooling("last", LONGEST) and f"padded to {LONGEST}" in capsys.readouterr().err
    assert inputs([Caption(video_id="x", caption=text, split="test") for text in TEXTS])["input_ids"].equal(ids)
    torch.testing.assert_close(sentences(inputs), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(sentences(read_back(inputs, tmp_path / "run")), sentences(inputs))
    with pytest.raises(SettingError) as refused:
        inputs_of(folder, max_tokens=LONGEST - 1)
    assert str(LONGEST) in str(refused.value)


def test_words_keep_their_weights_in_a_tower(tmp_path):
    caption = Caption(
        video_id="x",
        caption="An Onion",
        split="test",
        words=["An", "Onion"],
        word_starts=[0, 3],
        pos_tags=["DET", "NOUN"],
    )
    for folder in (
        write_clip(tmp_path / "c"),
        write_siglip(tmp_path / "s", "siglip"),
        write_siglip(tmp_path / "t", "2"),
    ):
        inputs = inputs_of(folder, max_tokens=20)
        made = inputs([caption])
        weighed = made["input_ids"][0][made["token_weights"][0] > 0].tolist()
        assert "onion" in inputs.tokenizer.decode(weighed).replace(" ", "").lower()
        assert {"an", "onion"} <= {word for _, word in inputs.words_of_tokens(caption)}


def test_a_tower_of_another_width_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"projection_dim is 8, its hidden_size 16"):
        inputs_of(write_clip(tmp_path / "clip", projection=8))


def test_a_tower_is_tuned_or_frozen(tmp_path):
    inputs = inputs_of(write_clip(tmp_path / "clip"))
    model = model_of(inputs).train()
    captions = [Caption(video_id="x", caption=text, split="test") for text in TEXTS]
    model.encode_texts(inputs(captions)).sentence_BD.square().sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if name.startswith("text_encoder.")}
    assert len(grads) > 20 and all(g is not None and math.isfinite(float(g.sum())) for g in grads.values())
