"""Learners of deterministic policy gradients: MADDPG and IDDPG."""
