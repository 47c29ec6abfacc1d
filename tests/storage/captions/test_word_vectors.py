"""The file of selected word vectors: what is not one is an error line."""

import numpy as np
import pytest
from vlalign.storage.captions.word_vectors import WordVectors, read_word_vectors, write_word_vectors
from vlalign.storage.common.errors import UserError


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"words": ["a"], "vectors": ["a"], "about": "{}"},
        {"words": [["a"]], "vectors": [[1.0]], "about": "[" * 200_000},
        {"words": ["a"], "vectors": [1.0], "about": "{}"},
        {"words": ["a", "b"], "vectors": [[1.0]], "about": "{}"},
        {"words": ["a"], "vectors": [[1.0]], "about": ["{}", "{}"]},
    ],
)
def test_invalid_word_vectors_are_one_line(tmp_path, arrays):
    path = tmp_path / "word_vectors.npz"
    np.savez(path, **arrays)
    with pytest.raises(UserError, match=r"word_vectors\.npz: .* \(.*\); .*vlalign-preprocess"):
        read_word_vectors(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"word_vectors\.npz: "):
        read_word_vectors(path)


def test_a_missing_or_damaged_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"word_vectors\.npz: .*vlalign-preprocess .*--word-vectors"):
        read_word_vectors(tmp_path / "word_vectors.npz")
    path = tmp_path / "word_vectors.npz"
    for damage in (b"", b"no zip"):
        path.write_bytes(damage)
        with pytest.raises(UserError, match=r"word_vectors\.npz: .*--word-vectors"):
            read_word_vectors(path)
    vectors = WordVectors(["the", "日本"], np.eye(2, 12, dtype=np.float32), {"a": 1})
    write_word_vectors(path, vectors)
    assert read_word_vectors(path).about == {"a": 1}
