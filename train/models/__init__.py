"""Networks, and how they are built from settings."""
