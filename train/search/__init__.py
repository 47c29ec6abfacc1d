"""Search in the clips of a data set."""
