"""Device memory whose addresses outlive it."""
