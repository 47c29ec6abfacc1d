"""Suites: their files say what the papers print, and one is run from start to end on a small planted set."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.annotation_files import howto_video
from helpers.captions import call as preprocess
from helpers.labelled import make_steps, video_of
from helpers.needs import shared
from helpers.readers import write
from helpers.toy import make_toy
from helpers.training import TRAIN_COMMAND, at, torchrun
from vlalign.storage import Weights, read_captions, write_shard
from vlalign.storage.captions.files import write_captions_about
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train.cli.train import main as train_main
from vlalign.train.comparison.suite_files import Row, Start, Suite, all_suites, read_suite, row_config, row_settings
from vlalign.train.comparison.suites import RowResult, suite_table
from vlalign.train.comparison.table import as_text
from vlalign.train.evaluation import TASKS

SMALL = [
    "--features",
    "s3d",
    "--text-encoder",
    "small",
    "--num-steps",
    "2",
    "--batch-size",
    "4",
    "--num-negatives",
    "2",
]
SUITES = {suite.name: suite for suite in all_suites()}


@pytest.mark.parametrize("name", SUITES)
def test_every_row_is_a_configuration_with_a_figure_for_each_column(name):
    suite = SUITES[name]
    assert len({row.name for row in suite.rows}) == len(suite.rows)
    for dataset in suite.datasets:
        rows = suite.rows_for(dataset)
        places = {row.name: place for place, row in enumerate(rows)}
        for row in rows:
            config = row_config(suite, row, dataset, {})
            assert config.data.dataset == (row.trained_on or dataset)
            assert row.init is None or places[row.init] < places[row.name]
            assert row.stage is None or row.stage in config.score_weights
        assert all(len(row.published[dataset]) == len(suite.columns) for row in suite.printed_rows(dataset))
    for row in suite.rows:
        assert not row.other_method or replace(row, name="", published={}) == Row(name="", other_method=True)
    assert {dataset for row in suite.rows for dataset in row.published} == set(suite.datasets)


def shown_measures():
    metrics = dict.fromkeys(["R@1", "R@5", "R@10", "R@50", "median_rank", "mean_rank"], 1.0)
    figures = {"metrics": {"text_to_video": metrics, "video_to_text": metrics}}
    return {*TASKS["retrieval"].table_metrics(figures), "recall", "accuracy"}


@pytest.mark.parametrize("name", SUITES)
def test_columns_are_measures(name):
    assert set(SUITES[name].columns) <= shown_measures()


@pytest.mark.parametrize("name", SUITES)
def test_figures_stand_in_the_paper_in_this_order(name):
    """The text of the papers is not part of the repository."""
    paper = shared(f"papers/{name.partition('-')[0]}.txt").read_text(encoding="utf-8")
    text = re.sub(r"</?b>|\\\w+|[$|*{}]|<li>|</?ul>", " ", paper)
    numbers = [float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)]
    missing = []
    for row in SUITES[name].rows:
        for dataset, published in row.published.items():
            figures = [value for value in published if value is not None]
            if not any(numbers[place : place + len(figures)] == figures for place in range(len(numbers))):
                missing.append((row.name, dataset))
    # ToCo's text lists each column of a block together: see test_tocos_figures_are_those_of_their_rows.
    assert missing == [] or name.startswith("toco"), missing
    values = {value for row in SUITES[name].rows for figures in row.published.values() for value in figures}
    assert values - {None} <= set(numbers)


TOCOS_MODELS = re.compile(
    r"JSFusion|TVJE|TJVE|UniVL-v\d|MIL-NCE-\w|ActBERT|Our Baseline|ToCo \( \$\\lambda = ([\d.]+)\$ \)"
)


def toco_rows() -> dict[str, dict[str, list[float | None]]]:
    """Return {row: figures of each data set} of ToCo's tables, whose text lists each column of a block together.

    In "10 8 7 7 6 7" each figure is one of the block's six rows. A column with fewer figures cannot be read: None.
    """
    found: dict[str, dict[str, list[float | None]]] = {}
    text = re.sub(r"<.*?>", " ", shared("papers/toco.txt").read_text(encoding="utf-8"))
    before, after = text.split("Table 1: Comparing")
    for part, kinds in ((before, [""]), (after, ["zero-shot, ", "fine-tuned, "])):
        seen: dict[str, int] = {}
        for line in part.splitlines():
            models = [m for cell in line.split("\t") for m in TOCOS_MODELS.finditer(cell)]
            if not models or "\t" not in line:
                continue
            features = next(name for name in ("R-152+I-101", "R-152+I-152", "S-100") if name.split("+")[-1] in line)
            # The only block that TJVE has for itself begins Table 2: UniVL-v1 and ToCo come in the next line.
            is_fine_tuned = features in seen and not (features == "R-152+I-101" and seen[features] == 1)
            seen[features] = seen.get(features, 0) + 1
            kind = kinds[int(is_fine_tuned)] if len(kinds) > 1 else ""
            columns: list[list[float | None]] = [
                [None if figure == "-" else float(figure) for figure in cell.split()]
                for cell in line.strip("\t").split("\t")[-8:]
            ]
            columns = [column if len(column) == len(models) else [None] * len(models) for column in columns]
            for model, *figures in zip(models, *columns, strict=True):
                name = f"lambda {float(model[1]):g}" if model[1] else model[0]
                of = f"{features}, {name}" if model[1] else f"{name}, {features}"
                found[f"{kind}{of}"] = {"youcook2": figures[:4], "msrvtt": figures[4:]}
    return found


TOCOS_OTHER_FEATURES = {
    "JSFusion, R-152": "JSFusion, R-152+I-101",
    "zero-shot, MIL-NCE-t, I-152": "zero-shot, MIL-NCE-t, R-152+I-152",
    "zero-shot, ActBERT, O-101+R(2+1)D": "zero-shot, ActBERT, R-152+I-152",
}
"""{row: its name in ``toco_rows``, which knows the features of its block}"""
FROM_TACO = {"TVJE, R-152+I-101": [4.2, 13.7, 21.5, 65], "UniVL-v1, R-152+I-101": [3.4, 10.8, 17.8, 76]}
"""Figures on YouCook2 whose rows ToCo's text does not show; TACo's Table 5 prints the same."""


@pytest.mark.parametrize("name", ["toco-table1", "toco-table2"])
def test_tocos_figures_are_those_of_their_rows(name):
    printed = toco_rows()
    assert len(printed) == 14 + 21
    wrong = []
    for row in SUITES[name].rows:
        for dataset, figures in row.published.items():
            if dataset == "youcook2" and name == "toco-table1" and row.name in FROM_TACO:
                assert figures == FROM_TACO[row.name]
                assert [a for a, b in zip(printed[row.name][dataset], figures, strict=True) if a not in (None, b)] == []
                continue
            expected = printed[TOCOS_OTHER_FEATURES.get(row.name, row.name)][dataset]
            if figures != expected:
                wrong.append((row.name, dataset, figures, expected))
    assert wrong == []
    shown = {TOCOS_OTHER_FEATURES.get(row.name, row.name) for row in SUITES[name].rows}
    of_table = {row for row in printed if row.startswith(("zero-shot", "fine-tuned")) == (name == "toco-table2")}
    assert of_table == shown, "every row that the paper prints"


@pytest.mark.parametrize("name", ["toco-table1", "toco-table2"])
def test_tocos_rows_have_the_layers_of_its_table_2(name):
    """Column #L: "1-2" beside I3D features, "2-2" beside S3D."""
    suite = SUITES[name]
    for dataset in suite.datasets:
        for row in suite.rows_for(dataset):
            model = row_config(suite, row, dataset, {}).model
            assert (model.num_video_layers, model.num_fusion_layers) == (1 if "I-1" in row.name else 2, 2), row.name


def test_a_suite_that_is_none_and_a_setting_of_its_rows_are_refused():
    with pytest.raises(SettingError, match=r"^suite taco-table1: .*\bcmcm-table1\b"):
        read_suite("taco-table1")
    suite = read_suite("taco-table3")
    with pytest.raises(SettingError, match=r"^losses all: .*\btaco-table3\b"):
        row_settings(suite, suite.rows[0], "youcook2", {"losses": "all"})


def test_rows_that_others_start_from_come_along():
    suite = read_suite("taco-table8")
    assert [row.name for row in suite.rows_for("youcook2")][2] == "pretrained, R-152+S3D-HM"
    assert "youcook2" not in suite.row("pretrained, R-152+S3D-HM").published


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (["--suite", "taco-table7"], "--suite taco-table7: TACo, Table 7 "),
        (["--suite", "taco-table3", "--recipe", "taco-small"], "--recipe taco-small: "),
        (["--suite", "taco-table3", "--num-steps", "-1"], "--num-steps -1: "),
        (["--suite", "taco-table3", "--seed", "1", "--seeds", "2"], "--seed 1: "),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(tmp_path, capsys, call, place):
    dataset = make_toy(tmp_path, name="youcook2", num_videos=8)
    assert train_main([*at(dataset), *call]) == 2
    assert place in capsys.readouterr().err and not dataset.runs.exists()


def test_the_list_names_every_suite(capsys):
    assert train_main(["--list-suites"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", shown, re.MULTILINE) for name in SUITES)


def test_a_table_is_run_beside_the_papers_figures(tmp_path, capsys):
    """TACo's Table 12 on a planted set, of which the second row's features are missing."""
    dataset = make_toy(tmp_path, name="youcook2")
    call = [*at(dataset), "--suite", "taco-table12", *SMALL]
    assert train_main(call) == 0
    [path] = dataset.comparisons.glob("*.csv")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["whose"] for row in rows] == ["paper", "ours", "difference"] * 3
    assert [float(row["R@1"]) for row in rows[::3]] == [13.3, 13.6, 14.5]
    for paper, ours, difference in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        for name in ("R@1", "R@5", "R@10", "median rank"):
            assert float(difference[name]) == pytest.approx(float(ours[name]) - float(paper[name]))
    shown = capsys.readouterr()
    assert re.search(r"^note: .*features s3d, text_encoder small, num_steps 2", shown.out, re.MULTILINE)
    departures = [str(departure) for departure in SUITES["taco-table12"].departures_for("youcook2")]
    written = path.with_suffix(".md").read_text(encoding="utf-8").replace("\\", "")
    assert [text for text in departures if f"note: {text}" not in shown.out or text not in written] == []
    assert {row["departures"] for row in rows[1::3]} == {"; ".join(departures)}
    written = {path: path.stat().st_mtime_ns for path in dataset.runs.glob("*/run.json")}
    assert train_main(call) == 0, "repeated"
    assert len(written) == 3 and {path: path.stat().st_mtime_ns for path in written} == written
    again = capsys.readouterr()
    assert all(f"{path.parent}: " in again.err for path in written) and again.out == shown.out


def test_rows_of_other_methods_are_shown_and_not_trained():
    other = Row(name="JSFusion", published={"msrvtt": [10.2, None]}, other_method=True)
    ours = Row(name="TACo", published={"msrvtt": [26.7, 54.5]})
    suite = Suite("t", "TACo, Table 6", "", ("R@1", "R@5"), {"msrvtt": Start()}, (other, ours), ())
    assert suite.printed_rows("msrvtt") == [other, ours] and suite.rows_for("msrvtt") == [ours]
    results = [RowResult(row, tuple(row.published["msrvtt"]), (None, None)) for row in suite.printed_rows("msrvtt")]
    table = as_text(suite_table(suite, "msrvtt", results, {}, 1, [])).splitlines()
    assert [line.split()[:2] for line in table[1:5]] == [
        ["JSFusion", "paper"],
        ["TACo", "paper"],
        ["TACo", "ours"],
        ["TACo", "difference"],
    ]
    assert table[1].split()[2:] == ["10.2", "-"]


@pytest.mark.slow
def test_several_processes_train_one_row_after_the_other(tmp_path):
    dataset = make_toy(tmp_path, name="youcook2")
    done = torchrun(2, "--no-python", TRAIN_COMMAND, *at(dataset), "--suite", "taco-table12", *SMALL)
    assert done.returncode == 0, done.stderr[-2000:]
    [path] = dataset.comparisons.glob("*.csv")
    assert len(path.read_text(encoding="utf-8").splitlines()) == 10


def test_a_row_that_fails_is_reported_and_the_others_go_on(tmp_path, capsys):
    dataset = make_toy(tmp_path, name="youcook2")
    small = [word for word in SMALL if word not in ("--features", "s3d")]
    assert train_main([*at(dataset), "--suite", "taco-table5", *small]) == 1
    shown = capsys.readouterr()
    assert "taco-table5, row TACo, R-152+I3D-X101: features resnet152+i3d_resnext101: " in shown.err
    assert re.search(r"^TACo, S3D-HM +ours +\d", shown.out, re.MULTILINE)
    assert re.search(r"^TACo, R-152\+I3D-X101 +ours +- +- +- +-$", shown.out, re.MULTILINE)


def test_steps_are_placed_after_a_training_on_another_data_set(tmp_path, capsys):
    """TACo's Table 9 for CrossTask: nothing is trained there, so the protocol of HowTo100M is not CrossTask's."""
    dataset = make_steps(tmp_path, name="crosstask", features="s3d")
    write_captions_about(make_steps(tmp_path, name="howto100m", features="s3d").captions, {"protocol": "merged"})
    small = [word for word in SMALL if word not in ("--features", "s3d")]
    assert train_main([*at(dataset), "--suite", "taco-table9-crosstask", *small]) == 0
    [path] = dataset.comparisons.glob("*.csv")
    *others, paper, ours, _ = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    assert len(others) == 7 and {row["whose"] for row in others} == {"paper"}
    assert paper["recall"] == "42.5" and 0 <= float(ours["recall"]) <= 100


TEA = "1\nMake Tea\nhttp://x\n2\nboil water,pour water\n\n"
NUM_TEA_VIDEOS = 33  # 30 of a task are drawn for training, so three are test


def crosstask_files():
    names = [f"c{number:02d}" for number in range(NUM_TEA_VIDEOS)]
    return {
        "tasks_primary.txt": TEA,
        "videos.csv": "".join(f"1,{name},http://x/{name}\n" for name in names),
        "videos_val.csv": "",
        **{f"annotations/1_{name}.csv": "1,2,5\n2,8,12\n" for name in names},
    }


def howto100m_file():
    texts = ["boil the water in a pan for the tea", "now pour hot water", "cut bread and fish", "eat it all now"]
    videos = {f"h{n:02d}": howto_video(*((5 * k, 5 * k + 4, text) for k, text in enumerate(texts))) for n in range(8)}
    return {"caption.json": videos}


@pytest.mark.slow
@pytest.mark.parametrize("also", [[], ["captions"]], ids=["merged alone", "beside the usual captions"])
def test_table_9_of_crosstask_from_the_annotations_to_the_table(tmp_path, also):
    """Two data sets under one root, prepared as their pages say: HowTo100M with the captions that TACo merges."""
    rng = np.random.default_rng(0)
    for name, files, protocols in (
        ("howto100m", howto100m_file(), [*also, "merged"]),
        ("crosstask", crosstask_files(), ["official"]),
    ):
        annotations = write(tmp_path / "annotations" / name, files)
        for protocol in protocols:
            more = ["--dataset", name, "--annotations", annotations, "--protocol", protocol]
            assert preprocess(tmp_path / "data", *more) == 0
        dataset = DatasetFolder(tmp_path / "data", name)
        captions = read_captions(replace(dataset, protocol=protocols[-1] if name == "howto100m" else "").captions)
        ids = dict.fromkeys(caption.video_id for caption in captions)
        videos = [video_of(video_id, rng.normal(size=(20, 1024))) for video_id in ids]
        weights = Weights(name="made", sha256="0" * 64)
        write_shard(dataset.features("s3d"), PROFILES["s3d"], weights, videos, made_with={})
    small = [word for word in SMALL if word not in ("--features", "s3d")]
    assert train_main([*at(dataset), "--suite", "taco-table9-crosstask", *small]) == 0
    [path] = dataset.comparisons.glob("*.csv")
    *_, paper, ours, _ = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    assert paper["recall"] == "42.5" and 0 <= float(ours["recall"]) <= 100
    [run] = DatasetFolder(tmp_path / "data", "howto100m").runs.iterdir()
    assert [folder.name for folder in (run / "on").iterdir()] == ["crosstask"]
