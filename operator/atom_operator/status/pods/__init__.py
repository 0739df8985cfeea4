"""Conditions that are read off the pods."""
