"""The Python reference has each public name once, and the examples of its docstrings run."""

import ast
import collections
import doctest
import importlib
import inspect
import sys
import textwrap
from pathlib import Path

import pytest
import vlalign.train.density
import vlalign.train.metrics
from helpers.needs import package
from helpers.small_demo import make_small_demo

TOP = Path(__file__).resolve().parents[1]
PUBLIC = (
    "vlalign.extract",
    "vlalign.preprocess",
    "vlalign.train",
    "vlalign.storage",
    "vlalign.ray_jobs",
    "vlalign.train.losses",
)
WHOLE = (vlalign.train.metrics, vlalign.train.density)
"""Modules all of whose names are public."""
NAMES = [f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__] + [
    f"{module.__name__}.{name}"
    for module in WHOLE
    for name, public in vars(module).items()
    if name[0] != "_" and getattr(public, "__module__", "") == module.__name__
]
NOT_HERE = {
    "vlalign.extract.transcribe_video": "a model of speech",
    **{f"vlalign.ray_jobs.{name}": "a cluster" for name in importlib.import_module("vlalign.ray_jobs").__all__},
}
"""Names whose example needs more than the data set of these tests: its last calls are shown, and not run."""
del NOT_HERE["vlalign.ray_jobs.WorkerOptions"]
PACKAGES = {
    "ray_jobs": "ray",
    "MtebModel": "mteb",
    "mteb_model": "mteb",
    "mteb_task": "mteb",
    "export_sentence_transformer": "sentence_transformers",
    "transcribe_dataset": "rapidocr",
    "prepare_captions": "spacy",
    "PreparedCaptions": "spacy",
}
"""Optional packages that examples need, by a part of the name."""


def public_of(name: str):
    """Return a public name; skip the test where its package is not installed."""
    for part in name.split("."):
        if part in PACKAGES:
            package(PACKAGES[part])
    module, _, own = name.rpartition(".")
    return getattr(importlib.import_module(module), own)


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    """Return a folder that has the data set ``vlalign_data/demo`` of the examples."""
    folder = tmp_path_factory.mktemp("examples")
    make_small_demo(folder / "vlalign_data")
    return folder


def test_each_public_name_is_on_one_page():
    sys.path.insert(0, str(TOP / "docs"))
    reference = importlib.import_module("python_reference")
    sys.path.remove(str(TOP / "docs"))
    shown = collections.Counter(
        f"{page.module}.{name}" for page in reference.PAGES.values() for names in page.groups.values() for name in names
    )
    constants = {name for name in shown if name.rpartition(".")[2].isupper()}
    assert {name: number for name, number in shown.items() if name not in constants} == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, demo, monkeypatch):
    public = public_of(name)
    monkeypatch.chdir(demo)
    monkeypatch.setenv("MTEB_CACHE", str(demo / "mteb"))
    test = doctest.DocTestParser().get_doctest(public.__doc__ or "", {}, name, None, None)
    assert test.examples
    is_skipped = [bool(example.options.get(doctest.SKIP)) for example in test.examples]
    assert not all(is_skipped) and any(is_skipped) == (name in NOT_HERE)
    shown: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=shown.append)
    assert "".join(shown) == ""


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_of_a_public_name_is_complete(name):
    public = public_of(name)
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(public))).body
    assert (gaps_of_class if isinstance(node, ast.ClassDef) else gaps_of_function)(node) == []
    assert isinstance(node, ast.ClassDef) or not returns(node) or "\nReturns:\n" in (ast.get_docstring(node) or "")


def gaps_of_class(node) -> list[str]:
    """Return which fields, and arguments and errors of public methods, a class does not describe."""
    gaps = []
    for place, part in enumerate(node.body):
        if isinstance(part, ast.AnnAssign) and part.target.id[0] != "_":
            after = node.body[place + 1 : place + 2]
            is_described = bool(after) and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant)
            if not is_described and not is_described_setting(part.value):
                gaps.append(part.target.id)
        if isinstance(part, ast.FunctionDef) and is_public_method(part):
            gaps += gaps_of_function(part)
    return gaps


def is_public_method(node) -> bool:
    """Return whether a function of a class is called by users. Properties have no arguments."""
    is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
    return not is_property and (node.name[0] != "_" or node.name in ("__init__", "__call__"))


def is_described_setting(value) -> bool:
    """Return whether a default is a call of ``setting`` with a description, or with choices, which have one."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "setting":
        return False
    return len(value.args) > 1 or any(keyword.arg == "choices" for keyword in value.keywords)


def gaps_of_function(node) -> list[str]:
    """Return which arguments a function does not describe, and ``Raises`` if it raises ``UserError`` itself."""
    text, given = ast.get_docstring(node) or "", node.args
    names = [
        each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg] if each
    ]
    gaps = [f"{node.name} {of}" for of in names if of not in ("self", "cls") and f"\n    {of}: " not in text]
    raised = [ast.unparse(each.exc) for each in ast.walk(node) if isinstance(each, ast.Raise) and each.exc]
    if any(each.startswith(("UserError(", "SettingError(")) for each in raised) and "\nRaises:\n" not in text:
        gaps.append(f"{node.name} Raises")
    return gaps


def returns(node) -> bool:
    """Return whether a function is annotated to return a value."""
    return node.returns is not None and ast.unparse(node.returns) != "None"
