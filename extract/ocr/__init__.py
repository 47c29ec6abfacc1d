"""Text in the frames of videos."""
