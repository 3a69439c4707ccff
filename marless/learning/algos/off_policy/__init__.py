"""What off-policy families share: settings of the replay (no torch), batches drawn from it, targets, the learner."""
