"""Folders of models that strangers made: whatever their files name, nothing else is opened, asked or run."""

import builtins
import contextlib
import json
import math
import shutil
import sys
import threading

import pytest
import torch
from helpers.dual_encoders import bert_tokenizer, save_dual_encoder
from helpers.hub_models import save_model
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel
from vlalign.extract import load_extractor
from vlalign.extract.encoders.hub_text import load_hub_text_tower
from vlalign.storage import UserError, Weights
from vlalign.storage.hub.files import ModelFiles
from vlalign.storage.hub.loading import load_processor, offline, read_config
from vlalign.storage.profiles import PROFILES
from vlalign.train.data.text_encoders import new_text_encoder
from vlalign.train.distributed import Workers

ASKING = {"socket.connect", "socket.getaddrinfo", "socket.sendto"}
STARTING = {"subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system"}
MAPS = {f"Auto{kind}": f"mine.Auto{kind}" for kind in ("Config", "Model", "Processor", "ImageProcessor")}
MAPS |= {
    "AutoVideoProcessor": "mine.Mine",
    "AutoTokenizer": ["mine.Mine", "mine.Mine"],
    "AutoFeatureExtractor": "mine.M",
}
OTHER = {"base_model_name_or_path": "OUTSIDE", "peft_type": "LORA", "auto_mapping": None, "task_type": "X"}
CASES = {
    "kernel": ("config.json", {"_attn_implementation": "org/kernel", "attn_implementation": "org/kernel:Kernel"}),
    "kernel of a part": ("config.json", {"vision_config": {"attn_implementation": "kernels-community/flash-attn"}}),
    "internal kernel": ("config.json", {"_attn_implementation_internal": "org/kernel"}),
    "experts": ("config.json", {"experts_implementation": "org/kernel", "_experts_implementation": "org/kernel"}),
    "weights": ("config.json", {"transformers_weights": "OUTSIDE/model.safetensors"}),
    "plain weights": ("config.json", {"transformers_weights": "other.safetensors"}),
    "name": (
        "config.json",
        {"_name_or_path": "OUTSIDE", "name_or_path": "org/model", "base_model_name_or_path": "o/m"},
    ),
    "backbone": ("config.json", {"backbone": "org/model", "use_pretrained_backbone": True, "use_timm_backbone": False}),
    "a network with a backbone": ("config.json", {"model_type": "rt_detr", "backbone": "resnet50"}),
    "another with a backbone": ("config.json", {"model_type": "dpt", "backbone": "resnet50", "is_hybrid": True}),
    "activation": ("config.json", {"hidden_act": "org/kernel"}),
    "type of numbers": ("config.json", {"dtype": "os.system", "torch_dtype": "__import__('os')"}),
    "split": (
        "config.json",
        {"tp_plan": "auto", "base_model_tp_plan": {"x": "colwise"}, "distributed_config": {"tp": 2}},
    ),
    "quantised": ("config.json", {"quantization_config": {"quant_method": "gptq", "tokenizer": "org/model"}}),
    "pipelines": ("config.json", {"custom_pipelines": {"x": {"impl": "mine.Mine", "pt": ["AutoModel"]}}}),
    "no number": ("config.json", {"hidden_size": {"a": 1}, "projection_dim": [1]}),
    "code of the model": ("config.json", {"auto_map": MAPS}),
    "code of an unknown model": ("config.json", {"auto_map": MAPS, "model_type": "mine"}),
    "code of a part": ("config.json", {"text_config": {"auto_map": MAPS, "model_type": "mine"}}),
    "code of a processor": ("processor_config.json", {"auto_map": MAPS, "processor_class": "Mine"}),
    "code of an image processor": ("preprocessor_config.json", {"auto_map": MAPS, "image_processor_type": "Mine"}),
    "code of a video processor": ("video_preprocessor_config.json", {"auto_map": MAPS, "video_processor_type": "Mine"}),
    "code of a tokenizer": ("tokenizer_config.json", {"auto_map": MAPS, "tokenizer_class": "Mine"}),
    "code of generation": ("generation_config.json", {"auto_map": MAPS, "custom_generate": "org/model"}),
    "adapter": ("adapter_config.json", OTHER),
    "adapter with code": ("adapter_config.json", OTHER | {"auto_mapping": {"parent_library": "mine"}}),
    "other vocabulary": (
        "tokenizer_config.json",
        {"vocab_file": "OUTSIDE/vocab.txt", "merges_file": "OUTSIDE/merges.txt"},
    ),
    "other tokenizer": (
        "tokenizer_config.json",
        {"tokenizer_file": "OUTSIDE/tokenizer.json", "name_or_path": "org/model"},
    ),
    "other special tokens": ("tokenizer_config.json", {"special_tokens_map_file": "OUTSIDE/special_tokens_map.json"}),
    "template": ("tokenizer_config.json", {"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}),
    "other processor": (
        "processor_config.json",
        {"image_processor": {"image_processor_file": "OUTSIDE/tokenizer.json"}},
    ),
    "weights outside": ("model.safetensors.index.json", {"weight_map": {"x": "../outside/model.safetensors"}}),
    "weights by a whole path": ("model.safetensors.index.json", {"weight_map": {"x": "OUTSIDE/model.safetensors"}}),
}
"""{what is wrong: (file, what it says)}"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_dual_encoder("clip", folder / "pair")
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=200
    )
    BertModel(config).save_pretrained(folder / "bert")
    bert_tokenizer(folder / "bert")
    return folder


class Watch:
    """What this process asks, starts, opens and runs while a folder is loaded."""

    folder = None

    def __init__(self):
        self.seen = []
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if self.folder is None:
            return
        is_code = event == "exec" and str(self.folder) in str(getattr(arguments[0], "co_filename", ""))
        is_outside = event == "open" and str(self.folder.parent / "outside") in str(arguments[0])
        if event in ASKING or event in STARTING or is_code or is_outside:
            self.seen.append((event, str(arguments)[:200]))


@pytest.fixture(scope="module")
def watch():
    return Watch()


def load(loader, folder):
    if loader == "pictures":
        return load_extractor(f"hf:{folder}")
    if loader == "texts":
        used = Weights(name="model", sha256=ModelFiles(folder, "model", "").sha256())
        return load_hub_text_tower(PROFILES["clip_vit_b32"], used, folder)
    return new_text_encoder(str(folder), [], Workers())


@pytest.mark.parametrize("loader", ["pictures", "texts", "text encoder"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_but_the_folder_is_loaded(models, tmp_path, monkeypatch, watch, loader, case):
    asked = []
    monkeypatch.setattr(builtins, "input", lambda question="": asked.append(question) or "y")
    folder, outside = tmp_path / "model", tmp_path / "outside"
    shutil.copytree(models / ("bert" if loader == "text encoder" else "pair"), folder)
    shutil.copytree(folder, outside)
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    other = {name: torch.zeros_like(value) for name, value in load_file(folder / "model.safetensors").items()}
    save_file(other, folder / "other.safetensors", metadata={"format": "pt"})
    file, values = CASES[case]
    about = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    about |= json.loads(json.dumps(values).replace("OUTSIDE", str(outside)))
    (folder / file).write_text(json.dumps(about))
    watch.seen.clear()
    monkeypatch.setattr(watch, "folder", folder)
    with contextlib.suppress(UserError):
        load(loader, folder)
    assert watch.seen == [] and asked == [] and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("loader", ["pictures", "texts", "text encoder"])
def test_the_folders_themselves_are_loaded(models, watch, monkeypatch, loader):
    watch.seen.clear()
    monkeypatch.setattr(watch, "folder", models)
    assert load(loader, models / ("bert" if loader == "text encoder" else "pair"))
    assert watch.seen == []


def test_a_configuration_keeps_numbers_and_names(tmp_path):
    path = save_model("clip", tmp_path) / "config.json"
    about = json.loads(path.read_text())
    about["vision_config"] |= {"hidden_act": "gelu", "attn_implementation": "org/kernel", "layer_norm_eps": 1e-3}
    path.write_text(json.dumps(about | {"anything": "org/model", "more": "a_name", "number": 3, "a_path": "name"}))
    config = read_config(ModelFiles(path.parent, "clip", ""))
    assert config.vision_config.hidden_act == "gelu" and config.vision_config.layer_norm_eps == 1e-3
    assert config.vision_config._attn_implementation is None
    assert (config.more, config.number) == ("a_name", 3)
    assert not hasattr(config, "anything") and not hasattr(config, "a_path")


LAYERS = {"vision_config": {"num_hidden_layers": 1_001}}
"""Each takes transformers some milliseconds."""
NAN = {"vision_config": {"layer_norm_eps": math.nan}}


def test_what_a_library_cannot_read_is_one_kind_of_error(tmp_path):
    path = save_model("clip", tmp_path) / "config.json"
    about = json.loads(path.read_text())
    for wrong in (
        {"projection_dim": "x"},
        {"vision_config": [1]},
        {"model_type": 3},
        {"model_type": "mine"},
        LAYERS,
        NAN,
        {"num_classes": 100_001},
    ):
        path.write_text(json.dumps(about | wrong))
        with pytest.raises(ValueError, match=r"\w"):
            read_config(ModelFiles(path.parent, "clip", ""))
    path.write_text(json.dumps(about))
    (path.parent / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"\w"):
        load_processor(ModelFiles(path.parent, "clip", ""), "tokenizer")


def test_loading_in_two_threads_leaves_the_hub_reachable(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    inside, leave = threading.Event(), threading.Event()

    def first():
        with offline():
            inside.set()
            leave.wait(10)

    def second():
        with offline():
            assert constants.HF_HUB_OFFLINE

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(10)
    assert constants.HF_HUB_OFFLINE is False
