"""Readers of untrusted files: their memory is bounded by the size of the file, and nothing in the files is executed."""
