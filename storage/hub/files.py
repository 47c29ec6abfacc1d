"""The files of a model: a folder on this machine, or the hub's cache, with downloads if necessary."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..common.errors import READ_ERRORS, UserError, reason_of, refuse_unreadable
from ..common.files import check_regular, read_object, read_small, sha256_of
from .names import HubName, read_hub_name, title_of

CONFIG_FILE = "config.json"
MODULES_FILE = "modules.json"
"""The list of modules of a sentence-transformers model; each module is in a subfolder or the folder itself."""
ST_NETWORKS = ("Transformer", "CLIPModel")
"""Kinds of such modules that are transformers models."""
DOWNLOADED_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "README.md")
MAX_CONFIG_BYTES, MAX_INDEX_BYTES = 4 << 20, 64 << 20
WEIGHT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
OTHER_TYPES = {"I64", "I32", "BOOL"}
"""Types of entries that are no weights, such as positions."""
PROCESSOR_FILES = (
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer_config.json",
    "audio_tokenizer_config.json",
)
AUDIO_TOKENIZER = ("audio_tokenizer", "audio_tokenizer_class", "audio_tokenizer_name_or_path")
"""Fields of a processor that make transformers load any of its classes, and code, from any folder."""
ADAPTER_FILE = "adapter_config.json"
"""If PEFT is installed, transformers adds this adapter to the model, or loads the model that this file names."""
TIMM_NAMES = ("architecture", "backbone")
"""Fields that name a network of timm, which also takes "local-dir:FOLDER" and "hf-hub:ORG/MODEL"."""
TIMM_ARGUMENTS = ("model_args", "backbone_kwargs")
"""Fields that are passed to ``timm.create_model`` as arguments."""
TIMM_LOADING_ARGUMENTS = re.compile(r"(pretrained|checkpoint|cache|model_name|kwargs_filter).*|.*(path|file|dir|url)")
"""Arguments that name files or addresses to load: ``checkpoint_path`` may be a pickle, which timm 1.0.10 executes."""


@dataclass(frozen=True)
class ModelFiles:
    """A folder with a model's configuration and weights."""

    folder: Path
    model: str
    """``ORG/MODEL``, or the name of the folder."""
    revision: str
    """The commit; empty for a folder."""

    @property
    def part(self) -> Path:
        """The folder of the network itself: a subfolder in some models of sentence-transformers.

        Raises:
            UserError: The list of modules cannot be read.
        """
        if (self.folder / CONFIG_FILE).is_file():
            return self.folder
        first = next((name for name, kind in self.modules().items() if kind in ST_NETWORKS), "")
        return self.folder / first if re.fullmatch(r"\w{1,40}", first) else self.folder

    def modules(self) -> dict[str, str]:
        """Return {subfolder: kind} of the modules of a sentence-transformers model; empty for other models.

        Raises:
            UserError: The list cannot be read.
        """
        path = self.folder / MODULES_FILE
        if not path.is_file():
            return {}
        with refuse_unreadable(path, "not a list of modules"):
            modules = json.loads(read_small(path, MAX_CONFIG_BYTES))
            if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
                raise ValueError("expected a list of objects")
        return {str(module.get("path")): str(module.get("type")).rpartition(".")[2] for module in modules}

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``. Raises ``UserError`` if it cannot be read."""
        path = self.part / CONFIG_FILE
        if not path.is_file():
            expected = "expected a folder that transformers or sentence-transformers saved"
            raise UserError(f"{self.part}: has no {CONFIG_FILE}; {expected}")
        with refuse_unreadable(path, "not a model configuration"):
            return read_object(path, MAX_CONFIG_BYTES)

    @property
    def weights(self) -> list[Path]:
        """The files of weights. Raises ``UserError`` if some are missing."""
        index = self.part / "model.safetensors.index.json"
        if index.is_file():
            with refuse_unreadable(index, "not an index of weight files"):
                names = sorted(set(map(str, read_object(index, MAX_INDEX_BYTES)["weight_map"].values())))
        else:
            names = ["model.safetensors"]
        if outside := [name for name in names if Path(name).name != name]:
            raise UserError(
                f"{index}: names a file outside of its folder ({outside[0][:80]!r}); expected plain file names"
            )
        if missing := [name for name in names if not (self.part / name).is_file()]:
            raise UserError(
                f"{self.part / missing[0]}: not found; a model needs its weights as safetensors; "
                "AutoModel.from_pretrained(...).save_pretrained(FOLDER) writes them"
            )
        return [self.part / name for name in names]

    def names_video_processor(self) -> bool:
        """Return whether the files name a separate processor for videos."""
        for name in ("processor_config.json", "video_preprocessor_config.json", "preprocessor_config.json"):
            path = self.part / name
            if path.is_file():
                with refuse_unreadable(path, "not the configuration of a processor"):
                    about = read_object(path, MAX_CONFIG_BYTES)
                if "video_processor" in about or "video_processor_type" in about:
                    return True
        return False

    def check_configuration(self) -> None:
        """Raise ``UserError`` for a configuration that makes a library run code or load other files.

        ``auto_map`` of ``config.json`` itself is not refused: transformers' own network of that type is used.
        """
        if (self.part / ADAPTER_FILE).exists():
            raise UserError(f"{self.part / ADAPTER_FILE}: an adapter; expected a whole model; merge and save it")
        for name in PROCESSOR_FILES:
            path = self.part / name
            if path.is_file():
                with refuse_unreadable(path, "not the configuration of a processor"):
                    about = read_object(path, MAX_CONFIG_BYTES)
                for _, part in _objects(about):
                    if "auto_map" in part:
                        raise UserError(
                            f"{path}: its processor needs its own code (auto_map), which is never run; choose "
                            "another model"
                        )
                    if field := next((field for field in AUDIO_TOKENIZER if field in part), None):
                        raise UserError(f"{path}: its processor would load another model ({field}); remove this field")
        path, about = self.part / CONFIG_FILE, self.config
        if "quantization_config" in about:
            raise UserError(f"{path}: its weights are quantised; pass the original model")
        if "configuration_files" in about:
            raise UserError(f"{path}: refers to other files (configuration_files); expected the configuration itself")
        for where, part in _objects(about):
            if where and "auto_map" in part:
                raise UserError(
                    f"{path}: a part needs its own code ({where}auto_map), which is never run; choose another model"
                )
            for field, value, problem in _timm_faults(part):
                raise UserError(f"{path}: {where}{field} is {str(value)[:80]!r}, {problem}")

    def sha256(self) -> str:
        """Return the SHA-256 of the weights; of several files, the SHA-256 of their hashes."""
        hashes = [sha256_of(path) for path in self.weights]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()

    def check_types(self) -> None:
        """Raise ``UserError`` for weights in unsupported types."""
        for path in self.weights:
            check_regular(path)
            with (
                refuse_unreadable(path, "not a safetensors file", errors=(*READ_ERRORS, SafetensorError)),
                safe_open(path, framework="numpy") as file,
            ):
                types = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no mapping)
            if wrong := sorted(types - WEIGHT_TYPES.keys() - OTHER_TYPES):
                expected = ", ".join(WEIGHT_TYPES.values())
                what = "float64" if wrong == ["F64"] else f"quantised ({', '.join(wrong)})"
                raise UserError(f"{path}: its weights are {what}; expected {expected}")


def _objects(about: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, such as "vision_config.", and object) for a JSON object and all objects in it."""
    left: list[tuple[str, Any]] = [("", about)]
    while left:
        where, value = left.pop()
        if isinstance(value, list):
            left += [(where, part) for part in value]
        elif isinstance(value, dict):
            yield where, value
            left += [(f"{where}{name}.", part) for name, part in value.items()]


def _timm_faults(part: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield (field, value, problem) of fields that would make timm load other files."""
    for name in TIMM_NAMES:
        value = part.get(name)
        if isinstance(value, str) and not re.fullmatch(r"[\w.-]+", value):
            yield name, value, "which is another model or a path; expected the name of a timm network"
    for name in TIMM_ARGUMENTS:
        arguments = part.get(name) or {}
        if not isinstance(arguments, dict):
            yield name, arguments, "expected an object"
            continue
        for argument, value in arguments.items():
            if TIMM_LOADING_ARGUMENTS.fullmatch(argument):
                yield (
                    f"{name}.{argument}",
                    value,
                    "which names weights to load; only the model's own weights are loaded; remove it",
                )
            elif not _is_plain(value):
                yield f"{name}.{argument}", value, "expected numbers, or a name in letters, digits and _"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float) or re.fullmatch(r"\w*", str(value)) is not None


def find_files(name: HubName) -> ModelFiles:
    """Return the files of a model, downloaded if they are not on this machine.

    Raises:
        UserError: There is no such folder, model or revision, or the hub cannot be reached.
    """
    if name.is_folder:
        folder = Path(os.path.expanduser(name.model))
        files = ModelFiles(folder.absolute(), title_of(folder.absolute()), "")
        if not (files.part / CONFIG_FILE).is_file():
            problem = f"{folder} has no {CONFIG_FILE}" if folder.is_dir() else f"{folder}: no such folder"
            raise UserError(f"features {name.text}: {problem}; expected what save_pretrained writes, or hf:ORG/MODEL")
    else:
        what, option = f"features {name.text}", "--features hf:/path/to/FOLDER"
        files = download_model(name.model, name.revision, what, option)
    if unused := [kind for kind in files.modules().values() if kind not in (*ST_NETWORKS, "Normalize")]:
        raise UserError(
            f"features {name.text}: {MODULES_FILE} has the module {unused[0]}, which vlalign cannot compute; "
            "choose another model"
        )
    return files


def pin_revision(text: str) -> str:
    """Return an encoder's name with its current commit, or with the whole path of its folder.

    Raises:
        UserError: As for ``find_files``.
    """
    name = read_hub_name(text)
    files = find_files(name)
    if name.is_folder:
        return replace(name, model=str(files.folder)).text
    return replace(name, revision=files.revision).text


def download_model(model: str, revision: str | None, what: str, option: str) -> ModelFiles:
    """Return the files of a hub model, from the hub's cache on this machine or downloaded.

    The arguments and errors are those of ``download``.
    """
    found = download(model, revision, DOWNLOADED_FILES, what, f"pass {option}")
    return ModelFiles(found, model, found.name)


def download(model: str, revision: str | None, patterns: Sequence[str], what: str, instead: str) -> Path:
    """Return a revision's folder in the hub's cache; download missing files.

    Args:
        model: ``ORG/MODEL``.
        revision: A branch, a tag or a commit; None for the newest.
        patterns: Patterns of the files, such as "*.json".
        what: Their purpose, for messages, such as "features hf:ORG/MODEL".
        instead: The alternative with a folder, for messages, such as "pass --features hf:/path/to/FOLDER".

    Raises:
        UserError: There is no such repository or revision, or the hub cannot be reached.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        offline = constants.HF_HUB_OFFLINE  # some versions of huggingface_hub would ask the hub all the same
        return Path(
            snapshot_download(model, revision=revision, allow_patterns=list(patterns), local_files_only=offline)
        )
    except GatedRepoError:
        reason = f"its owners must give you access; ask at https://huggingface.co/{model}, then run hf auth login"
    except RevisionNotFoundError:
        reason = f"it has no revision {revision}; expected a branch, a tag or a commit"
    except RepositoryNotFoundError:
        reason = f"no such model on the hub, or it is private; run hf auth login; for a folder, {instead}"
    except LocalEntryNotFoundError:
        at = f" --revision {revision}" if revision else ""
        reason = (
            "not in the hub's cache on this machine, and the hub cannot be reached; on a machine that "
            f"reaches it, run hf download {model}{at} --local-dir FOLDER; copy the folder here and {instead}"
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = reason_of(error)
    raise UserError(f"{what}: {reason}")
