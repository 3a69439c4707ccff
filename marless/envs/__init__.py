"""Environments: batched, multi-agent, by name."""
