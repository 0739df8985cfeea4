"""The page at /: a chat with the served model, and what the engine does."""
