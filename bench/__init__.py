"""Benchmark programs, which produce the figures in docs/benchmarks.md."""
