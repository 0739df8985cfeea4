"""The error that a person sees as one line."""

from __future__ import annotations


class ReleaseError(Exception):
    """A release cannot be made, or is not what it says; the message tells what, where and the
    remedy."""
