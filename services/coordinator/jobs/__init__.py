"""The jobs of a runs directory: submission, queue, failover, and what their owner keeps of each."""
