"""Measures how much one client's requests delay another client's answers."""
