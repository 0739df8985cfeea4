"""Predictions of `atom advise` beside what was measured."""
