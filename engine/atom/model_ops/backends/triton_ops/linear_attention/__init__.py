"""Kernels of layers that keep a state of a sequence instead of its tokens."""
