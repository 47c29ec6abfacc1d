"""What runs on a GPU: extraction, training, evaluation and search give what they give on a CPU.

On the GPU of this machine, or on a pretended one.
"""

import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from helpers.decoding import ask, differences, want
from helpers.devices import assert_figures_near, assert_hits_near, lacks_nvdec
from helpers.extractors import run as extract
from helpers.extractors import stub
from helpers.fake_cuda import gpu, pretended
from helpers.golden import pixels
from helpers.labelled import make_questions, make_segments
from helpers.needs import GPU, SYSTEM, missing_precision, need
from helpers.networks import GOLDEN, assert_golden, golden_state
from helpers.runs import newest_figures
from helpers.spoken import make_spoken
from helpers.step_cases import WHOLE, made
from helpers.toy import make_toy
from helpers.training import SPOKEN, at, options, without_dropout
from helpers.videos import scene
from vlalign.extract import load_extractor
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.models import MODELS
from vlalign.extract.pipeline.video_jobs import VideoJob
from vlalign.extract.videos.demo import render_video
from vlalign.storage import FeatureStore
from vlalign.storage.common.device import tf32_in_use, use_tf32
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.loop.trainer import Trainer

SLOW = pytest.mark.slow
CASES = WHOLE | {"spoken": SPOKEN}
TRAIN = ["--batch-size", "6", "--num-steps", "2", "--validate-every", "2", "--warmup-steps", "0"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def datasets(toy) -> dict[str, DatasetFolder]:
    spoken = make_spoken(toy.root, num_clips=24)
    return {"toy": toy, "spoken": spoken, "asked": make_questions(toy.root), "segmented": make_segments(toy.root)}


# Extraction


def test_the_video_engine_gives_nearly_the_pictures_of_the_cpu(tmp_path):
    need(GPU, lacks_nvdec())
    render_video(scene(1.6, width=320, height=240), tmp_path / "a.mp4")
    wanted = want(25, 112)
    on_gpu, on_cpu = DecodeProcess([wanted], gpu="cuda:0"), DecodeProcess([wanted])
    try:
        found, again, expected = (ask(of, tmp_path / "a.mp4", wanted) for of in (on_gpu, on_gpu, on_cpu))
    finally:
        on_gpu.close()
        on_cpu.close()
    assert (found.begun, again.begun, expected.begun) == (["NVDEC"], ["NVDEC"], ["PyAV"]), found.finished
    assert differences(np.stack(found.rows), np.stack(expected.rows)).max() < 2.5
    np.testing.assert_array_equal(np.stack(found.rows), np.stack(again.rows))


@pytest.fixture
def tf32_as_before(request):
    before = tf32_in_use()
    request.addfinalizer(lambda: use_tf32(before))


@pytest.fixture
def without_tf32(tf32_as_before):
    use_tf32("none")


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_an_extractor_gives_golden_values(name, without_tf32, tmp_path):
    entry, _, shape = GOLDEN[name]
    weights = tmp_path / "weights.pth"
    torch.save(golden_state(name), weights)
    with gpu():
        rows = load_extractor(name, weights=weights, device="cuda").features(pixels(shape))
    weights.unlink()  # large
    assert_golden(rows, entry)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("s3d", "fp32"),
        *(
            pytest.param(name, precision, marks=SLOW)
            for name in MODELS
            for precision in ("fp32", "fp16", "bf16")
            if (name, precision) != ("s3d", "fp32")
        ),
    ],
)
def test_an_extractor_gives_the_rows_of_the_cpu(name, precision):
    need(SYSTEM, missing_precision(precision))
    expected = load_extractor(name, weights="random")
    side, window = 224 if name.startswith(("clip", "slowfast")) else 64, expected.profile.window
    noise = np.random.default_rng(0).integers(
        0, 100, (2, *([window] if window > 1 else []), side, side, 3), dtype=np.uint8
    )
    frames = noise + np.linspace(0, 150, side, dtype=np.uint8)[:, None, None]
    with gpu():
        found = load_extractor(name, weights="random", device="cuda", precision=precision).features(frames)
    cosines = torch.nn.functional.cosine_similarity(found, expected.features(frames))
    assert found.device.type == "cpu" and (cosines > (0.9999 if precision == "fp32" else 0.99)).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kernels_launched_together_give_the_same_rows(precision):
    need(GPU, [] if torch.cuda.is_available() else ["CUDA"])
    extractor = load_extractor("s3d", weights="random", device="cuda", precision=precision)
    rng = np.random.default_rng(0)
    shape = (extractor.batch_size, extractor.profile.window, 64, 64, 3)
    batches = [torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(3)]
    for frames in batches + batches:
        with torch.inference_mode():
            one_by_one = extractor._rows(frames.cuda()).cpu()
        torch.testing.assert_close(extractor.features(frames), one_by_one, rtol=0, atol=0)
    assert extractor._recorded._graph is not None


def test_batches_of_two_videos_give_the_rows_of_the_cpu(tmp_path):
    paths = [tmp_path / f"{seconds}.mp4" for seconds in (0.8, 1.6)]
    for path in paths:
        render_video(scene(float(path.stem)), path)
    expected = extract([VideoJob(path.stem, path, [stub()]) for path in paths], [stub()])
    with gpu():
        on_gpu = replace(stub(), device=torch.device("cuda"))
        found = extract([VideoJob(path.stem, path, [on_gpu]) for path in paths], [on_gpu])
    for path in paths:
        rows, rows_of_cpu = (results[path.stem].features["s3d"].features for results in (found, expected))
        np.testing.assert_allclose(rows, rows_of_cpu, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        pytest.param([], {"device": "pretended GPU", "tf32": "convolutions"}, marks=SLOW),
        (["--tf32", "none"], {"device": "pretended GPU", "tf32": "none"}),
        pytest.param(["--tf32", "all"], {"device": "pretended GPU", "tf32": "all"}, marks=SLOW),
        pytest.param(["--precision", "bf16"], {"device": "pretended GPU"}, marks=SLOW),
        pytest.param(["--device", "cpu"], {"device": "cpu"}, marks=SLOW),
    ],
)
def test_a_store_says_what_computed_it_and_where_in_tf32(tmp_path, tf32_as_before, capsys, options, recorded):
    (tmp_path / "videos").mkdir()
    render_video(scene(0.8), tmp_path / "videos" / "a.mp4")
    call = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(tmp_path / "videos")]
    with pretended():
        assert (
            extract_main([*call, "--features", "resnet152", "--weights", "random", "--device", "cuda", *options]) == 0
        )
    [shard] = FeatureStore(DatasetFolder(tmp_path, "mine").features("resnet152")).shards
    assert {name: shard.made_with.get(name) for name in ("device", "tf32")} == {"tf32": None} | recorded
    device = "cpu" if recorded["device"] == "cpu" else "cuda (pretended GPU)"
    assert re.search(
        rf"^{re.escape(str(tmp_path / 'mine'))}: .* {re.escape(device)}$", capsys.readouterr().err, re.MULTILINE
    )


# Training


@pytest.mark.parametrize(
    ("case", "precision"),
    [
        ("taco", "fp32"),
        *((case, "fp32") for case in ("ssml", "mil-nce", "ncl-gated", "cmcm", "asked", "segmented")),
        *(
            pytest.param(case, "fp32", marks=SLOW)
            for case in ("toco", "intra-video", "ncl", "taco-both", "cmcm-both", "spoken")
        ),
        *(pytest.param(case, "bf16", marks=SLOW) for case in CASES),
    ],
)
def test_two_steps_have_the_losses_of_the_cpu(datasets, tmp_path, without_tf32, case, precision):
    expected = two_steps(made(datasets, case, tmp_path / "cpu", num_steps=2, **CASES[case], precision=precision))
    with gpu():
        on_gpu = made(datasets, case, tmp_path / "gpu", "cuda", num_steps=2, **CASES[case], precision=precision)
        found = two_steps(on_gpu)
    # Rounding decides which of two codewords is nearer: in bf16 the loss of "spoken" is 0.9 of that in fp32 on a CPU,
    # too.
    near = 1e-3 if precision == "fp32" else 0.15 if case == "spoken" else 0.05
    for event, event_of_cpu in zip(found, expected, strict=True):
        assert event["loss"] == pytest.approx(event_of_cpu["loss"], rel=near)


def two_steps(of: Trainer) -> list[dict]:
    for module in of.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    stream = iter(of.prefetched_inputs(0))
    events = [event for inputs in islice(stream, 2) for event in of.train_step(inputs)]
    stream.close()
    return events


@pytest.mark.parametrize(
    "case", ["ncl-gated", *(pytest.param(case, marks=SLOW) for case in CASES if case != "ncl-gated")]
)
def test_a_stopped_run_goes_on_and_is_evaluated_and_searched(datasets, case, without_tf32, monkeypatch, capsys):
    dataset = datasets.get(case, datasets["toy"])
    settings = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in CASES[case].items()
    ]
    call = [
        *at(dataset),
        "--features",
        "resnet152" if case in datasets else "s3d",
        *TRAIN,
        "--num-steps",
        "4",
        *settings,
        *without_dropout(CASES[case]),
    ]
    call += ["--device", "cuda", "--run-name", case]
    step, answers = Trainer.train_step, []

    def stopped(self, inputs):
        if self.step == 3:
            raise KeyboardInterrupt
        return step(self, inputs)

    with gpu():
        with monkeypatch.context() as patched:
            patched.setattr(Trainer, "train_step", stopped)
            assert train_main(call) == 130
        assert train_main(call) == 0
    assert [event["step"] for event in read_jsonl(dataset.runs / case / "events.jsonl")] == [1, 2, 3, 4]
    for device in ("cuda", "cpu"):
        with gpu():
            assert evaluate_main([*at(dataset), case, "--device", device]) == 0
            capsys.readouterr()
            if dataset is datasets["toy"]:
                assert search_main([*at(dataset), case, "cut the onion", "--device", device]) == 0
        answers.append((read_json(dataset.runs / case / "metrics.json"), capsys.readouterr().out))
    (found, hits), (expected, hits_of_cpu) = answers
    assert_figures_near(found, expected)
    if dataset is datasets["toy"]:
        assert_hits_near(hits, hits_of_cpu)


BOTH_ALONE = ["--sentence-weight", "1", "--token-weight", "0", "--fusion-weight", "0"]
ASKED = {
    "taco": [["--rerank", "2", "--normalize", "ncl-oracle"]],
    "toco": [["--rerank", "2"]],
    "taco-both": [
        ["--rerank", "2"],
        ["--normalize", "dsl"],
        ["--normalize", "ncl-oracle"],
        ["--normalize", "ncl"],
        ["--normalize", "qbnorm", *BOTH_ALONE],
    ],
    "ncl-gated": [["--normalize", name] for name in ("dsl", "ncl-oracle", "ncl", "qbnorm")],
    "ncl": [["--normalize", name] for name in ("dsl", "ncl-oracle", "ncl", "qbnorm")],
    "cmcm-both": [["--normalize", name] for name in ("dsl", "ncl-oracle", "ncl", "qbnorm")],
}
"""{case: options of evaluations}"""


@SLOW
@pytest.mark.parametrize("case", ASKED)
def test_reranked_and_normalised_ranks_are_those_of_the_cpu(toy, case):
    name = f"asked-{case}"
    settings = [*options(CASES[case]), *without_dropout(CASES[case])]
    if case.startswith(("taco", "toco")):
        settings += ["--stage-weights", "set"]  # else validation may leave the stage out that is normalised
    assert train_main([*at(toy), "--features", "s3d", *TRAIN, *settings, "--run-name", name]) == 0
    for asked in ASKED[case]:
        figures = []
        for device in ("cuda", "cpu"):
            with gpu():
                assert evaluate_main([*at(toy), name, "--device", device, *asked]) == 0
            figures.append(newest_figures(toy.runs / name))
        assert_figures_near(*figures)
