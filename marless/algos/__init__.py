"""Algorithms by name: each one config, one small class, one line in the registry."""
