"""Sharing policies: which agents share a policy and its learner."""
