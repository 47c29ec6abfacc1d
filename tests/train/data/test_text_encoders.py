"""Every supported kind of text encoder: loaded from a folder, saved with a run, and read back unchanged."""

import json

import pytest
import torch
from helpers.text_encoders import KINDS, TEXTS, WEIGHTS
from transformers import (
    AutoModel,
    AutoTokenizer,
)
from vlalign.storage.common.errors import UserError
from vlalign.storage.records import Caption
from vlalign.train.data.text_encoders import new_text_encoder, saved_text_encoder
from vlalign.train.data.text_inputs import SubwordInputs
from vlalign.train.distributed import Workers


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
    split = AutoTokenizer.from_pretrained(tmp_path / "theirs")(TEXTS, padding=True, return_offsets_mapping=True)
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
        assert pieces(captions)["input_ids"].tolist() == split["input_ids"]
        given = {name: value for name, value in pieces(captions).items() if name != "token_weights"}
        out = pieces.encoder.eval()(**given).last_hidden_state
        theirs = AutoModel.from_pretrained(tmp_path / "theirs").eval()
        theirs = theirs.get_encoder() if kind.startswith("t5") else theirs  # T5 also has a decoder, for other texts
        torch.testing.assert_close(out, theirs(**given).last_hidden_state)
    assert "config.json" not in capsys.readouterr().err, "nothing of it is left unused"
