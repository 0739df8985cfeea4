"""Layers that keep a state of a sequence as sizes: their heads, and what their weights are."""

from atom.sizing.states.shapes import (
    ConvShape,
    DeltaShape,
    SsdShape,
    StateKind,
    StateNet,
    StateShape,
)

__all__ = ["ConvShape", "DeltaShape", "SsdShape", "StateKind", "StateNet", "StateShape"]
