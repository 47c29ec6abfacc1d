"""Transcripts of the videos of a data set: what is spoken, or the text in frames."""
