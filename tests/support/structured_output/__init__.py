"""Grammars and schemas drawn at random."""
