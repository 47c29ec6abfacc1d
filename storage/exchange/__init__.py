"""Features from other programs into stores, and stores into files that other programs read."""
