"""What a job would take: recorded rounds under other policies or on other slots, and jobs that have not run yet."""
