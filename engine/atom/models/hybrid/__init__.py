"""Families in whose models some layers keep a state of a sequence instead of its tokens."""
