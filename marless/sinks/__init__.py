"""Metrics sinks: where the curves of a job go, beside its run folder."""
