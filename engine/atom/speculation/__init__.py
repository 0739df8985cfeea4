"""Drafts of further tokens: who makes them, how many a row and step carries, which of them hold."""
