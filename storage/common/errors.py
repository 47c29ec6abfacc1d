"""The one kind of error that users see."""


class UserError(Exception):
    """Something that the user can mend. The message says what, where, what was expected and what to do, in one line."""
