"""Which agents share a policy and its learner."""
