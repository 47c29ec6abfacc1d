"""Search results as files: lists, chapters, timelines for video editors, clips and contact sheets."""
