"""Deterministic policy gradients: policies that learn from what critics say of their actions."""
