"""Volumes, variables and containers by which pods reach models of buckets and images."""
