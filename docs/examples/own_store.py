"""Features in Zarr: a feature store of one's own in one file, which extraction fills and training and search read.

    pip install 'zarr>=3.1'
    vlalign-extract --dataset mine --features s3d --videos clips --stores own_store:ZarrStore
    vlalign-preprocess --dataset mine --annotations captions.csv
    vlalign-train --dataset mine --features s3d --stores own_store:ZarrStore
    vlalign-search "a dog runs" --dataset mine --stores own_store:ZarrStore

Each video is a group of four arrays. The attributes of the folder list the videos, and are written last:
one process writes at a time.
"""

from dataclasses import asdict
from pathlib import Path

import zarr
from vlalign.storage import (
    Profile,
    Provenance,
    RowTimes,
    StoredVideo,
    Weights,
    WritableStore,
    check_storable,
    refuse_mixed,
)


class ZarrStore(WritableStore):
    def __init__(self, folder):
        self.folder = Path(folder) / "zarr"
        self._attributes = dict(zarr.open_group(self.folder, mode="r").attrs) if self.folder.exists() else {}
        if made := self.provenance():
            self.profile, self.weights, self.origin = made.profile, made.weights, made.origin

    @property
    def made_with(self):
        return self._attributes.get("made_with", {})

    @property
    def _videos(self):  # {video id: [number of its group, what is known of it]}
        return self._attributes.get("videos", {})

    def _array(self, video_id, name):  # the number is an int: what the file says chooses no other file
        return zarr.open_array(self.folder / str(int(self._videos[video_id][0])) / name, mode="r")

    def video_ids(self):
        return list(self._videos)

    def about(self, video_id):
        return StoredVideo(**self._videos[video_id][1])

    def row_times(self, video_id):
        return RowTimes(*(self._array(video_id, name)[:] for name in RowTimes._fields))

    def get_rows(self, ranges):
        found = [self._array(video_id, "features")[low:high] for video_id, low, high in ranges]
        for rows in found:
            rows.flags.writeable = False
        return found

    def provenance(self):
        if not self._attributes:
            return None
        profile, weights = Profile.from_json(self._attributes["profile"]), Weights(**self._attributes["weights"])
        return Provenance(profile=profile, weights=weights, origin=self._attributes["origin"])

    def write(self, videos, provenance, *, dtype="float16"):
        refuse_mixed(self, provenance)
        for video in videos:
            check_storable(video, provenance.profile, dtype)
        root, index = zarr.open_group(self.folder, mode="a"), dict(self._videos)
        first = 1 + max((number for number, _ in index.values()), default=-1)
        for number, video in enumerate(videos, start=first):
            arrays = {"features": video.features.astype(dtype)} | {n: getattr(video, n) for n in RowTimes._fields}
            for name, values in arrays.items():
                chunks = (max(len(values), 1), *values.shape[1:])
                root.create_array(f"{number}/{name}", data=values, chunks=chunks, overwrite=True)
            index[video.video_id] = [number, asdict(video.about)]
        made_with = {n: sorted({*self.made_with.get(n, ()), v}) for n, v in provenance.made_with.items()}
        facts = {"profile": provenance.profile.to_json(), "weights": asdict(provenance.weights)}
        facts |= {"origin": provenance.origin, "made_with": {**self.made_with, **made_with}}
        self._update(facts | {"videos": index})

    def remove(self, video_ids):
        kept = {video_id: about for video_id, about in self._videos.items() if video_id not in video_ids}
        missing = [video_id for video_id in video_ids if video_id not in self._videos]
        self._update({"videos": kept})
        return missing

    def _update(self, attributes):
        self._attributes |= attributes
        zarr.open_group(self.folder, mode="a").attrs.update(self._attributes)
        made = self.provenance()
        self.profile, self.weights, self.origin = made.profile, made.weights, made.origin
