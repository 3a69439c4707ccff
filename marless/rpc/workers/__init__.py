"""Functions on demand: pools hand tasks to worker processes that dialled out to them."""
