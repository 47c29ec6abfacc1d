"""From captions and feature stores to batches."""
