"""The video tower: a network of extraction that turns a clip's frames into rows of features, and is tuned.

Shape letters: B clips, M rows of the longest one, P rows of all clips, K bytes of a row's frames, F width of a row of
features.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ...extract.encoders import is_of_hub
from ...extract.encoders.hub import HubEncoder
from ...extract.encoders.saved_tower import SavedTower, run_of
from ...extract.extractor import NAMED, load_extractor, load_hub_network, normalised
from ...storage.common.errors import SettingError, UserError
from ...storage.hub.names import TOWER_FOLDER
from ...storage.profiles import FRAME_MAPS, PROFILES
from ...storage.records import Profile
from .layers import MixedPrecision, compiled_once
from .tokens import ClipRows, nonzero

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from ...extract.models.network import Network
    from ..settings import TowerName

GEOMETRY = ("window", "short_side_px", "crop_px", "resize")
"""The fields of a profile that decide how the frames of a row look."""


class VideoTower(MixedPrecision):
    """A network of extraction between the frames of a store and the encoder of clips.

    In training, as in extraction, there is no dropout, and batch norms keep their statistics, since networks of
    extraction fold them into the preceding convolutions.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, saved: SavedTower, network: Network, grid: tuple[int, int, int] | None = None) -> None:
        """Take a network that can be trained (``Network.make_trainable``).

        Args:
            saved: Its description.
            network: The network.
            grid: (time, height, width) for a network whose features are maps: a clip's rows are the means of this many
                cells of its maps.
        """
        super().__init__()
        self.saved, self.network, self.grid = saved, network, grid
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(saved.profile, name)), persistent=False)
        self._run: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def new(cls, name: TowerName, frames: Profile, grid: tuple[int, int, int] | None, *, seed: int) -> Self:
        """Return the tower of a new run.

        Args:
            name: The network.
            frames: The profile of the store of frames that the tower reads.
            grid: As for the class.
            seed: Seed of random weights.

        Raises:
            SettingError: The network takes other frames than the store has.
            UserError: The network's weights are missing or belong to another model.
        """
        hub = name.hub
        if hub is None:
            check_frames(frames, PROFILES[name.encoder], name)
            extractor = load_extractor(name.encoder, weights=name.weights, seed=seed)
            assert extractor.network is not None, "settings are checked"
            place = None
            if name.weights not in NAMED:
                run = run_of(name.weights)
                place = Path(name.weights) if run is None else run / TOWER_FOLDER
            saved = SavedTower.of(extractor.profile, extractor.weights, None, place)
            return cls(saved, extractor.network.make_trainable(), grid)
        if hub.fps is None and not hub.is_whole:  # the rate of the store's frames, which the tower does not see
            hub = replace(hub, fps=frames.fps, is_whole=frames.fps is None and frames.window > 1)
        encoder = HubEncoder.find(hub)
        check_frames(frames, encoder.profile, name)
        network, used = load_hub_network(encoder)
        saved = SavedTower.of(encoder.profile, used, hub.pooling, encoder.files.folder)
        return cls(saved, network.make_trainable(), grid)

    @classmethod
    def read(
        cls,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        name: TowerName,
        grid: tuple[int, int, int] | None,
    ) -> Self:
        """Return the tower of an existing run, with random weights.

        Args:
            folder: The run's folder ``video_tower``.
            shapes: Shapes of the tower's tensors in the run's weights, by name. Nothing is allocated before they match.
            name: The expected network.
            grid: As for the class.

        Raises:
            UserError: The shapes do not match, the network is another one, or the folder's files are not as training
                writes them.
        """
        saved = SavedTower.read(folder)
        hub, profile = name.hub, saved.profile
        if not (profile.name == name.encoder if hub is None else is_of_hub(profile) and saved.pooling == hub.pooling):
            raise UserError(
                f"{folder}: has the network {profile.name}; expected {name.encoder}, as in the run's settings"
            )
        of_network = {name.removeprefix("network."): shape for name, shape in shapes.items()}
        return cls(saved, saved.new_network(folder, of_network), grid)

    @property
    def dim(self) -> int:
        """Width of a row of features."""
        return self.map_shape[2] if self.map_shape else self.saved.profile.dimension

    @property
    def map_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of its features if they are averaged into a grid; else None."""
        return FRAME_MAPS[self.saved.profile.name] if self.grid else None

    @property
    def is_frozen(self) -> bool:
        """True if none of its parameters is trained."""
        return not any(parameter.requires_grad for parameter in self.parameters())

    def train(self, mode: bool = True) -> Self:
        """Set the mode. The network itself stays in evaluation mode."""
        super().train(mode)
        self.network.eval()
        return self

    def compile_network(self) -> None:
        """Compile the network with torch.compile, for any number of rows."""
        self._run = compiled_once(self._features)

    def row_counts(self, lengths_B: Tensor | None) -> Tensor | None:
        """Return each clip's number of rows after the tower, on the CPU; None if it is not known in advance."""
        if lengths_B is None or self.grid is None:
            return lengths_B
        return torch.full_like(lengths_B, self.grid[0] * self.grid[1] * self.grid[2])

    @property
    def frame_vector_width(self) -> int:
        """Width of the vector that the network gives of each frame in addition to its map; 0: none."""
        return self.network.frame_vector_width if self.grid else 0

    def rows(self, frames_BMK: Tensor, mask_BM: Tensor, lengths_B: Tensor | None) -> ClipRows:
        """Return rows of features, with their mask and lengths, for rows of frames with their mask and lengths.

        Args:
            frames_BMK: Rows of a store of frames, uint8; padding is ignored.
            mask_BM: True for a row, False for padding.
            lengths_B: Number of rows of each clip, on the CPU; None: known only from the mask.
        """
        clip_P, place_P = nonzero(mask_BM, lengths_B)
        features_PF = self(frames_BMK[clip_P, place_P])
        if self.map_shape is None or self.grid is None:
            features_BMF = features_PF.new_zeros(*mask_BM.shape, features_PF.shape[1])
            return ClipRows(features_BMF.index_put((clip_P, place_P), features_PF), mask_BM, lengths_B)
        lengths = (mask_BM.sum(dim=1) if lengths_B is None else lengths_B).tolist()
        vectors_PV, maps_PF = features_PF.tensor_split([self.frame_vector_width], dim=1)
        of_clips = maps_PF.unflatten(1, self.map_shape).movedim(-1, 1).split(lengths)
        cells = [F.adaptive_avg_pool3d(maps_TCHW.transpose(0, 1), self.grid).flatten(1).T for maps_TCHW in of_clips]
        rows_BMF, whole_BF = torch.stack(cells), None
        if self.frame_vector_width:
            whole_BF = torch.stack([vectors_TV.mean(dim=0) for vectors_TV in vectors_PV.split(lengths)])
        return ClipRows(rows_BMF, mask_BM.new_ones(rows_BMF.shape[:2]), self.row_counts(lengths_B), whole_BF)

    def forward(self, frames_PK: Tensor) -> Tensor:
        """Return features [P, F], float32, of frames in uint8. Without a gradient, few rows are computed at a time.

        If the network gives a vector of each frame in addition to its map, the vector comes first.
        """
        run = self._features if self._run is None or len(frames_PK) == 1 else self._run
        if torch.is_grad_enabled() and not self.is_frozen:
            return run(frames_PK)
        size = self.network.batch_sizes["cpu" if frames_PK.device.type == "cpu" else "cuda"]
        with torch.no_grad():
            return torch.cat([run(part) for part in frames_PK.split(size)])

    def _features(self, frames_PK: Tensor) -> Tensor:
        profile = self.saved.profile
        window, side, _, _ = profile.frame_shape
        frames = frames_PK.unflatten(1, (*([] if window == 1 else [window]), side, side, 3))
        with self.autocast(frames.device):
            run = self.network.with_frame_vectors if self.frame_vector_width else self.network
            return run(normalised(frames, profile, self.mean, self.std)).float()


def check_frames(frames: Profile, features: Profile, name: TowerName) -> None:
    """Raise ``SettingError`` if the frames of a store do not fit a network's input.

    Args:
        frames: The profile of the store.
        features: Profile of the network's features.
        name: The network.
    """
    rate = ["fps"] if name.hub is not None and (name.hub.fps is not None or name.hub.is_whole) else []
    unlike = [field for field in (*GEOMETRY, *rate) if getattr(frames, field) != getattr(features, field)]
    if unlike:
        has, takes = (", ".join(f"{field} {getattr(of, field)}" for field in unlike) for of in (frames, features))
        problem = f"its frames have {has}; video_tower {name.encoder} takes {takes}: extract {name.frames}"
        raise SettingError("features", frames.name, problem)
