"""Exit codes of all commands."""

EXIT_DONE, EXIT_INCOMPLETE, EXIT_MISTAKE, EXIT_SIGNAL = 0, 1, 2, 128
"""``EXIT_SIGNAL`` is added to the signal's number: 130 after Ctrl-C, 143 after SIGTERM."""
