"""What tests of feature stores share: a small profile, videos whose rows say which ones they are, children that may
die."""

import io
import os
import pickle
import signal
from dataclasses import replace

import numpy as np
from PIL import Image
from vlalign.storage import VideoFeatures, Weights, testing, write_shard

DIMENSION = testing.DIMENSION
PROFILE = replace(testing.PROFILE, name="s3d", model="S3D-G", weights="tiny.pth")
WEIGHTS = Weights(name="tiny.pth", sha256="ab" * 32)


def jpeg(shade: int = 0, size: tuple[int, int] = (8, 6), form: str = "JPEG") -> bytes:
    """A picture of one shade of grey."""
    content = io.BytesIO()
    Image.new("L", size, shade).save(content, form)
    return content.getvalue()


def video(video_id, num_rows, *, rate=1.5, base=0.0, first_start=0.0, **more):
    """Rows at a constant rate; row ``r`` holds ``base + r`` in every column, so that a row says which one it is."""
    rows = np.arange(num_rows)
    features = np.repeat((base + rows).astype(np.float32)[:, None], DIMENSION, axis=1)
    values = dict(
        video_id=video_id,
        features=features,
        start_seconds=first_start + rows / rate,
        end_seconds=first_start + (rows + 1) / rate,
        valid_frames=np.full(num_rows, 16),
        duration_seconds=num_rows / rate,
        source=f"source of {video_id}",
        decoder="PyAV 1.2",
    )
    return VideoFeatures(**values | more)


def write(folder, *videos, profile=PROFILE, weights=WEIGHTS, dtype="float16"):
    return write_shard(folder, profile, weights, videos, made_with={"vlalign": "0.1.0", "av": "1.2"}, dtype=dtype)


def in_forked_child(function):
    """What ``function()`` returns in a forked child; it has 30 seconds."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            answer = function()
        except BaseException as error:
            answer = error
        with os.fdopen(write_end, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(content)
