"""Annotations -> captions with part-of-speech tags, and the IDF table."""
