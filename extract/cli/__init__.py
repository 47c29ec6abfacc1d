"""The commands ``vlalign-extract`` and ``vlalign-doctor``."""
