"""Owns trajectory intake and learner workers."""
