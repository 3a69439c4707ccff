"""What a job is, what was recorded of it, and what it decides: schedules, actors, sharing."""
