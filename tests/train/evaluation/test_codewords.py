"""What codewords stand for: a few clips and captions whose codewords are given, counted by hand; and the report of a
run."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.spoken import make_spoken
from helpers.toy import make_toy
from helpers.training import CODEBOOK, SPOKEN, at, options
from vlalign.storage import Caption, FeatureStore
from vlalign.storage.captions.files import caption_table, read_captions, write_part
from vlalign.storage.common.files import read_json
from vlalign.storage.common.problems import Problems
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.pairs import make_pairs, read_pairs
from vlalign.train.distributed import Workers
from vlalign.train.evaluation.codewords import Uses, conditional_matrices, find_uses, places, sharing, table
from vlalign.train.models.codebook import SharedCodebook, quantize
from vlalign.train.runs.load import open_run


def caption(video: str, text: str, tags: str) -> Caption:
    words = text.split()
    starts = [len(" ".join(words[:place])) + bool(place) for place in range(len(words))]
    return Caption(video_id=video, caption=text, split="test", words=words, word_starts=starts, pos_tags=tags.split())


CAPTIONS = [
    caption("a", "cut the onion", "VERB DET NOUN"),
    caption("b", "Fry onion", "VERB NOUN"),
    caption("b", "stir", "VERB"),
]
PAIRS = make_pairs(caption_table(CAPTIONS))
VERBS = [["cut"], ["fry", "stir"]]
USES = Uses(
    clips=[np.array([0, 0, 1, 1]), np.array([1, 2])],
    captions=[np.array([0, 4, 2]), np.array([1, 2]), np.array([1])],
    words=[["cut", "the", "onion"], ["fry", "onion"], ["stir"]],
)


def test_precision_and_f1_are_those_counted_by_hand():
    rows = {row["codeword"]: row for row in table(USES, VERBS, 6)}
    assert set(rows) == {0, 1, 2}, "codewords that clips use"
    assert (rows[0]["occurrences"], rows[0]["labels"], rows[0]["words"]) == (2, [("cut", 100.0)], [("cut", 100.0)])
    assert rows[1]["labels"] == [("cut", 66.7), ("fry", 33.3)]  # two of its three rows are of clip a
    assert rows[1]["words"] == [("fry", 66.7), ("stir", 66.7)]  # 2 * 1 / (2 pieces + 1 occurrence)
    assert rows[2]["words"] == [("onion", 100.0)]
    assert [row["codeword"] for row in table(USES, VERBS, 6)] == [0, 2, 1], "the most precise first"


def test_a_codeword_is_joint_where_no_side_has_more_than_nine_tenths():
    found = sharing(USES, 6)
    assert (found["size"], found["live"]) == (6, 4)
    assert found["part_of_clips"] == pytest.approx([2 / 3, 0.6, 1 / 3, 0.0])  # parts of 6 rows and of 6 pieces
    assert (found["joint"], found["clips_only"], found["captions_only"]) == (0.75, 0, 0.25)
    alone = Uses([np.full(95, 3)], [np.full(5, 3)], [[""] * 5])
    assert sharing(alone, 4)["joint"] == 1, "each side uses nothing else, however many rows it has"
    assert sharing(Uses([], [], []), 4)["live"] == 0


def test_conditional_matrices_and_places():
    found = conditional_matrices(USES, VERBS, PAIRS, 6)
    assert found["labels"] == ["cut", "fry", "stir"] and found["codewords"] == [1, 0, 2]
    np.testing.assert_allclose(found["clips"], [[2 / 3, 1, 0], [1 / 3, 0, 1], [1 / 3, 0, 1]])
    np.testing.assert_allclose(found["captions"], [[0, 1, 0.5], [1, 0, 0.5], [1, 0, 0.5]])
    shown = {place["codeword"]: place["clips"] for place in places(USES, PAIRS, table(USES, VERBS, 6))}
    assert [clip["video_id"] for clip in shown[2]] == ["b"]
    assert shown[2][0]["rows"] == [False, True] and shown[2][0]["words"] == [("Fry", False), ("onion", True)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    assert train_main([*at(toy), *CODEBOOK, "--run-name", "codes"]) == 0
    assert evaluate_main([*at(toy), "codes"]) == 0
    return toy.runs / "codes"


def test_uses_are_the_nearest_codewords_of_rows_and_of_words_without_special_pieces(run):
    loaded = open_run(run)
    pairs = read_pairs(loaded.dataset, loaded.features, Problems())["test"]
    uses = find_uses(loaded.scorer, pairs.captions, pairs.clips)
    rows = loaded.features.rows(pairs.clips, 48)
    assert [len(codes) for codes in uses.clips] == [len(part) for part in rows]
    assert [words for words in uses.words] == [[word.lower() for word in c.words] for c in pairs.captions]
    codebook = loaded.scorer.model.codebook
    alone = quantize(codebook, loaded.scorer.encode_videos(pairs.clips[2:3]), Workers()).tokens_BLD[0]
    nearest = [int(((codebook.codewords - token) ** 2).sum(dim=1).argmin()) for token in alone]
    assert uses.clips[2].tolist() == nearest
    places_of = loaded.scorer.text_inputs.words_of_tokens(pairs.captions[0])
    assert [place for place, _ in places_of] == list(range(1, 1 + len(pairs.captions[0].words))), "[CLS] has place 0"


def test_the_report_says_what_codewords_stand_for(run):
    html = (run / "report.html").read_text(encoding="utf-8")
    metrics = read_json(run / "metrics.json")["codebook"]
    assert '<section id="codebook">' in html and f"{metrics['live']} of 128 codewords are in use" in html
    assert html.count("P(verb | codeword)") >= 2 and html.count("t-SNE of the codewords") == 1
    for rank, row in enumerate(metrics["table"], start=1):
        uses = f"<td>{row['occurrences']}</td><td>{row['in_captions']}</td>"
        assert f"<td>{rank}</td><td>{row['codeword']}</td>{uses}" in html, "all codewords that clips use"
    assert "normalisation error" in html.lower()


def test_spoken_words_and_actions_are_those_of_the_files_beside_the_captions(tmp_path, monkeypatch):
    """Each sound of ``make_spoken`` is a word; clips have actions; the table is counted again, token by token."""
    monkeypatch.setattr(SharedCodebook, "nearest", lambda self, x: (torch.arange(x.shape[-2]) % 3).expand(x.shape[:-1]))
    dataset = make_spoken(tmp_path, num_clips=16)
    captions = [replace(c, task=f"do {c.words[0]}") for c in read_captions(dataset.captions)]
    write_part(dataset.captions, 0, captions, {})
    for caption in captions:
        length = FeatureStore(dataset.features("logmel")).about(caption.recording).num_rows
        path = dataset.word_times / f"{caption.recording}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            f"{(length - 96) / 100},{(length - 48) / 100},{caption.words[0]}",
            f"{(length - 48) / 100},9,{caption.words[1]}",
        ]
        path.write_text("\n".join(["start_seconds,end_seconds,word", *rows]))
    call = [*at(dataset), "--features", "resnet152", *options(SPOKEN), "--batch-size", "4", "--num-steps", "1"]
    assert train_main([*call, "--glu-size", "16", "--run-name", "heard"]) == 0
    assert evaluate_main([*at(dataset), "heard"]) == 0
    metrics = read_json(dataset.runs / "heard" / "metrics.json")
    loaded = open_run(dataset.runs / "heard")
    pairs = read_pairs(loaded.dataset, loaded.features, Problems(), loaded.stores.recordings)["test"]
    uses, spoken = find_uses(loaded.scorer, pairs.captions, pairs.clips), []
    for caption, codes in zip(pairs.captions, uses.captions, strict=True):
        length = FeatureStore(dataset.features("logmel")).about(caption.recording).num_rows
        middles = [16 * token + 8 for token in range(len(codes))]
        spoken.append(["" if m < length - 96 else caption.words[int(m >= length - 48)] for m in middles])
    assert metrics["codebook"]["table"] == json.loads(
        json.dumps(table(Uses(uses.clips, uses.captions, spoken), [[c.task] for c in pairs.captions], 16))
    )
    assert any(row["words"] for row in metrics["codebook"]["table"])
    html = (dataset.runs / "heard" / "report.html").read_text(encoding="utf-8")
    assert "P(action | codeword)" in html and "best action (precision" in html
    (dataset.word_times / f"{captions[3].recording}.csv").write_text("no,times\n1,2\n")
    assert evaluate_main([*at(dataset), "heard"]) == 2, "the files are other ones, and are read again"
