"""A run's folder: its names, its files, and the model in it."""
