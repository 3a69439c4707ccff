"""Nets: parameter layouts, NumPy inference for actors and torch training for learners, all on the same weights."""
