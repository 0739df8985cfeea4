"""Messages between the engine core and a matcher process, after the process received its grammar
(compile_messages.FollowOrder).

One MatcherJobs per step is sent, and a list of RowReply returns, perhaps in parts: finished rows
are reported within milliseconds, so that one slow row delays no other.
"""

from __future__ import annotations

import enum

import msgspec


class MaskState(enum.IntEnum):
    """Describe how a row of a matcher process stands after a job.

    READY: its mask is written. COMPLETE: its text is complete, nothing may follow. REFUSED: the
    grammar does not allow the token, or nothing at all. COSTLY: following it takes too much. LEFT:
    it is forgotten, and its slot free.
    """

    READY = 0
    COMPLETE = 1
    REFUSED = 2
    LEFT = 3
    COSTLY = 4


class MatcherJobs(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Order work from a matcher process. accept: rows, by the slot of their mask, each with its
    next token. enter: new rows, each with its tokens so far. leave: rows to forget."""

    accept: list[tuple[int, int]] = []
    enter: list[tuple[int, list[int]]] = []
    leave: list[int] = []


# Slot, MaskState, and the microseconds of processor time that the job took.
RowReply = tuple[int, int, int]
