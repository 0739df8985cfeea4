"""Adapters as the server's half knows them: their names, weights, and how they come and go."""
