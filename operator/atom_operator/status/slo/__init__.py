"""Conditions about targets of latency, and about the speed of steps."""
