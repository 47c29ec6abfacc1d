"""Runs beside each other and beside the papers: seeds, suites of a paper's table, tables of runs, pairs of runs."""
