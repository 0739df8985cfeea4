"""Latencies of the last minutes, from readings of engines."""
