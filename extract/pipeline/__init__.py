"""The way of a video through an extraction: planned, downloaded, decoded, computed, written."""
