"""Trajectories, and the rollouts that make them."""
