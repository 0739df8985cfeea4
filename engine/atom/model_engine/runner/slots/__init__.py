"""The device's state of every running sequence, one slot each, and the inputs that a step takes
from it."""
