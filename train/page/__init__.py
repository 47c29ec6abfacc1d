"""The page on which a data set is searched, and the same as JSON."""
