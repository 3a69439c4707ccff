"""Schedules: the rules by which what has happened to a job leads to rollouts, updates and records."""
