"""The Python reference has each public name once, and the examples of its docstrings run."""

import collections
import doctest
import importlib
import inspect
import sys
from pathlib import Path

import pytest
import vlalign.train.losses as losses

TOP = Path(__file__).resolve().parents[1]
PUBLIC = (
    "vlalign.extract",
    "vlalign.preprocess",
    "vlalign.train",
    "vlalign.storage",
    "vlalign.ray_jobs",
    "vlalign.train.losses",
)


def test_each_public_name_is_on_one_page():
    sys.path.insert(0, str(TOP / "docs"))
    reference = importlib.import_module("python_reference")
    sys.path.remove(str(TOP / "docs"))
    shown = collections.Counter(
        f"{page.module}.{name}" for page in reference.PAGES.values() for names in page.groups.values() for name in names
    )
    public = [f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__]
    assert shown == collections.Counter(public)


@pytest.mark.parametrize("name", losses.__all__)
def test_a_loss_has_arguments_and_an_example_that_runs(name):
    public = getattr(losses, name)
    text = inspect.getdoc(public) or ""
    parameters = inspect.signature(public).parameters
    if inspect.isfunction(public):
        assert [of for of in parameters if f"\n    {of}: " not in text] == []
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert test.examples
    shown: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=shown.append)
    assert "".join(shown) == ""
