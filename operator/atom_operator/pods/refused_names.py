"""The names of pods that were refused, in the words against them. Pure.

A controller draws the end of a name anew for each pod that it tries to make; the rest is its own.
"""

from __future__ import annotations

import re

_DRAWN_NAME = re.compile(r'pods "([^"]+)-[^-"]+" is forbidden')


def without_drawn_name(words: str) -> str:
    """Return equal words for equal refusals of differently named pods."""
    return _DRAWN_NAME.sub(r'pods "\1-*" is forbidden', words)


def makers_of_refused(words: str) -> list[str]:
    """List the names of the pods' creators; empty if no pod is named."""
    return _DRAWN_NAME.findall(words)
