"""Benchmarks and performance gates; docs/performance.md explains them. Run: ``pytest bench``."""
