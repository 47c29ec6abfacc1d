"""Rates and lengths of videos that sampling is tested with."""

RATES = ("24000/1001", "30000/1001", "10", "12", "15", "24", "25", "50", "60")


LENGTHS_SECONDS = (1.3, 2.0, 5.0)


FPS = (1, 16, 24, 30)
