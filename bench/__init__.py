"""Benchmark programs, which produce the figures in docs/benchmarks.md and docs/benchmarks_services.md."""
