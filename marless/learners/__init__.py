"""Learners: training with torch in learner workers. One package per family, and modules that families share."""
