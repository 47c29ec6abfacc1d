"""The memory that a file from others may take: a multiple of its size, whatever it says of itself."""

FREE_BYTES, FACTOR = 64 << 20, 32
"""Any file may take ``FREE_BYTES`` and ``FACTOR`` times its size. Features and captions are stored in a fifth of their
size at the best; only what repeats itself without end takes less."""


class Budget:
    """The bytes that what a file unpacks to may still take.

    Args:
        file_bytes: Size of the file.
    """

    def __init__(self, file_bytes: int) -> None:
        self.left = FREE_BYTES + FACTOR * file_bytes
        self._file_bytes = file_bytes

    def take(self, num_bytes: int, what: str) -> None:
        """Count what is about to be read. Raises ``ValueError`` if the file would take more than it may."""
        if num_bytes > self.left:
            raise ValueError(f"{what} would take {num_bytes:,} bytes, too much for a file of {self._file_bytes:,}")
        self.left -= num_bytes
