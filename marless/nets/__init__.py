"""Parameter layouts: NumPy inference for actors and torch training for learners, of the same weights."""
