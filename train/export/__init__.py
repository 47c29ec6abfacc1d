"""Search results as files: lists, chapters, files of editors, clips and contact sheets."""
