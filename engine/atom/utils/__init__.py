"""Helpers without a home of their own; nothing here knows the engine."""
