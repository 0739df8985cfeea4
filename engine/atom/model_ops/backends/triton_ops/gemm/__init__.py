"""Multiplies activations with matrices of every format."""
