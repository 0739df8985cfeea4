"""A real cluster, and what tests start on it."""
