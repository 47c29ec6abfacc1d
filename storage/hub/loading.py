"""Load models with transformers from untrusted folders. All such loading goes through this module.

No code of the folder is run, there are no prompts, no other files are loaded, and the hub is not contacted, whatever
the files name.
"""

import contextlib
import json
import math
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..common.errors import reason_of
from ..common.files import check_regular, read_object
from .files import ADAPTER_FILE, CONFIG_FILE, MAX_CONFIG_BYTES, ModelFiles

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

PLAIN_NAME = re.compile(r"[\w .,+()|-]{0,100}")
"""The texts that a configuration may have: names, but no paths, addresses, models of the hub or code."""
FILE_SETTINGS = re.compile(r"(.*_)?(path|file|dir|url|repo|repo_id)")
"""Settings whose texts name something to load."""
SKIPPED_SETTINGS = {
    *("architectures", "auto_map", "dtype", "id2label", "label2id", "label_names", "name_or_path", "torch_dtype"),
    *("task_specific_params", "transformers_version", "attn_implementation", "experts_implementation"),
    *("transformers_weights", "pretrained", "use_pretrained_backbone", "distributed_config"),
    "num_labels",  # transformers makes a name for each
}
"""Settings that have no effect or name other things to load: kernels of the hub, other files of weights."""
SKIPPED_PROCESSOR_SETTINGS = re.compile(rf"{FILE_SETTINGS.pattern}|auto_map|chat_template|_.*|custom_.*")
COPIED_FILES = ("*.json", "*.txt", "*.model")
EXCLUDED_FILES = (CONFIG_FILE, ADAPTER_FILE, "audio_tokenizer_config.json", "generation_config.json", "*.index.json")
TOKENIZER_FILE = "tokenizer.json"
MAX_PROCESSOR_FILE_BYTES = 64 << 20
MAX_LAYERS = 1_000
"""More than any published network has; making each takes milliseconds."""
MAX_CLASSES = 100_000
"""More than any published network has. timm configurations must state a number; transformers names each class."""
_offline_lock = threading.RLock()


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep libraries from contacting the hub in the block: a request raises ``OSError``."""
    from huggingface_hub import constants

    with _offline_lock:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Keep libraries offline, and turn all errors that libraries raise for untrusted files into one kind of error."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        with offline():
            yield
    except (ImportError, MemoryError):
        raise
    except OfflineModeIsEnabled:
        raise ValueError("a part of it is another hub model; expected the whole model in its folder") from None
    except Exception as error:
        raise ValueError(reason_of(error)) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # from tokenizers' Rust code; its type cannot be imported
            raise
        raise ValueError(reason_of(error)) from None


def read_config(files: ModelFiles) -> "PreTrainedConfig":
    """Return the configuration of a transformers model.

    Raises:
        UserError: It would make a library load other files, or cannot be read.
        ValueError: transformers cannot parse it, or it has a path or an address instead of a name.
    """
    from transformers import CONFIG_MAPPING

    about = _plain_config(files)
    with _loading():
        return CONFIG_MAPPING[about["model_type"]].from_dict(about)


def new_network(config: "PreTrainedConfig") -> "PreTrainedModel":
    """Return a network with random weights. Raises ``ValueError`` if transformers cannot make it."""
    from transformers import AutoModel, SiglipTextConfig, SiglipTextModel, T5Config, T5EncoderModel

    with _loading():
        if isinstance(config, SiglipTextConfig):  # AutoModel does not support it
            return SiglipTextModel(config)
        if isinstance(config, T5Config):  # AutoModel also makes its decoder
            return T5EncoderModel(config)
        return AutoModel.from_config(config, trust_remote_code=False)


def load_network(
    files: ModelFiles, config: "PreTrainedConfig", **options: Any
) -> "tuple[PreTrainedModel, dict[str, Any]]":
    """Load a network with its weights; return it and transformers' report about missing weights.

    Args:
        files: The files.
        config: Its configuration, from ``read_config``.
        options: ``dtype`` and ``attn_implementation`` of ``from_pretrained``.

    Raises:
        UserError: The weights are missing.
        ValueError: transformers cannot load them.
    """
    from transformers import AutoModel

    for path in files.weights:
        check_regular(path)
    with _loading():
        return AutoModel.from_pretrained(
            files.part,
            config=config,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
            weights_only=True,
            **options,
        )


def load_processor(files: ModelFiles, kind: Literal["image", "video", "text", "tokenizer"]) -> Any:
    """Return the processor or the tokenizer of a model.

    Raises:
        UserError: It would make a library load other files.
        ImportError: It needs a package that is not installed.
        ValueError: transformers cannot load it.
    """
    from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer, AutoVideoProcessor

    classes = {"image": AutoImageProcessor, "video": AutoVideoProcessor, "text": AutoProcessor}
    with _processor_files(files) as folder, _loading():
        return classes.get(kind, AutoTokenizer).from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_text_processor(files: ModelFiles) -> Any:
    """Return a model's text processor, or its tokenizer. Raises the errors of ``load_processor``."""
    try:
        return load_processor(files, "text")
    except ImportError:  # SigLIP names a tokenizer that needs sentencepiece; tokenizer.json has the same one
        if not (files.part / TOKENIZER_FILE).is_file():
            raise
    return _tokenizer_of_json(files)


def load_fast_tokenizer(files: ModelFiles) -> Any:
    """Return a model's tokenizer, from ``tokenizer.json`` if the class that the model names is not a fast tokenizer.

    Raises the errors of ``load_processor``.
    """
    has_json = (files.part / TOKENIZER_FILE).is_file()
    try:
        tokenizer = load_processor(files, "tokenizer")
    except ImportError:
        if not has_json:
            raise
    else:
        if tokenizer.is_fast or not has_json:
            return tokenizer
    return _tokenizer_of_json(files)


def _tokenizer_of_json(files: ModelFiles) -> Any:
    from transformers import PreTrainedTokenizerFast

    with _processor_files(files) as folder, _loading():
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def quiet_transformers() -> None:
    """Keep transformers from writing bars and advice among this program's own lines."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _plain_config(files: ModelFiles) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    files.check_configuration()
    about = files.config
    kind = "timm_wrapper" if "model_type" not in about and "architecture" in about else about.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(f"transformers has no model_type {str(kind)[:80]!r}")
    try:
        return _plain(about | {"model_type": kind}, CONFIG_MAPPING[kind])
    except RecursionError:
        raise ValueError("its parts are nested too deeply") from None


def _plain(about: Mapping[str, Any], config_class: "type[PreTrainedConfig] | None") -> dict[str, Any]:
    """Return the settings of a configuration that do not name files or addresses: numbers and names.

    Networks also read settings that their class does not declare.
    """
    declared = {field.name for field in fields(config_class)} if config_class is not None else set()
    parts: Any = config_class.sub_configs if config_class is not None else {}

    def plain(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _plain(value, _class_of(parts.get(name.removesuffix("_dict")), value))
        if isinstance(value, list):
            return [plain(name, inner) for inner in value]
        if isinstance(value, int) and value > (limit := _limit_of(name)):
            raise ValueError(f"its {name} is {str(value)[:20]}; expected at most {limit:,}")
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"its {name} is NaN; expected a number")
        if not isinstance(value, str) or (PLAIN_NAME.fullmatch(value) and not FILE_SETTINGS.fullmatch(name)):
            return value
        if name in declared:
            raise ValueError(f"its {name} is {value[:80]!r}; expected a number or a name")
        return _NOTHING

    made = {
        name: plain(name, value)
        for name, value in about.items()
        if name not in SKIPPED_SETTINGS and not name.startswith("_")
    }
    return {name: value for name, value in made.items() if value is not _NOTHING and _NOTHING not in _items(value)}


_NOTHING = object()


def _limit_of(name: str) -> float:
    """Return the upper limit of a number in a configuration, by its name."""
    if "layers" in name or "depth" in name:
        return MAX_LAYERS
    return MAX_CLASSES if name == "num_classes" else math.inf


def _items(value: Any) -> list[Any]:
    return [inner for item in value for inner in (item, *_items(item))] if isinstance(value, list) else []


def _class_of(part: Any, about: Mapping[str, Any]) -> "type[PreTrainedConfig] | None":
    """Return the class of a part of a configuration; None if it is not known."""
    from transformers import CONFIG_MAPPING, AutoConfig

    if part is not AutoConfig:
        return part
    kind = about.get("model_type")
    return CONFIG_MAPPING[kind] if isinstance(kind, str) and kind in CONFIG_MAPPING else None


@contextlib.contextmanager
def _processor_files(files: ModelFiles) -> Iterator[str]:
    """Yield a folder with all that processors and tokenizers need, without settings that name other files."""
    config = _plain_config(files)
    with tempfile.TemporaryDirectory(prefix="vlalign-model-") as name:
        folder = Path(name)
        for path in sorted(files.part.iterdir()):
            wanted = any(fnmatch(path.name, pattern) for pattern in COPIED_FILES)
            if not wanted or not path.is_file() or any(fnmatch(path.name, pattern) for pattern in EXCLUDED_FILES):
                continue
            check_regular(path)
            if path.name.endswith("_config.json"):
                about = read_object(path, MAX_CONFIG_BYTES)
                (folder / path.name).write_text(json.dumps(_without_files(about)), encoding="utf-8")
            elif path.stat().st_size <= MAX_PROCESSOR_FILE_BYTES:
                shutil.copyfile(path, folder / path.name)
        (folder / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
        yield name


def _without_files(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_files(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_files(inner) for name, inner in value.items() if not SKIPPED_PROCESSOR_SETTINGS.fullmatch(name)
    }
