"""Example images from visitors: stored for a while in a private folder, and decoded only in the sandbox."""

import contextlib
import hashlib
import os
import re
import threading
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...extract.decoding.errors import VideoError
from ...storage.common.errors import UserError, reason_of
from ...storage.common.temporary_folder import TemporaryFolder
from .concurrency import one_at_a_time
from .library import NotFound

if TYPE_CHECKING:
    from ...extract.videos.frames import FrameReader

MAX_PICTURES = 32
"""Maximum number of images; a new one replaces the least recently used one."""
DECODE_SECONDS = 10.0
"""Time limit for decoding an image."""
ID_CHARACTERS = 32


class ExamplePictures:
    """Stores the latest images in a temporary folder.

    The name of a file is a hash of its content; visitors cannot choose it.
    """

    def __init__(self) -> None:
        self._folder = TemporaryFolder("vlalign-pictures-")
        self._path = os.path.realpath(self._folder.path)
        self._jpegs: OrderedDict[str, bytes] = OrderedDict()
        """{id: the image as a small JPEG}"""
        self._adding, self._changing = threading.Lock(), threading.Lock()

    @cached_property
    def _reader(self) -> "FrameReader":
        from ...extract.videos.frames import FrameReader  # loads decoders, which most searches do not need

        return FrameReader()

    def add(self, content: bytes) -> str:
        """Store an image; return its id. The same content has the same id.

        Args:
            content: The bytes of an image file.

        Raises:
            UserError: The image cannot be decoded, or cannot be stored, for example on a full disk.
            Busy: Too many images are sent at once.
        """
        picture = hashlib.sha256(content).hexdigest()[:ID_CHARACTERS]
        with one_at_a_time(self._adding, "pictures"):
            if self._used(picture) is not None:
                return picture
            jpeg = self._kept(self._file(picture), content)
            with self._changing:
                self._jpegs[picture] = jpeg
                gone = [self._jpegs.popitem(last=False)[0] for _ in range(len(self._jpegs) - MAX_PICTURES)]
            for other in gone:
                self._file(other).unlink(missing_ok=True)
        return picture

    def _kept(self, path: Path, content: bytes) -> bytes:
        """Write the file of an image, and return it as JPEG. After a failure no file remains, since it would not be
        counted.
        """
        try:
            path.write_bytes(content)
            return self._reader.jpeg(path, 0.0, wait_seconds=DECODE_SECONDS, folders=[self._path])[1]
        except BaseException as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            if isinstance(error, VideoError):
                raise UserError(f"this image cannot be used: {error}") from None
            if isinstance(error, OSError):
                why = error.strerror or reason_of(error)
                raise UserError(f"this image cannot be stored on the server: {why}; try again later") from None
            raise

    def path(self, picture: str) -> Path:
        """Return the file of an image, as uploaded.

        Raises:
            NotFound: There is no such image, or it was removed.
        """
        self.jpeg(picture)
        return self._file(picture)

    def jpeg(self, picture: str) -> bytes:
        """Return an image as JPEG of at most 640 px a side.

        Raises:
            NotFound: There is no such image, or it was removed.
        """
        jpeg = self._used(picture)
        if jpeg is None:
            raise NotFound("the server no longer has this image; choose it again")
        return jpeg

    def without_paths(self, message: str) -> str:
        """Replace the path of each image in a message with "the image"."""
        return re.sub(rf"{re.escape(self._path)}/[0-9a-f]{{{ID_CHARACTERS}}}\.jpg", "the image", message)

    def close(self) -> None:
        """Remove all images."""
        if "_reader" in self.__dict__:
            self._reader.close()
        self._folder.close()

    def _used(self, picture: str) -> bytes | None:
        with self._changing:
            if picture in self._jpegs:
                self._jpegs.move_to_end(picture)
            return self._jpegs.get(picture)

    def _file(self, picture: str) -> Path:
        return Path(self._path) / f"{picture}.jpg"  # whatever its format, which the decoder reads from the content
