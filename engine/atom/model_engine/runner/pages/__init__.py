"""Pages of a rank: its rows of the host's memory, and the copies between them and the cache."""
