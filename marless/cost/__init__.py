"""What a job costs, has cost, or would cost under other settings."""
