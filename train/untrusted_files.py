"""Read a run's untrusted files, or refuse them with one line, in time and memory proportional to their size."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open

from ..storage.common.errors import UserError, unreadable
from ..storage.common.files import check_regular, sha256_of
from ..storage.untrusted.tensor_shapes import shapes_in

TRAIN_AGAIN = "train the run again"
START_AGAIN = "remove it to start the run again"


@contextlib.contextmanager
def refuse_damaged(path: Path, todo: str = TRAIN_AGAIN) -> Iterator[None]:
    """Turn all errors that libraries raise for a damaged file into one line that ends with a remedy.

    Raises:
        UserError: The file is damaged, or a pipe, which would block.
    """
    check_regular(path)
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # transformers, tokenizers, safetensors and torch raise nearly everything
        raise _refused(path, error, todo) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # from tokenizers' Rust code; its type cannot be imported
            raise
        raise _refused(path, error, todo) from None


def _refused(path: Path, error: BaseException, todo: str) -> UserError:
    return unreadable(path, "not a valid file of vlalign-train", error, todo)


def read_shapes(path: Path, prefix: str = "", todo: str = TRAIN_AGAIN) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a safetensors file.

    The library has checked them against the size of the file.

    Args:
        path: The file.
        prefix: Only tensors with this prefix, which is removed from their names.
        todo: What the error tells the user to do.

    Raises:
        UserError: It is not a safetensors file.
    """
    with refuse_damaged(path, todo), safe_open(path, framework="pt") as file:
        return shapes_in(file, prefix)


def sha256_of_tensors(path: Path) -> str:
    """Return the SHA-256 of a safetensors file.

    Raises:
        UserError: It is not a safetensors file. A sparse file costs nothing to send, but hashing it could take hours.
    """
    read_shapes(path)
    return sha256_of(path)
