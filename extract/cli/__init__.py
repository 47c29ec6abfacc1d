"""The commands ``vlalign-extract``, ``vlalign-transcribe``, ``vlalign-convert`` and ``vlalign-doctor``."""
