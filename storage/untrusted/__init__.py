"""Readers of files from strangers: their memory is bounded by the size of the file, and nothing in them is run."""
