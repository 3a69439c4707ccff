"""The relay of a host: passes on the tasks, results and small trajectories of its actor workers, many at a time."""
