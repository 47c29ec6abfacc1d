"""Feature stores: the interface, on disk, in memory, and the care of their folders."""
