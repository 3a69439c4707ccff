"""Losses and targets: pure functions with shape checks; each docstring names its source."""
