"""Predicted latencies of a new request, from the queue and from the times of the newest steps."""
