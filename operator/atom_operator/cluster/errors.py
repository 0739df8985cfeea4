"""The error table at the edge: what an API failure means to a reconcile.

Transient: try again with backoff. Refused: the request itself is not acceptable (validation, quota,
rights); report it in the status and try again only after a while or a change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# A server-side apply that does not match the schema is answered with 500, and so it will be again.
_NOT_OF_THE_SCHEMA = "failed to create typed patch object"
_TRANSIENT_CODES = frozenset({401, 408, 409, 425, 429})
_NOT_FOUND = 404
_GONE = 410
_CONFLICT, _EXISTS = 409, "already exists"


class ClusterError(Exception):
    """Base of the errors that a ClusterPort raises."""


class TransientError(ClusterError):
    """The API server did not answer, was busy, or another client wrote at the same time."""


class UnfinishedError(TransientError):
    """Some of a pass's writes failed, of which the status speaks; the others were done."""


class ExpiredError(TransientError):
    """The version that was asked from is too old: list again."""


class AlreadyExistsError(TransientError):
    """The object that was to be made is there."""


class NotFoundError(TransientError):
    """There is no such object, or no such kind. Transient: it answers a write into a namespace or
    parent that is just going away."""


class UnservedError(TransientError):
    """The cluster does not serve the kind: its CRD is not installed, or no more."""


class RefusedError(ClusterError):
    """The API server will not do this; `code` is the HTTP status."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def classify(code: int | None, message: str) -> ClusterError:
    """Return the error for an HTTP status; None if there was no answer at all."""
    if code == _NOT_FOUND:
        return NotFoundError(message)
    if code == _CONFLICT and _EXISTS in message:
        return AlreadyExistsError(message)
    if code == _GONE:
        return ExpiredError(message)
    if code is None or code in _TRANSIENT_CODES:
        return TransientError(message)
    if code >= 500 and _NOT_OF_THE_SCHEMA not in message:
        return TransientError(message)
    return RefusedError(message, code)


@contextmanager
def doing(action: str) -> Iterator[None]:
    """Prefix a ClusterError of the body with the action that failed."""
    try:
        yield
    except ClusterError as error:
        error.args = (f"{action}: {error}",)
        raise
