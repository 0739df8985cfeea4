"""Begins and ends a captured step: its inputs, its sampled tokens, its drafts."""
