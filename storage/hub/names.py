"""Names of encoders that a library loads, such as ``hf:ORG/MODEL`` and ``timm:NAME``, and the names of their stores."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from ..common.errors import SettingError
from ..common.validation import DATASET_NAME

HF, TIMM = "hf:", "timm:"
POOLINGS = {
    "tokens": "all tokens of its last layer, one after another",
    "mean": "the mean of all tokens of its last layer",
    "first": "the first token of its last layer",
}
"""{option: description of a feature}; without an option, a feature is the model's own vector."""
FRAMES = "frames"
"""The option for storing the model's input frames, not features; names of built-in frame profiles end with it."""
WHOLE = "whole"
TOWER_FOLDER = "video_tower"
"""Folder of a run with a description of its tuned network."""
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")
EXPECTED_FORM = (
    "expected hf:ORG/MODEL, timm:NAME or hf:/path/to/folder, then @REVISION, :tokens, :mean, :first, :frames, :2fps or "
    ":whole if wanted"
)


@dataclass(frozen=True)
class HubName:
    """An encoder's name in parts."""

    model: str
    """``ORG/MODEL``, or the path of a folder."""
    revision: str | None = None
    """A branch, a tag or a commit; None for the newest. Always None for folders."""
    pooling: str | None = None
    """One of ``POOLINGS``, ``FRAMES`` or None."""
    fps: float | None = None
    """Frames a second; None for the model's own."""
    is_whole: bool = False
    """One feature vector for the whole video, from frames that are spread evenly over it."""

    @property
    def is_folder(self) -> bool:
        """True for a folder on this machine."""
        return HUB_ID.fullmatch(self.model) is None

    @property
    def is_frames(self) -> bool:
        """True if frames are stored (``Profile.is_frames``)."""
        return self.pooling == FRAMES

    @property
    def store(self) -> str:
        """The name of its feature store, such as "facebook--dinov2-base--tokens"."""
        base = title_of(Path(self.model)) if self.is_folder else self.model.replace("/", "--")
        return "--".join(filter(None, (base, self.pooling, self._frames)))

    @property
    def text(self) -> str:
        """The whole name, such as "hf:facebook/dinov2-base@main:tokens"."""
        revision = f"@{self.revision}" if self.revision else ""
        options = "".join(f":{option}" for option in (self.pooling, self._frames) if option)
        return f"{HF}{self.model}{revision}{options}"

    @property
    def _frames(self) -> str | None:
        if self.is_whole:
            return WHOLE
        return None if self.fps is None else f"{self.fps:g}fps"


def title_of(folder: Path) -> str:
    """Return the name of a model's folder; for the ``video_tower`` of a run, the name of the run and "tower".

    models/clip  ->  clip;  runs/ncl-seed0/video_tower  ->  ncl-seed0--tower
    """
    if folder.name != TOWER_FOLDER or not folder.parent.name:
        return folder.name
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', folder.parent.name)}--tower"


def is_hub_name(text: str) -> bool:
    """Return whether a text names an encoder that a library loads."""
    return text.startswith((HF, TIMM))


def read_hub_name(text: str) -> HubName:
    """Read a name such as "hf:facebook/dinov2-base@main:tokens:2fps". "timm:NAME" is "hf:timm/NAME".

    Raises:
        SettingError: The name is malformed.
    """
    whole = f"timm/{text.removeprefix(TIMM)}" if text.startswith(TIMM) else text.removeprefix(HF)
    model, *options = whole.split(":")
    model, _, revision = model.partition("@")
    if not model or ("@" in text and not re.fullmatch(r"[\w./-]+", revision)):
        raise SettingError("features", text, EXPECTED_FORM)
    pooling, fps, is_whole = None, None, False
    for option in options:
        if option in (*POOLINGS, FRAMES) and pooling is None:
            pooling = option
        elif option == WHOLE:
            is_whole = True
        elif (match := re.fullmatch(r"(\d+(?:\.\d+)?)fps", option)) and fps is None and 0 < float(match[1]) < math.inf:
            fps = float(match[1])
        else:
            raise SettingError("features", text, f"{option!r} is not known; {EXPECTED_FORM}")
    if is_whole and fps is not None:
        raise SettingError("features", text, f"both :{WHOLE} and frames a second; omit one of them")
    if fps is not None and fps.is_integer():
        fps = int(fps)
    name = HubName(model, revision or None, pooling, fps, is_whole)
    if name.is_folder:
        if revision:
            raise SettingError("features", text, "a folder has no revisions; remove it")
        if "/" in model and not model.startswith(("/", "./", "../", "~/")):
            raise SettingError(
                "features", text, f"{model} is not ORG/MODEL; write a folder as ./{model}; {EXPECTED_FORM}"
            )
    if not DATASET_NAME.fullmatch(name.store):
        problem = f"its store would be called {name.store!r}; expected letters, digits, '.', '_' and '-' only"
        raise SettingError("features", text, problem)
    return name
