"""Transcripts of the videos of a data set: speech, or text in frames."""
