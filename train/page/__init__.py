"""The web page for searching a data set, and its JSON API."""
