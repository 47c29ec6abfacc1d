"""Files of a run with wrong values: each is one error line that names the file and the value."""

import json
import re
import shutil

import pytest
from helpers.any_json import one_part_changed
from helpers.runs import refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_json, write_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.runs.run_json import read_config


@pytest.mark.parametrize(
    "part, value, complaint",
    [
        ("inputs", {"features": [{}]}, r"\binputs\.features: features\b"),
        ("inputs", {"features": []}, r"\binputs\.features\b.*\b0\b.*\bconfig\.features s3d\b"),
        ("inputs", {}, r"\binputs\.features\b"),
        ("result", {}, r"\bresult\.best\b.*\bstep\b"),
        ("result", {"best": {"step": 1, "x": 10**400}}, r"\bresult\.best\b"),
        ("result", {"best": {"step": 1, "x": "\x1b[31m"}}, r"\bresult\.best\b"),
        ("software", None, r"\bsoftware\b"),
        ("config", [], r"\bconfig\b"),
        ("config", {"dataset": "toy", "features": "s3d", "mine\n": 1}, r"'mine\\n'"),
        ("config", {"dataset": "toy", "features": "s3d", "dropout": "0"}, r"\bconfig\.dropout: .*\bfloat\b"),
        ("config", {"dataset": "toy", "features": "../../elsewhere"}, r"'\.\./\.\./elsewhere'"),
        ("config", {"dataset": "..", "features": "s3d"}, r"\bconfig\.dataset: '\.\.'"),
        ("note", "\ud800", r"\bsurrogates\b"),  # Python's own words
    ],
)
def test_a_wrong_value_in_run_json_is_named(run, part, value, complaint, capsys):
    (run / "run.json").write_text(json.dumps(read_json(run / "run.json") | {part: value}))
    assert re.search(rf"{re.escape(str(run / 'run.json'))}: .*{complaint}", line := refused(run, capsys)), line


def test_settings_of_earlier_versions_have_their_names_of_now():
    config = read_config({"config": {"dataset": "toy", "features": "s3d", "held_out": 0.2, "average": 0.9}})
    assert (config.validation.validation_share, config.optimization.ema_decay) == (0.2, 0.9)


@pytest.mark.parametrize("of_run", [{}, {"idf": "token"}], ids=["earlier", "today's"])
def test_the_idf_of_an_earlier_run_counts_words_by_tag(of_run):
    written = {"dataset": "toy", "features": "s3d", "objective": "taco", **of_run}
    assert read_config({"config": written}).objective.idf_counts == of_run.get("idf", "tag")
    assert read_config({"config": written | {"objective": "toco"}}).objective.idf_counts == of_run.get("idf", "tag")
    assert read_config({"config": written | {"objective": "ncl"}}).objective.idf_counts == "tag"


def test_an_earlier_run_with_pair_weights_had_centred_vectors():
    written = {"dataset": "toy", "features": "s3d", "objective": "ssml", "encoder": "gated"}
    weighted = read_config({"config": written | {"pair_weights": "density"}}).objective
    assert (weighted.density_vectors, weighted.loss_sum) == ("centered", False)
    today = read_config({"config": written | {"pair_weights": "density", "density_vectors": "raw"}})
    assert today.objective.density_vectors == "raw"
    unweighted = read_config({"config": written}).objective
    assert unweighted.density_vectors == "raw", "a setting that it ignored has its default, so that it equals others"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_run_json_is_used_or_refused_in_one_line(run, data, capsys):
    """Such as inputs.features [{}], which was a KeyError."""
    from vlalign.train.runs.run_json import features_note, read_run

    kept = run / "kept.json"
    if not kept.exists():
        shutil.copy(run / "run.json", kept)
    (run / "run.json").write_text(json.dumps(data.draw(one_part_changed(read_json(kept)))))
    try:
        features_note(read_run(run)["inputs"]["features"])
    except UserError as error:
        assert "\n" not in str(error) and str(run / "run.json") in str(error)


@pytest.mark.parametrize(
    "line", ['{"loss": 1}', '{"step": 1, "loss": "a"}', '{"step": 1, "loss": 1e999}', '{"step": 1, "x": []}', "[]", ""]
)
def test_invalid_events_are_one_line(run, line, capsys):
    (run / "events.jsonl").write_text(line + "\n")
    assert evaluate_main(["--root", str(run.parents[2]), str(run)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]  # after progress, on a busy machine
    assert said.startswith(f"vlalign-evaluate: error: {run / 'events.jsonl'}")


@pytest.mark.parametrize(
    "change", [{"metrics": {}}, {"stages": 3}, {"task": "x"}, {"note": 5, "left_out": [1], "not_comparable": None}]
)
def test_invalid_metrics_are_one_line(run, change, capsys):
    call = ["--root", str(run.parents[2]), str(run)]
    assert evaluate_main(call) == 0
    write_json(run / "metrics.json", read_json(run / "metrics.json") | change)
    assert evaluate_main(call) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(f"vlalign-evaluate: error: {run / 'metrics.json'}: ")


@pytest.mark.parametrize("labels", [{}, [1], ["\ud800"], "x", [[]]])
def test_invalid_labels_are_one_line(run, labels, capsys):
    (run / "labels.json").write_text(json.dumps(labels))
    assert refused(run, capsys).startswith(f"{run / 'labels.json'}: ")
