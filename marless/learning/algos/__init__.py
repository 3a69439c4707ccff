"""Algorithms: the protocol, a package for each family, and what families share. Settings import no torch."""
