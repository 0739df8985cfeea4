"""Engine cores that share experts: each has its own scheduler and tokens."""
