"""Learners of the Q-learning family: IQL, VDN and QMIX."""
