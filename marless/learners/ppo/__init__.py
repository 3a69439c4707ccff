"""Learners of the PPO family: IPPO and MAPPO."""
