"""Captions, the IDF table and word vectors of a data set."""
