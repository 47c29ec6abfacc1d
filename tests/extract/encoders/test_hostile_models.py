"""Models of strangers: no code that comes with one is run, nothing is asked, and nothing else is loaded."""

import builtins
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from helpers.hub_models import save_model
from helpers.videos import scene
from safetensors.torch import save_file
from timm.models import save_for_hf
from vlalign.extract import load_extractor
from vlalign.extract.encoders.hub_text import load_hub_text_tower
from vlalign.extract.videos.demo import render_video
from vlalign.storage import UserError, Weights
from vlalign.storage.hub.files import ModelFiles
from vlalign.storage.profiles import PROFILES

CLIP = PROFILES["clip_vit_b32"]
MAPS = {name: f"mine.{name}" for name in ("AutoConfig", "AutoModel", "AutoImageProcessor", "AutoProcessor")}
MAPS |= {"AutoVideoProcessor": "mine.AutoVideoProcessor", "AutoTokenizer": ["mine.Mine", "mine.Mine"]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in ("dinov2", "clip"):
        save_model(name, folder)
    torch.manual_seed(0)
    save_for_hf(timm.create_model("test_vit", pretrained=False), folder / "test_vit", safe_serialization=True)
    return folder


@pytest.fixture
def answers(monkeypatch):
    """What a library asks; all is answered with y."""
    asked = []
    monkeypatch.setattr(builtins, "input", lambda question="": asked.append(question) or "y")
    return asked


def hostile(models, name, folder, file="config.json", **values):
    """Return a copy of a model with a module that leaves a mark if it runs, and with other values in a file."""
    shutil.copytree(models / name, folder)
    (folder / "mine.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    path = folder / file
    about = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**about, **values}))
    return folder


OWN_CODE = {
    "processor": ("preprocessor_config.json", {"auto_map": MAPS, "image_processor_type": "Mine"}),
    "part of a processor": (
        "processor_config.json",
        {"image_processor": {"auto_map": MAPS, "image_processor_type": "Mine"}},
    ),
    "video processor": ("video_preprocessor_config.json", {"auto_map": MAPS, "video_processor_type": "Mine"}),
    "unknown type": ("config.json", {"auto_map": MAPS, "model_type": "mine"}),
    "type without a model": ("config.json", {"auto_map": MAPS, "model_type": "clipseg_vision_model"}),
    "part of a model": ("config.json", {"vision_config": {"auto_map": MAPS, "model_type": "vit"}}),
    "other configuration": ("config.json", {"configuration_files": ["config.5.0.0.json"]}),
}


@pytest.mark.parametrize("case", OWN_CODE)
def test_code_of_a_model_is_not_run_and_nothing_is_asked(models, tmp_path, answers, case):
    file, values = OWN_CODE[case]
    folder = hostile(models, "dinov2", tmp_path / "model", file, **values)
    (folder / "config.5.0.0.json").write_text(json.dumps({"auto_map": MAPS, "model_type": "mine"}))
    with pytest.raises(UserError, match=re.escape(str(folder))) as refused:
        load_extractor(f"hf:{folder}")
    assert "\n" not in str(refused.value)
    assert not answers and not (folder / "ran").exists()


@pytest.mark.parametrize("file", ["tokenizer_config.json", "processor_config.json"])
def test_code_of_a_tokenizer_is_not_run_and_nothing_is_asked(models, tmp_path, answers, file):
    folder = hostile(models, "clip", tmp_path / "model", file, auto_map=MAPS, tokenizer_class="Mine")
    used = Weights(name="model", sha256=ModelFiles(folder, "model", "").sha256())
    with pytest.raises(UserError, match="model") as refused:
        load_hub_text_tower(CLIP, used, folder)
    assert "\n" not in str(refused.value)
    assert not answers and not (folder / "ran").exists()


OTHER_MODEL = {"audio_tokenizer_class": "AutoModel", "audio_tokenizer_name_or_path": "MODEL/other"}


@pytest.mark.parametrize(
    "file, values",
    [
        ("processor_config.json", {"processor_class": "CLIPProcessor", "audio_tokenizer": OTHER_MODEL}),
        ("audio_tokenizer_config.json", OTHER_MODEL),
    ],
)
def test_a_processor_loads_no_other_model(models, tmp_path, answers, file, values):
    folder = tmp_path / "model"
    hostile(models, "clip", folder, file, **json.loads(json.dumps(values).replace("MODEL", str(folder))))
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text(json.dumps({"auto_map": MAPS, "model_type": "mine"}))
    shutil.copy(folder / "mine.py", folder / "other")
    used = Weights(name="model", sha256=ModelFiles(folder, "model", "").sha256())
    with pytest.raises(UserError, match="audio_tokenizer") as refused:
        load_hub_text_tower(CLIP, used, folder)
    assert "\n" not in str(refused.value)
    assert not answers and not (folder / "ran").exists()


def test_a_type_that_transformers_has_is_its_own(models, tmp_path, answers):
    """Some publish code beside a model that transformers has had since."""
    folder = hostile(models, "dinov2", tmp_path / "dinov2", auto_map=MAPS)
    ours, theirs = load_extractor(f"hf:{folder}"), load_extractor(f"hf:{models / 'dinov2'}")
    assert type(ours.network.model) is type(theirs.network.model)
    assert not answers and not (folder / "ran").exists()


def test_a_command_with_all_questions_answered_runs_no_code(models, tmp_path):
    file, values = OWN_CODE["processor"]
    folder = hostile(models, "dinov2", tmp_path / "model", file, **values)
    (tmp_path / "videos").mkdir()
    render_video(scene(0.6), tmp_path / "videos" / "v.mp4")
    call = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(tmp_path / "videos")]
    command = [str(Path(sys.executable).with_name("vlalign-extract")), *call, "--features", f"hf:{folder}"]
    env = os.environ | {"HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(command, env=env, input="y\n" * 100, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2 and str(folder) in done.stderr, done.stderr
    assert "Do you wish" not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert not (folder / "ran").exists()


LOADS = {
    "checkpoint_path": {"model_args": {"checkpoint_path": "/tmp/evil.txt"}},
    "relative checkpoint": {"model_args": {"checkpoint_path": "evil"}},
    "pretrained": {"model_args": {"pretrained": True}},
    "pretrained_cfg": {"model_args": {"pretrained_cfg": {"file": "/tmp/evil.txt"}}},
    "overlay": {"model_args": {"pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/evil"}}},
    "a path": {"model_args": {"weight_init": "/tmp/evil.txt"}},
    "an object": {"model_args": {"norm_layer": {"x": 1}}},
    "a list": {"model_args": [1]},
    "hub": {"architecture": "hf-hub:org/evil"},
    "old hub": {"architecture": "hf_hub:org/evil"},
    "folder": {"architecture": "local-dir:/tmp/evil"},
    "path": {"architecture": "/tmp/evil"},
    "wrapper": {"model_type": "timm_wrapper", "model_args": {"checkpoint_path": "/tmp/evil.txt"}},
    "backbone": {"model_type": "timm_backbone", "backbone": "local-dir:/tmp/evil"},
    "part": {"model_type": "detr", "backbone": "resnet50", "backbone_kwargs": {"checkpoint_path": "/tmp/evil.txt"}},
    "inner part": {"model_type": "detr", "backbone_config": {"model_type": "timm_backbone", "backbone": "org/evil"}},
    "part of a language model": {
        "model_type": "gemma3n",
        "vision_config": {"model_type": "gemma3n_vision", "model_args": {"checkpoint_path": "/tmp/evil.txt"}},
    },
}


@pytest.mark.parametrize("case", LOADS)
def test_a_model_of_timm_loads_nothing_but_its_own_weights(models, tmp_path, monkeypatch, case):
    made = []
    monkeypatch.setattr(timm, "create_model", lambda *args, **options: made.append((args, options)))
    folder = hostile(models, "test_vit", tmp_path / "model", **LOADS[case])
    fields = ("model_args", "architecture", "backbone", "backbone_kwargs")
    with pytest.raises(UserError, match=rf"config\.json: \S*({'|'.join(fields)})\S* ") as refused:
        load_extractor(f"hf:{folder}")
    assert "\n" not in str(refused.value)
    assert not made, "timm was asked for a model"


def test_plain_arguments_of_timm_work(models, tmp_path):
    arguments = {"img_size": 64, "global_pool": "avg", "init_values": 1e-5, "num_classes": 3, "class_token": True}
    folder = hostile(models, "test_vit", tmp_path / "small", model_args=arguments)
    small = timm.create_model("test_vit", pretrained=False, **arguments | {"num_classes": 0})
    save_file(small.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    assert load_extractor(f"hf:{folder}").profile.dimension == 64
