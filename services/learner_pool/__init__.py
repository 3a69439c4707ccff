"""The learner pool service: receives trajectories, and runs updates of policies on learner workers."""
