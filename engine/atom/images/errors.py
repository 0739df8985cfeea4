"""ImageError: why a picture of a request is refused."""

from __future__ import annotations

from atom.errors import AtomError


class ImageError(AtomError):
    """A picture is damaged, of an unknown kind, too large, or not allowed to be fetched. The
    message is the reason alone; callers add which part of the request it is."""
