"""Scores of captions and clips."""
