"""Serverless multi-agent reinforcement learning."""
