"""Trained policies: load, run, evaluate, render and export them, without services and without torch."""
