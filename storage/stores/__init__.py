"""Feature stores: the interface, on disk, in memory, and maintenance of their folders."""
