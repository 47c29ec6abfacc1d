"""The commands of training, evaluation, search and the page."""
