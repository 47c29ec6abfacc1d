"""Free-text search of a data set."""
