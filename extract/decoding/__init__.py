"""Video, image and sound files -> pictures and samples, in child processes that hold no rights."""
