"""The commands ``vlalign-extract``, ``vlalign-convert`` and ``vlalign-doctor``."""
