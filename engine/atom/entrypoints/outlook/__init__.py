"""Predicted latencies and steps of a server, for /metrics."""
