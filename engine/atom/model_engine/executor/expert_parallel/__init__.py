"""Engine cores that share experts: each has a scheduler and tokens of its own."""
