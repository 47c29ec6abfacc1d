"""A rehearsal of HowTo100M on one machine: a synthetic data set goes through all steps while processes are killed."""
