"""Folders of a user's own videos, brought up to date: their features, subtitles and search index."""
