"""Counts in messages."""


def number_of(count: int, things: str) -> str:
    """Return a count with its things, such as "1 video" or "1,234 videos".

    Args:
        count: How many.
        things: What is counted: a regular plural, which may have words before it, such as "training clips".
    """
    return f"{count:,} {things.removesuffix('s') if count == 1 else things}"
