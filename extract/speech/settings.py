"""The default model of speech. Heavy imports are deferred."""

DEFAULT_MODEL = "hf:Systran/faster-whisper-small"
"""Recognises about 100 languages. It has 244 million parameters in float16 (MIT licence)."""
