"""Compiles kernels ahead of a start, and chooses the configuration each runs with."""
