"""The videos to extract: found in folders and lists, or drawn for the demo; and clips of them."""
