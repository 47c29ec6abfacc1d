"""Checks of the page's parameters: a wrong, unknown or ambiguous one is refused with a message that names it."""

import difflib
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from ...storage.common.errors import SettingError, UserError
from ...storage.common.terminal import one_line

TOKEN = "token"
"""A parameter that every address accepts."""
LIST, SEARCH, TEXTS = "/api/videos", "/api/search", {"q", "like"}
"""While the page lists videos, it keeps all options of a search but its text and examples, so the list accepts them."""
PROBLEMS = {
    "bool_parsing": "expected true or false",
    "finite_number": "expected a finite number",
    "float_parsing": "expected a number",
    "greater_than_equal": "expected {ge:,g} or more",
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a smaller number",
    "less_than_equal": "expected at most {le:,.0f}",
    "literal_error": "expected {expected}",
    "string_too_long": "expected at most {max_length:,} characters",
    "string_too_short": "expected at least {min_length} character",
    "too_long": "expected at most {max_length} of them",
}
"""{type of pydantic's error: our message}"""
MAX_SHOWN_CHARACTERS = 100
"""Maximum length of an unknown name in a message."""
PROBLEM_RESPONSE = {
    "description": "what is wrong",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"detail": {"type": "string"}}}}},
}
"""Part of the API's description, in place of FastAPI's own list of errors."""


def wrong_value(error: Mapping[str, Any]) -> UserError:
    """Return the error for a parameter with a value that FastAPI refuses.

    >>> about = {"loc": ("query", "num_results"), "type": "greater_than_equal", "input": "0", "ctx": {"ge": 1}}
    >>> str(wrong_value(about))
    'num_results 0: expected 1 or more'

    Args:
        error: One of FastAPI's errors.
    """
    name, value = str(error["loc"][1]), error["input"]
    if error["type"] == "missing":
        return UserError(f"{name}: missing; pass it")
    shown = f"({len(value)} values)" if isinstance(value, list) else value
    problem = PROBLEMS.get(error["type"], "expected another value, as /api/openapi.json describes it")
    return SettingError(name, shown, problem.format(**error.get("ctx", {})))


async def check_parameters(request: Request) -> None:
    """Raise ``UserError`` for a parameter that an address does not know, or that has several values and is no list."""
    is_list = _parameters(request, request.url.path)
    if is_list is None:
        return
    if request.url.path == LIST:
        of_search = _parameters(request, SEARCH) or {}
        is_list = is_list | {name: of for name, of in of_search.items() if name not in TEXTS}
    given = request.query_params
    for name in given:
        if name not in is_list and name != TOKEN:
            near = difflib.get_close_matches(name.lower(), is_list, n=1)
            expected = f"did you mean {near[0]}?" if near else f"expected {', '.join(is_list) or 'none'}"
            shown = one_line(name[:MAX_SHOWN_CHARACTERS]) or "(empty)"
            raise UserError(f"{shown}: unknown parameter of {request.url.path}; {expected}")
        if len(values := dict.fromkeys(given.getlist(name))) > 1 and not is_list.get(name, True):
            raise SettingError(name, ", ".join(values), "several values; pass one")


def _parameters(request: Request, path: str) -> dict[str, bool] | None:
    """Return {parameter of an address: whether it may be repeated}; None if it is no address of the API."""
    described = request.app.openapi()["paths"].get(path)
    if described is None:
        return None
    parameters = [each for method in described.values() for each in method.get("parameters", ())]
    return {each["name"]: each["schema"].get("type") == "array" for each in parameters if each["in"] == "query"}
