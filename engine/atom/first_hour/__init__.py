"""Exercises and report of the first hour on a card that this project never saw."""
