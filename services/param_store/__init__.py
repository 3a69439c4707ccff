"""Owns policy versions."""
