"""Small helpers that do not know the engine."""
