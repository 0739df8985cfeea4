"""Attention as sizes: its kinds, and the parts that only some of them have."""
