"""The Q-learning family, IQL, VDN and QMIX: settings and graph (no torch), functions, mixers, learner."""
