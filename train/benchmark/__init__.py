"""Benchmarks of other programs: a run or an encoder as their model, a data set as their task."""
