"""Comparisons of runs: variants of one job over the same seeds, in a table; and courses of any runs, for pictures."""
