"""Families of text encoders: their settings, as specs."""
