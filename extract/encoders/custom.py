"""Custom encoders: a profile in a file, and a network from a Python module that the user trusts by name.

The file is JSON or TOML with all fields of ``Profile``, and ``network``: "MODULE:FUNCTION". The function takes the path
of the weights, or None, and returns a ``torch.nn.Module`` that turns normalised frames [B, 3, (T,) H, W] into features
[B, D]. The module may be in the same folder.
"""

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...storage.common.errors import UserError, reason_of, refuse_unreadable
from ...storage.common.files import check_regular, read_object
from ...storage.common.own_modules import content_of, import_own
from ...storage.common.plugins import check_trusted
from ...storage.common.terminal import one_line
from ...storage.exchange.declared_profile import profile_in
from ...storage.records import Profile, Weights
from .profile_checks import check_extractable

if TYPE_CHECKING:
    from ..models.network import CustomNetwork

OWN = "own:"
"""Prefix of ``CustomEncoder.text``: the path of the profile follows, then ``|`` and the path of the weights, if any."""
SUFFIXES = (".json", ".toml")
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class CustomEncoder:
    """A custom encoder: the profile, and the network's module."""

    path: Path
    profile: Profile
    module: str
    function: str
    weights: Path | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and not self.weights.is_file():
            raise UserError(f"weights {self.weights}: no such file; expected the weights of your network")

    @property
    def text(self) -> str:
        """The encoder as text, for other processes; ``read_custom_encoder`` reads it."""
        return f"{OWN}{self.path}" + ("" if self.weights is None else f"|{self.weights}")

    def load(self) -> "tuple[CustomNetwork, Weights]":
        """Run the module's function; return the network and its weights.

        Raises:
            UserError: The module or its function is missing, fails, or gives no network.
        """
        from ..models.network import custom_network  # torch takes seconds to import

        try:
            module = import_own(self.module, self.path.parent)
            made = getattr(module, self.function)(self.weights)
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            what = f"{self.module}:{self.function}"
            raise UserError(f"{self.path}: {what} cannot be used ({reason_of(error)})") from None
        network = custom_network(made, self.profile.dimension, f"{self.path}: {self.module}:{self.function}")
        source = content_of(Path(module.__file__)) if module.__file__ else b""
        digest = hashlib.sha256(source)
        for name, value in sorted(network.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        name = f"{self.module}:{self.function}" + ("" if self.weights is None else f" with {self.weights.name}")
        return network, Weights(name=name, sha256=digest.hexdigest())


def is_custom_encoder(text: str) -> bool:
    """Return whether a text names a custom encoder."""
    return text.startswith(OWN) or text.endswith(SUFFIXES)


def find_custom_encoder(text: str, trusted: Iterable[str]) -> CustomEncoder:
    """Read the file of an encoder that the command line names.

    Args:
        text: The path of the file.
        trusted: Modules that may be run.

    Raises:
        UserError: The file is missing or wrong, or names a module that is not trusted.
    """
    encoder = read_custom_encoder(text)
    check_trusted(f"the network of the features {encoder.profile.name}", encoder.module, trusted, encoder.path)
    return encoder


def read_custom_encoder(text: str) -> CustomEncoder:
    """Read an encoder that was trusted before, from the path of its file or ``CustomEncoder.text``.

    Raises:
        UserError: The file is missing or wrong.
    """
    name, _, weights = text.removeprefix(OWN).partition("|")
    path = Path(name).absolute()
    if not path.is_file():
        raise UserError(f"features {name}: no such file; expected the file of a profile, or a profile's name")
    values = _read(path)
    module, _, function = str(values.pop("network", "")).partition(":")
    if not module or not function.isidentifier():
        raise UserError(f"{path}: field 'network' is missing or not valid; expected MODULE:FUNCTION")
    profile = profile_in(values, path)
    try:
        check_extractable(profile)
    except ValueError as error:
        raise UserError(f"{path}: {one_line(str(error))}") from None
    if profile.is_frames or profile.is_shots:
        raise UserError(f"{path}: field 'layer' is {profile.layer!r}, which is not a network's layer; expected one")
    return CustomEncoder(path, profile, module, function, Path(weights) if weights else None)


def _read(path: Path) -> dict[str, Any]:
    check_regular(path)
    with refuse_unreadable(path, f"not a profile in {path.suffix[1:].upper()}"):
        if path.suffix != ".toml":
            return read_object(path, MAX_FILE_BYTES)
        if sys.version_info < (3, 11):
            raise ValueError("TOML needs Python 3.11 or newer; write it as JSON")
        import tomllib

        content = path.read_bytes()
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"{len(content):,} bytes; expected at most {MAX_FILE_BYTES:,}")
        return tomllib.loads(content.decode())
