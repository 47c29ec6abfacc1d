"""Command lines: what all commands share, and ``vlalign-store``."""
