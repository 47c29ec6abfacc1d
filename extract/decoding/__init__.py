"""Video, image and sound files -> frames and samples, in child processes that hold no rights."""
