"""Compute feature vectors of batches of frames, in threads beside the decoding."""

import ctypes
import socket
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np
import torch
from torch import Tensor

from ...storage.common.errors import UserError
from ...storage.common.signals import stopping
from ..extractor import Extractor
from .video_jobs import VideoInProgress, WindowBatch

MAX_SPARE_SHAPES = 8
"""Maximum number of frame shapes with cached memory. Profiles without a crop have a shape for each video size."""


class InferencePool:
    """Run batches through their networks.

    On a CPU, each core runs one batch: no core waits for another. On a GPU, batches run one after the other.
    """

    def __init__(self, extractors: Sequence[Extractor]) -> None:
        on_cpu = all(e.device.type == "cpu" for e in extractors)
        if on_cpu:
            _keep_freed_memory()
        self._threads_before = torch.get_num_threads()
        num_batches = self._threads_before if on_cpu else 1
        self._pool = ThreadPoolExecutor(num_batches, "compute", initializer=torch.set_num_threads, initargs=(1,))
        self._max_running = 2 * num_batches
        self._running: dict[Future[Tensor], WindowBatch] = {}
        self._spare: dict[tuple[tuple[int, ...], torch.dtype, bool], list[Tensor]] = {}
        """Frames of finished batches, by shape, type and whether they are pinned."""
        self._done, self._done_signal = socket.socketpair()  # Windows waits for sockets only

    def next_window(self, video: VideoInProgress, index: int, shape: Sequence[int]) -> np.ndarray:
        """Return the memory for the frames of the next window; write to it and then call ``add``.

        Args:
            video: The video that the window is from.
            index: Index of the extractor in ``video.frame_extractors``.
            shape: Shape of the window's frames: [(T,) H, W, 3].
        """
        batch = video.filling.get(index)
        if batch is not None and batch.windows.shape[1:] != tuple(shape):  # the frame size changes in the video
            self._start(batch)
            batch = None
        if batch is None:
            extractor = video.frame_extractors[index]
            frames = self._buffer(
                (extractor.batch_size, *shape), extractor.frame_dtype, pinned=extractor.device.type == "cuda"
            )
            batch = video.filling[index] = WindowBatch(video, index, frames, video.attempt, len(video.rows[index]))
        return batch.windows[batch.num_rows]

    def _buffer(self, shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool) -> Tensor:
        """Return memory for a batch's frames, reused from a finished batch if possible.

        Without reuse, long-lived feature vectors would be allocated between large frames, and the gaps of freed frames
        would be too small for the next ones.
        """
        if spare := self._spare.get((shape, dtype, pinned)):
            return spare.pop()
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)

    def add(self, video: VideoInProgress, index: int) -> None:
        """Take the window that was written to the memory from ``next_window``."""
        batch = video.filling[index]
        batch.num_rows += 1
        video.rows[index].add()
        video.num_pending += 1
        if batch.num_rows == len(batch.windows):
            self._start(batch)

    def start_rest(self, video: VideoInProgress) -> None:
        """Submit the incomplete batches of a video that has no more windows."""
        for batch in list(video.filling.values()):
            self._start(batch)

    def _start(self, batch: WindowBatch) -> None:
        del batch.video.filling[batch.index]
        future = self._pool.submit(batch.extractor.features, batch.frames[: batch.num_rows])
        self._running[future] = batch
        future.add_done_callback(lambda _: self._done_signal.send(b"."))

    @property
    def has_work(self) -> bool:
        """True if batches wait or are being computed."""
        return bool(self._running)

    @property
    def is_full(self) -> bool:
        """True if enough batches wait: decoding should pause."""
        return len(self._running) >= self._max_running

    @property
    def done(self) -> socket.socket:
        """Becomes readable when a batch is done."""
        return self._done

    def wait(self) -> None:
        """Wait until a batch is done."""
        wait(self._running, return_when=FIRST_COMPLETED)

    def take_done(self) -> list[VideoInProgress]:
        """Store finished feature vectors in their videos; return these videos.

        Raises:
            UserError: The device ran out of memory.
            OSError: There is no room for the frames of a video.
        """
        touched: dict[int, VideoInProgress] = {}
        for future in [f for f in self._running if f.done()]:
            self._done.recv(1)
            batch = self._running.pop(future)
            computed = self._rows_of(future, batch)
            video = batch.video
            if video.attempt == batch.attempt:
                video.rows[batch.index].fill(batch.first_row, computed)
                video.num_pending -= batch.num_rows
                touched[id(video)] = video
            if len(self._spare) > MAX_SPARE_SHAPES:
                self._spare.clear()
            kind = tuple(batch.frames.shape), batch.frames.dtype, batch.frames.is_pinned()
            self._spare.setdefault(kind, []).append(batch.frames)
        return list(touched.values())

    @staticmethod
    def _rows_of(future: Future[Tensor], batch: WindowBatch) -> np.ndarray:
        try:
            return future.result().numpy()
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
            name, device = batch.extractor.profile.name, batch.extractor.device
            raise UserError(
                f"{name}: {device} ran out of memory ({reason}); free memory there, or pass another --device"
            ) from None

    def close(self) -> None:
        """End the threads, immediately if the process is being stopped."""
        if stopping():
            self._pool.shutdown(wait=False, cancel_futures=True)
            return
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)
        self._done.close()
        self._done_signal.close()


def _keep_freed_memory() -> None:
    """Make glibc reuse freed blocks instead of returning them to the system.

    Otherwise the system zeroes memory and returns it page by page. This takes up to a fifth of a network's time on a
    CPU, and more with more cores.
    """
    mmap_threshold, trim_threshold, size = -3, -1, 1 << 30  # malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # another C library
    mallopt(mmap_threshold, size)
    mallopt(trim_threshold, size)
