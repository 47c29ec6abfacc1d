"""Every supported kind of text encoder: loaded from a folder, saved with a run, and read back unchanged."""

import json

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertTokenizer,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertTokenizer,
    DebertaV2Config,
    DebertaV2Tokenizer,
    DistilBertConfig,
    ElectraConfig,
    MPNetConfig,
    MPNetTokenizer,
    RobertaConfig,
    RobertaTokenizer,
    XLMRobertaConfig,
    XLMRobertaTokenizer,
)
from vlalign.storage import IdfEntry
from vlalign.storage.common.errors import UserError
from vlalign.storage.records import Caption
from vlalign.train.data.text_encoders import new_text_encoder, saved_text_encoder
from vlalign.train.data.text_inputs import SubwordInputs, TokenWeights
from vlalign.train.distributed import Workers

TEXTS = ["Cut the red  Onion, and fry it.", "ünder 3 pans ☃"]
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
WORDS = ["cut", "the", "red", "onion", "and", "fry", "it", ".", ",", *"abcdefghijklmnopqrstuvwxyz0123456789"]
BERT = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
MPNET = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "[UNK]", "<unk>", "<mask>", *WORDS])}
BYTES = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *WORDS])}
PIECES = [(word, -float(number)) for number, word in enumerate(["▁", *(f"▁{word}" for word in WORDS[:7]), *WORDS[7:]])]
XLM = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *PIECES, ("<mask>", 0.0)]
ALBERT = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0), *PIECES]
DEBERTA = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0), *PIECES, ("[MASK]", 0.0)]
DISENTANGLED = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
}
KINDS = {
    "bert": lambda: (BertConfig(**SMALL), BertTokenizer(vocab=BERT)),
    "distilbert": lambda: (DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=32), BertTokenizer(vocab=BERT)),
    "electra": lambda: (ElectraConfig(embedding_size=8, **SMALL), BertTokenizer(vocab=BERT)),
    "mpnet": lambda: (MPNetConfig(**SMALL), MPNetTokenizer(vocab=MPNET)),
    "roberta": lambda: (RobertaConfig(**SMALL), RobertaTokenizer(vocab=BYTES, merges=[])),
    "xlm-roberta": lambda: (XLMRobertaConfig(**SMALL), XLMRobertaTokenizer(vocab=XLM)),
    "albert": lambda: (AlbertConfig(embedding_size=8, **SMALL), AlbertTokenizer(vocab=ALBERT)),
    "deberta-v2": lambda: (DebertaV2Config(**DISENTANGLED, **SMALL), DebertaV2Tokenizer(vocab=DEBERTA)),
}
WEIGHTS = TokenWeights([IdfEntry(word="onion", part_of_speech="NOUN", document_count=1, idf=1.0)], ("NOUN",))


def test_weights_outside_of_the_folder_are_not_loaded(tmp_path):
    config, tokenizer = KINDS["bert"]()
    model = AutoModel.from_config(config)
    for folder in ("private", "theirs"):
        model.save_pretrained(tmp_path / folder)
        tokenizer.save_pretrained(tmp_path / folder)
    (tmp_path / "theirs" / "model.safetensors").unlink()
    weights = dict.fromkeys(model.state_dict(), "../private/model.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": weights}
    (tmp_path / "theirs" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json: .*'\.\./private/model\.safetensors'"):
        new_text_encoder(str(tmp_path / "theirs"), iter(TEXTS), Workers())


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_is_loaded_saved_and_read_back_unchanged(tmp_path, kind, capsys):
    config, tokenizer = KINDS[kind]()
    AutoModel.from_config(config).save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")(TEXTS, padding=True, return_offsets_mapping=True)
    texts = iter(TEXTS)
    begun = SubwordInputs(*new_text_encoder(str(tmp_path / "theirs"), texts, Workers()), WEIGHTS, 36)
    assert next(texts) == TEXTS[0], "its vocabulary is its own: a hundred million captions are not read for it"
    begun.save(tmp_path / "text_encoder")
    state = begun.encoder.state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    read = SubwordInputs(*saved_text_encoder(tmp_path / "text_encoder", shapes), WEIGHTS, 36)
    read.encoder.load_state_dict(state)
    captions = [Caption(video_id="v", caption=text, split="train") for text in TEXTS]
    for pieces in (begun, read):
        assert pieces(captions)["input_ids"].tolist() == theirs["input_ids"]
        given = {name: value for name, value in pieces(captions).items() if name != "token_weights"}
        out = pieces.encoder.eval()(**given).last_hidden_state
        torch.testing.assert_close(
            out, AutoModel.from_pretrained(tmp_path / "theirs").eval()(**given).last_hidden_state
        )
    assert "config.json" not in capsys.readouterr().err, "nothing of it is left unused"
