"""Command lines: the common parts of all commands, and ``vlalign-store``."""
