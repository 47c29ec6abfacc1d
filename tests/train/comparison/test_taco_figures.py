"""TACo's tables of sizes, tokens and strategies, and its Figure 3, beside what the paper prints and plain counts."""

import re

import pytest
from helpers.needs import shared
from helpers.toy import NOUNS, VERBS, make_toy
from helpers.training import TWO_STEPS, at
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_jsonl
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.comparison import taco_figures
from vlalign.train.comparison.taco_figures import TABLE_1, TABLE_10, TABLE_13, TABLE_14, model_size
from vlalign.train.evaluation.evaluate import EvaluationSettings, evaluate
from vlalign.train.recipes.recipes import make_config

D, TEXT, VIDEO, FEATURES = 768, 30, 48, 2048 + 1024
LAYER = 12 * D * D + 13 * D
"""Parameters of a layer: four D x D and two 4 D x D matrices with biases, and two LayerNorms."""
POOLING = (D * D + D) / 1e6
"""Million parameters of BERT's pooling layer, which nothing uses."""


def size_by_hand(num_video_layers: int) -> tuple[float, float]:
    bert = (30_522 + 512 + 2) * D + 2 * D + 12 * LAYER
    fusion = (2 + 512) * D + 2 * LAYER + D + 1  # types, positions, layers and w
    parameters = bert + FEATURES * D + D + num_video_layers * LAYER + fusion

    def layers(number: int, length: int) -> int:
        return number * (length * 12 * D * D + 2 * length**2 * D)

    products = layers(12, TEXT) + VIDEO * FEATURES * D + layers(num_video_layers, VIDEO) + layers(2, TEXT + VIDEO) + D
    return parameters / 1e6, products / 1e9


@pytest.mark.parametrize("num_video_layers", TABLE_13)
def test_size_and_cost_are_those_of_table_13(num_video_layers):
    config = make_config("taco-youcook2-ablation", {"dataset": "youcook2"})
    size = model_size(config, num_video_layers=num_video_layers)
    assert size == pytest.approx(size_by_hand(num_video_layers), rel=1e-9)
    assert size[0] + POOLING == pytest.approx(TABLE_13[num_video_layers][0], rel=0.001)
    assert size[1] == pytest.approx(TABLE_13[num_video_layers][1], rel=0.05)


def test_the_largest_models_are_those_of_table_14(tmp_path):
    _, table = taco_figures.sizes_of_methods(tmp_path, None)
    ours = {row[0]: [float(str(cell)) for cell in row[-2:]] for row in table.rows if row[1] == "ours"}
    for method, layers in {"UniVL": 6, "Our largest": 4}.items():
        assert ours[method] == pytest.approx(list(size_by_hand(layers)), abs=0.06)
        assert ours[method][0] + POOLING == pytest.approx(TABLE_14[method][-2], rel=0.001)
        assert ours[method][1] == pytest.approx(TABLE_14[method][-1], rel=0.05)


def test_the_numbers_stand_in_the_paper():
    text = re.sub(r"(?<=\d),(?=\d{3})|</?u>", "", shared("papers/taco.txt").read_text(encoding="utf-8"))
    numbers = list(map(float, re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)))
    values = [*((layers, *sizes) for layers, sizes in TABLE_13.items()), *TABLE_14.values()]
    for printed in values:
        assert any(tuple(numbers[place : place + len(printed)]) == printed for place in range(len(numbers))), printed
    # In the copy at hand the numbers of Table 10 have lost their rows' names.
    assert all(set(counts) <= set(numbers) for counts in TABLE_10.values())


def test_the_strategies_are_those_that_the_paper_prints_and_ours_is_tacos(tmp_path):
    text = shared("papers/taco.txt").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+?)(?: \[\d+\]|\(Ours\)) +((?:\| \S +){4})\| (\w+) +\|$", text, re.MULTILINE)
    marks = {"1": "yes", "\N{MULTIPLICATION SIGN}": "no", "X": "no"}
    printed = {name: (*(marks[mark] for mark in re.findall(r"[^| ]", cells)), loss) for name, cells, loss in rows}
    assert printed == dict(TABLE_1)
    _, table = taco_figures.strategies(tmp_path, None)
    [ours] = [row for row in table.rows if row[1] == "ours"]
    assert ours[2:] == TABLE_1["TACo"]


def test_a_table_is_printed_and_written_as_csv(tmp_path, capsys):
    assert runs_main(["--root", str(tmp_path), "--figure", "TACo, Table 1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^TACo +ours +yes +yes +yes +yes +NCE$", shown, re.MULTILINE)
    path = tmp_path / "figures" / "taco-table1.csv"
    assert shown.endswith(f"table: {path}\n") and "TACo,ours,yes,yes,yes,yes,NCE" in path.read_text(encoding="utf-8")


def test_tokens_are_counted_in_the_idf_table(tmp_path):
    make_toy(tmp_path, name="youcook2")
    _, table = taco_figures.token_statistics(tmp_path, "youcook2")
    numbers = len(NOUNS), len(VERBS), len({*NOUNS, *VERBS})
    assert table.rows == (("youcook2", "paper", *TABLE_10["youcook2"]), ("youcook2", "ours", *numbers))


def test_the_first_clip_with_each_token_weight_is_that_of_an_evaluation(tmp_path):
    dataset = make_toy(tmp_path, num_videos=40)
    assert train_main([*at(dataset), *TWO_STEPS, "--token-score-weight", "3", "--run-name", "r"]) == 0
    _, table = taco_figures.examples_by_token_weight(tmp_path, "toy")
    query = table.notes[0].removeprefix("query: ")
    for column, weight in enumerate((0.0, 0.1, 0.5), start=1):
        found = evaluate(dataset.runs / "r", settings=EvaluationSettings(score_weights={"token": weight}))
        rows = [row for row in read_jsonl(found.folder / "queries.jsonl") if "caption" in row]
        texts = {row["clip"]["video_id"]: row["caption"] for row in rows}
        asked = next(row for row in rows if row["caption"] == query)
        assert table.rows[0][column] == texts[asked["first"]["video_id"]]
    sentences = ["--objective", "taco", "--losses", "sentence", "--features", "s3d", "--batch-size", "4"]
    assert train_main([*at(dataset), *sentences, "--num-steps", "2", "--run-name", "s"]) == 0
    with pytest.raises(UserError, match=r"no token stage"):
        taco_figures.examples_by_token_weight(tmp_path, "toy")
