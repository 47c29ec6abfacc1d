"""The default model of speech. Heavy imports are deferred."""

DEFAULT_MODEL = "hf:Systran/faster-whisper-small"
"""Knows about 100 languages; 464 MB (MIT licence)."""
