"""Matrices in fewer bits: their codes, the values of the codes, and their layouts in
checkpoints."""
