"""Settings: what a field is for, and the parts of a configuration."""
