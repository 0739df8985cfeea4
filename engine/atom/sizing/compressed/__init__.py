"""Attention to a window and to entries that sum up tokens, as sizes, and its weights."""

from atom.sizing.compressed.shapes import Compressed

__all__ = ["Compressed"]
