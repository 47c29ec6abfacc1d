"""Search with SigLIP 2: scores are those of transformers' pipeline, and indexes of another recipe are told apart."""

import json
import math

import numpy as np
import pytest
import transformers
from helpers.dual_encoders import save_dual_encoder
from helpers.videos import extract_two_shapes
from PIL import Image
from vlalign.storage import FeatureStore, UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.shards import write_shard
from vlalign.train import SearchSource, build_index, open_search
from vlalign.train.search import window_encoding
from vlalign.train.search.index import IndexFolder, open_index_shards, remove_index_shards, write_index_shard

LABELS = ["a red ball", "a dog catches a frisbee in the park", "two"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_dual_encoder("siglip2", tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def dataset(model, tmp_path_factory):
    return extract_two_shapes(tmp_path_factory.mktemp("root"), "--features", f"hf:{model}")


def test_scores_are_those_of_the_librarys_pipeline(model, dataset, tmp_path):
    search = open_search(dataset.path, features=f"hf:{model}")
    picture = tmp_path / "x.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(picture)
    theirs = transformers.pipeline("zero-shot-image-classification", model=str(model), device="cpu")
    found = theirs(Image.open(picture), candidate_labels=LABELS, hypothesis_template="{}")
    logits = {each["label"]: math.log(each["score"] / (1 - each["score"])) for each in found}
    own = transformers.AutoModel.from_pretrained(model)
    scale, bias = own.logit_scale.exp().item(), own.logit_bias.item()
    seen = search.encoder.encode_image(picture)
    for label in LABELS:
        cosine = float(search.encoder.encode_text(label) @ seen)
        assert scale * cosine + bias == pytest.approx(logits[label], abs=1e-3)
        shouted = float(search.encoder.encode_text(label.upper()) @ seen)
        assert shouted == pytest.approx(cosine, abs=1e-6)
    not_judged = search.warnings("a red ball", "video")
    assert len(not_judged) == 1 and not_judged[0].startswith("whether anything fits")
    warning, *more = search.warnings(" ".join(map(str, range(100))), "video")
    assert " 64 " in warning and more == not_judged


def test_a_store_records_how_texts_must_be_prepared(model, dataset, tmp_path):
    """Stores made before record nothing; one that asks for something else is refused."""
    [shard] = FeatureStore(dataset.features("small")).shards
    assert shard.made_with["texts"] == "padded to 64 tokens, lower case"
    before, other = DatasetFolder(tmp_path / "before", "mine"), DatasetFolder(tmp_path / "other", "mine")
    video = FeatureStore(dataset.features("small")).get("v0")
    for made, made_with in (before, {}), (other, {"texts": "padded to 32 tokens"}):
        write_shard(made.features("small"), shard.profile, shard.weights, [video], made_with=made_with)
    assert open_search(before.path, features="small", weights=model).encoder.reads_texts
    with pytest.raises(UserError, match="padded to 32 tokens") as refused:
        open_search(other.path, features="small", weights=model)
    assert "\n" not in str(refused.value)


def test_an_index_of_another_recipe_is_not_used(model, dataset, monkeypatch):
    options = {"features": "small", "weights": model}
    build_index(SearchSource(dataset.path, **options))
    encoder = open_search(dataset.path, **options).encoder
    folder = IndexFolder.of(encoder)
    shards = open_index_shards(folder.path)
    about = json.loads(shards[0].key)
    assert about.pop("texts") == "padded to 64 tokens, lower case"
    for shard in shards:  # as versions before wrote it
        of_video = [shard.video == number for number in range(len(shard.video_ids))]
        checksums = dict(zip(shard.video_ids, shard.checksums.tolist(), strict=True))
        spans, vectors = ([values[rows] for rows in of_video] for values in (shard.spans, shard.vectors))
        write_index_shard(folder.path, json.dumps(about, sort_keys=True), checksums, spans, vectors)
    remove_index_shards([shard.path for shard in shards])
    monkeypatch.setattr(window_encoding, "MAX_WINDOWS_ADDED_BY_SEARCH", 1)
    with pytest.raises(UserError, match=r"\(1 index files.*vlalign-index"):
        open_search(dataset.path, **options)
    built = build_index(SearchSource(dataset.path, **options))
    assert (built.num_added, built.num_other) == (2, 1)
    assert len(open_search(dataset.path, **options)("a red ball")) > 0
