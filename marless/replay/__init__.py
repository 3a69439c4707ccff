"""Replays recorded rounds under other scaling and sharing policies or on another cluster, and models time and cost."""
