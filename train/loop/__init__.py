"""Training: the loop, its processes and its checks."""
