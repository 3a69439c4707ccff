"""Learners of the deterministic policy gradient family: MADDPG and IDDPG."""
