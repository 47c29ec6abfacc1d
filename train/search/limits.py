"""What a query may be. Imports nothing heavy, so that a command refuses a wrong one at once."""

from ...storage.common.errors import SettingError, UserError

MAX_QUERY_CHARACTERS = 2000


def check_query(query: str) -> None:
    """Raise ``UserError`` for a query without words, or one that is too long."""
    if not query.strip():
        raise UserError("the query is empty; expected some words, such as 'a red circle falls'")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise UserError(
            f"the query has {len(query):,} characters; expected at most {MAX_QUERY_CHARACTERS:,}, and models read fewer"
        )


def check_count(name: str, value: int) -> None:
    """Raise ``SettingError`` for a number below 1."""
    if value < 1:
        raise SettingError(name, value, "expected 1 or more")
