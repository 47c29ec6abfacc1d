"""The folder of a data set, and the folders outside of it that may be read."""
