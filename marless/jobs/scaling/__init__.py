"""Scaling policies: how many actors the next round gets."""
