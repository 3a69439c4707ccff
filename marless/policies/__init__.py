"""Trained policies outside of training: loaded, played, measured, filmed, handed on. No services, no torch."""
