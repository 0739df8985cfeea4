"""Admission of requests, by the queue and by the latencies that a new request would have."""
