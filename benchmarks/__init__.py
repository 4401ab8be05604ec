"""Benchmarks: `make bench`, and `python -m benchmarks.NAME`."""
