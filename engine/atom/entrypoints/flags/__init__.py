"""The engine's command-line flags, and the messages about other engines' flags."""
