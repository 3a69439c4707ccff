"""Learners of Q-learning: IQL, VDN and QMIX."""
