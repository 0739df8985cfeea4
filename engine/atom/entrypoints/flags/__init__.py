"""The engine's command-line flags, and what is said of those that other engines have."""
