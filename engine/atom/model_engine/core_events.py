"""What CoreManager tells its engine: the messages of all ranks as one engine's, and their fate.

Plain values; AsyncLLMEngine and LLMEngine handle every kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.model_engine.engine_protocol import (
    EngineReport,
    ProgressBody,
    RankStats,
    StreamBody,
    UtilityResponseBody,
)


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """An engine process is dead or could not start; the last event there is."""

    message: str
    user_error: bool


@dataclass(frozen=True, slots=True)
class CoreStalled:
    """A rank has computed nothing for too long; CoreResumed follows if it recovers."""

    rank: int
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class CoreResumed:
    rank: int


CoreEvent = (
    EngineReport
    | ProgressBody
    | StreamBody
    | RankStats
    | UtilityResponseBody
    | CoreStalled
    | CoreResumed
    | CoreFailed
)
