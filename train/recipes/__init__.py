"""Complete configurations of a training, and those of the papers."""
