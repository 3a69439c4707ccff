"""Jobs compared: the same job run several ways over several seeds, with intervals, in one table."""
