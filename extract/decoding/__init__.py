"""Video, image and sound files -> frames and samples, in confined child processes."""
