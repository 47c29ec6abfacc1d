"""The default model of speech. Heavy imports are deferred."""

DEFAULT_MODEL = "hf:Systran/faster-whisper-small"
"""Knows about 100 languages. It has 244 million values in float16 (MIT licence)."""
