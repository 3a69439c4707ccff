"""Worker pools: pools assign tasks to worker processes, which connect to them."""
