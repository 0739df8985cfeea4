"""Devices of nodes as pods have them: which are sick, and which claims have some."""
