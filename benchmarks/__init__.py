"""Benchmarks against physical floors, in the same run: `python -m benchmarks` or `make bench`."""
