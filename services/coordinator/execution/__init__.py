"""Executes the schedule of one job on the pools, from its recovery to its end."""
