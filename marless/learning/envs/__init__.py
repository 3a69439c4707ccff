"""Multi-agent environments behind a batched protocol, made by name."""
