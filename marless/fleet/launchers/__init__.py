"""Launchers: what starts the workers of a pool, and where."""
