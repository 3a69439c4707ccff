"""The deterministic policy gradient family, MADDPG and IDDPG: settings and graph (no torch), losses, learner."""
