"""Bring-up self-test: exercises and report of a card that this project never saw."""
