"""What the commands of the pages find where they run: programs, models, videos, captions, data sets and runs.

Names are those of the pages. Models have random weights, and all else is made here; the code that runs is the real one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import entry_points
from pathlib import Path

import torch
from timm import create_model
from timm.models import save_for_hf
from transformers import AutoModel, CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor
from vlalign.extract.models import MODELS
from vlalign.storage.profiles import PROFILES

from .clips_of_text import word_tokenizer
from .demo_query import demo_query
from .dual_encoders import save_dual_encoder
from .hub_models import save_model
from .numbered import write_video
from .text_encoders import KINDS

LINES = (
    "someone cuts an onion",
    "the onion goes into the pan",
    "a man waters the roses",
    "a dog catches a frisbee",
    "tighten the screw",
    "preheat the oven and mention the oven",
)
"""A caption for each of the videos."""
OTHERS = ("a beach with people", "a dog runs", "a red ball", "where does she", demo_query())
WEIGHTS = ("resnet152", "resnet50_map", "s3d", "clip_vit_b32", "i3d_resnext101")
MOST_STEPS = 3
LAUNCHER = """#!{python}
import dataclasses, sys
from vlalign.extract.models import weights
{steps}weights.PUBLISHED.update(
    {{name: dataclasses.replace(of, sha256=None, size_bytes=None) for name, of in weights.PUBLISHED.items()}}
)
from {module} import {function}
sys.exit({function}())
"""
"""A command that takes random weights under the names of the published files."""
FEW_STEPS = f"""from vlalign.train.settings import OptimizationSettings as Steps
steps = Steps.steps_for
Steps.steps_for = lambda own, num_clips: {MOST_STEPS} if own.num_steps > {MOST_STEPS} else steps(own, num_clips)
"""
"""A training ends after these steps where a recipe says how many it takes; the default recipe goes by the clips."""


@dataclass(frozen=True)
class Home:
    """What all pages share: it is read only."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the commands."""
        programs = os.pathsep.join([str(self.path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        return os.environ | {
            "PATH": programs,
            "HOME": str(self.path),
            "HF_HOME": str(self.path / "hub"),
            "HF_HUB_OFFLINE": "1",
            "VLALIGN_CACHE": str(self.path / "cache"),
            "XDG_STATE_HOME": str(self.path / "state"),
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
        }

    def call(self, folder: Path, command: str) -> None:
        """Run a command that the commands of a page take for granted."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"

    def copy(self, make: Callable[["Home", Path], None], folder: Path) -> None:
        """Copy what ``make`` writes into a folder; it is made once."""
        made = self.path / "made" / make.__name__
        if not made.exists():
            made.mkdir(parents=True)
            make(self, made)
        shutil.copytree(made, folder, symlinks=True, dirs_exist_ok=True)


def make_home(path: Path) -> Home:
    """Write the programs and the models."""
    _write_programs(path / "bin")
    (path / "cache" / "weights").mkdir(parents=True)
    for name in WEIGHTS:
        _write_weights(name, path / "cache" / "weights")
    clip = path / "clip"
    put_into_hub(path, "openai/clip-vit-base-patch32", clip)
    put_into_hub(path, "google/siglip2-base-patch16-224", save_dual_encoder("siglip2", path / "siglip2"))
    put_into_hub(path, "google/siglip-base-patch16-224", save_dual_encoder("siglip", path / "siglip"))
    put_into_hub(path, "MCG-NJU/videomae-base-finetuned-kinetics", save_model("videomae", path / "models"))
    put_into_hub(path, "google-bert/bert-base-uncased", _write_bert(path / "bert"))
    save_for_hf(create_model("efficientnet_lite0", pretrained=False), path / "lite0", safe_serialization=True)
    put_into_hub(path, "timm/tf_efficientnet_lite0.in1k", path / "lite0")
    return Home(path)


def _write_programs(folder: Path) -> None:
    folder.mkdir()
    for script in entry_points(group="console_scripts"):
        if script.value.startswith("vlalign."):
            path = folder / script.name
            steps = FEW_STEPS if script.name in ("vlalign", "vlalign-train") else ""
            path.write_text(
                LAUNCHER.format(python=sys.executable, module=script.module, function=script.attr, steps=steps)
            )
            path.chmod(0o755)


def _write_weights(name: str, folder: Path) -> None:
    if name != "clip_vit_b32":
        torch.manual_seed(0)
        torch.save(MODELS[name]().state_dict(), folder / PROFILES[name].weights)
        return
    tokenizer = word_tokenizer([*LINES, *OTHERS])
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = CLIPModel(CLIPConfig(text_config=ends | {"pad_token_id": ends["eos_token_id"]}))
    clip = folder.parents[1] / "clip"
    model.save_pretrained(clip)
    CLIPProcessor(image_processor=CLIPImageProcessor(), tokenizer=tokenizer).save_pretrained(clip)
    torch.save(model.state_dict(), folder / PROFILES[name].weights)
    tokenizer.save_pretrained(folder)


def _write_bert(folder: Path) -> Path:
    config, tokenizer = KINDS["bert"]()
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def put_into_hub(home: Path, repository: str, folder: Path) -> None:
    """Lay out a folder as the hub's cache would after a download."""
    cache, commit = home / "hub" / "hub" / f"models--{repository.replace('/', '--')}", "0" * 40
    shutil.copytree(folder, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)


def write_subtitles(folder: Path) -> None:
    """Write subtitles beside the videos."""
    for number, line in enumerate(LINES):
        (folder / f"clip{number}.srt").write_text(f"1\n00:00:01,000 --> 00:00:03,000\n{line}\n")


def write_videos(folder: Path, count: int = len(LINES)) -> None:
    """Write short videos, clip0.mp4 and so on."""
    folder.mkdir(parents=True)
    for number in range(count):
        write_video(folder / f"clip{number}.mp4", range(24 * number, 24 * number + 96), Fraction(1, 24))


def write_captions(path: Path) -> None:
    """Write a caption for each video: four to train on, one for validation, one for the test."""
    splits = ("train", "train", "train", "train", "validation", "test")
    rows = [f"clip{n},{line},{split}" for n, (line, split) in enumerate(zip(LINES, splits, strict=True))]
    path.write_text("\n".join(["video_id,caption,split", *rows]) + "\n")
