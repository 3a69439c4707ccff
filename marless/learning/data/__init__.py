"""Trajectories, the rollouts that produce them, and the replay that stores them."""
