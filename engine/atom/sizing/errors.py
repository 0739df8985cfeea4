"""Errors of sizing: facts that cannot be read, and models that do not fit.

These know neither flags nor manifest fields: the engine and the operator each add the name of the
option to change, from the attributes.
"""

from __future__ import annotations

import enum


class SizingError(Exception):
    """Base of the errors of this package; the message has the numbers and a remedy in words."""


class ModelFactsError(SizingError):
    """A model configuration lacks a field, has a nonsensical one, or is of an unknown kind.

    `field` names the offending key of config.json.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class UnknownFamilyError(ModelFactsError):
    """There is no arithmetic for this architecture, so its size is unknown.

    `nearest`: a description of the most similar known architecture, "" if none is similar.
    """

    def __init__(self, architecture: str, known: str, nearest: str = "") -> None:
        like = f"; the nearest that can is {nearest}" if nearest else ""
        super().__init__(
            f"config.json: architecture {architecture!r} cannot be sized{like}; known: {known}",
            field="architectures",
        )
        self.architecture = architecture
        self.nearest = nearest


class DoesNotFitReason(enum.StrEnum):
    """The reason why a plan is impossible; the values are condition reasons of the Kubernetes
    API."""

    WEIGHTS = "WeightsDoNotFit"
    CONTEXT = "ContextDoesNotFit"


class DoesNotFitError(SizingError):
    """The device cannot hold the weights, or not one sequence of the requested length beside them.

    `needed_bytes` and `available_bytes` are the compared sizes, per device. `max_context_tokens` is
    the longest context that would fit (0 when the weights do not).
    """

    def __init__(
        self,
        message: str,
        *,
        reason: DoesNotFitReason,
        needed_bytes: int,
        available_bytes: int,
        max_context_tokens: int = 0,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.max_context_tokens = max_context_tokens
