"""Matrices in fewer bits: their codes, what they stand for, and how checkpoints lay them out."""
