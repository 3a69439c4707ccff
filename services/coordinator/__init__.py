"""Owns jobs and decisions; never touches a tensor."""
