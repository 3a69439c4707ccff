"""Losses and targets: pure functions with shape checks, each with its source."""
