"""Locks: each package that an install command of this project takes, at one version, with the hashes of its files."""
