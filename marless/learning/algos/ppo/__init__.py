"""The PPO family, IPPO and MAPPO: settings and graph (no torch), functions, losses, learner."""
