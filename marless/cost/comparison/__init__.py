"""Comparisons of presets: the same job run with several presets and seeds, in one table with confidence intervals."""
