"""Owns actor workers."""
