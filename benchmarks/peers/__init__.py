"""Other engines asked as ours is, on one checkpoint."""
