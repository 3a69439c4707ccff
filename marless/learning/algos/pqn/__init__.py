"""Parallel Q-learning, PQN and PQN-VDN: settings and graph (no torch), targets of a round, gradient steps, learner."""
