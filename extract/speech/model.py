"""The files of a Whisper model in CTranslate2's format, from this machine or the hub."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError
from ...storage.common.files import check_regular, sha256_of
from ...storage.hub.files import download
from ...storage.hub.names import is_hub_name, read_hub_name
from .suppression import RULES_VERSION

WEIGHTS_FILE = "model.bin"
NEEDED_FILES = (WEIGHTS_FILE, "config.json", "tokenizer.json")
VOCABULARIES = ("vocabulary.json", "vocabulary.txt")
OPTIONAL_FILES = ("preprocessor_config.json",)
MAX_WEIGHTS_BYTES, MAX_JSON_BYTES = 32 << 30, 64 << 20
"""Maximum size of the weights, and of each other file. The largest Whisper has 6 GB in float32, and a tokenizer of 4
MB.
"""
CONVERT = "ct2-transformers-converter"
"""The program in CTranslate2's package that converts a model of transformers to CTranslate2's format."""


@dataclass(frozen=True)
class SpeechModel:
    """A Whisper model: its files and its identity."""

    name: str
    """``ORG/MODEL``, or the name of the folder."""
    revision: str
    """The commit; empty for a folder."""
    files: Mapping[str, Path]
    """{name that CTranslate2 expects: file}"""
    sha256: str
    """SHA-256 of the weights."""

    @property
    def key(self) -> str:
        """16 hexadecimal digits that depend on the weights and on the rules of suppression."""
        return hashlib.sha256(f"{self.sha256} {RULES_VERSION}".encode()).hexdigest()[:16]

    def about(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model and settings that make transcripts, to be stored with them."""
        libraries = {name: version(name) for name in ("faster-whisper", "ctranslate2", "onnxruntime", "av")}
        return {
            "model": self.name,
            "revision": self.revision,
            "sha256": self.sha256,
            "rules_version": RULES_VERSION,
            "libraries": libraries,
            **settings,
        }


def find_model(weights: str) -> SpeechModel:
    """Find a model by its folder or by its name on the hub; download it if it is not on this machine.

    Raises:
        SettingError: There is no such folder or model, or it is not a Whisper model in CTranslate2's format.
    """
    if is_hub_name(weights):
        name = read_hub_name(weights)
        patterns = [*NEEDED_FILES, *VOCABULARIES, *OPTIONAL_FILES]
        folder = download(name.model, name.revision, patterns, f"weights {weights}", "pass --weights FOLDER")
        title, revision = name.model, folder.name
    else:
        folder = Path(os.path.expanduser(weights)).absolute()
        title, revision = folder.name, ""
        if not folder.is_dir():
            raise SettingError("weights", weights, "no such folder; for a model of the hub write hf:ORG/MODEL")
    files = {name: folder / name for name in (*NEEDED_FILES, *OPTIONAL_FILES, *VOCABULARIES)}
    files = {name: path for name, path in files.items() if path.is_file()}
    if missing := [name for name in NEEDED_FILES if name not in files]:
        is_other = (folder / "model.safetensors").is_file() or (folder / "pytorch_model.bin").is_file()
        todo = f"; {CONVERT} converts the model of transformers" if is_other else ""
        expected = "expected a Whisper model in CTranslate2's format"
        raise SettingError("weights", weights, f"{folder} has no {missing[0]}; {expected}{todo}")
    if not any(name in files for name in VOCABULARIES):
        raise SettingError("weights", weights, f"{folder} has no {' or '.join(VOCABULARIES)}; {CONVERT} writes it")
    for name, path in files.items():
        check_regular(path)
        limit = MAX_WEIGHTS_BYTES if name == WEIGHTS_FILE else MAX_JSON_BYTES
        if (size := path.stat().st_size) > limit:
            problem = f"has {size >> 20:,} MiB; expected at most {limit >> 20:,}, as in a Whisper model"
            raise SettingError("weights", weights, f"{path} {problem}")
    return SpeechModel(title, revision, files, sha256_of(files[WEIGHTS_FILE]))
