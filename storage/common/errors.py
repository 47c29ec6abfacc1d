"""Errors that a user can fix."""


class UserError(Exception):
    """Something that the user can fix. The message says what, where, what was expected and what to do, in one line."""


class SettingError(UserError):
    """A setting has a value that cannot be used here.

    Library code names the setting as Python does (``num_results 0: expected 1 or more``). A command names its option
    (``--num-results 0: expected 1 or more``).
    """

    def __init__(self, setting: str, value: object, problem: str) -> None:
        """Say what is wrong with a value.

        Args:
            setting: Name of the argument or field, such as "num_results".
            value: What it was set to.
            problem: What was expected, or why the value cannot be used.
        """
        super().__init__(setting, value, problem)  # all three, so that the error can be pickled
        self.setting = setting
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.setting} {self.value}: {self.problem}"

    def of_command(self) -> str:
        """Return the message with the name of the command's option."""
        return f"--{self.setting.replace('_', '-')} {self.value}: {self.problem}"
