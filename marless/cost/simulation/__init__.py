"""Rounds on virtual time: schedules, clusters of slots, durations from recorded ones, and records made of them."""
