"""FurtherNode: the common part of nodes that serve no requests, for any processes
(node_main.py)."""

from __future__ import annotations

import contextlib
import logging

import msgspec

from atom.model_engine.wire.first_loss import FirstLoss, LastWords
from atom.model_engine.wire.node_link import Frame, NodeLink

logger = logging.getLogger(__name__)

END_SECONDS = 5.0  # for processes that were told to end


class FurtherNode:
    """A node's side of its connection with the first one, which hears of its first loss."""

    def __init__(self, link: NodeLink) -> None:
        self.link = link
        self.loss = FirstLoss(self._say_lost)
        self._said: str | None = None

    def hear_reason(self, message: str) -> None:
        """Log why the group ends, unless it was said from here: the last line is the reason."""
        if message != self._said:
            logger.error("%s", message)

    def has_no_first(self) -> int:
        """Handle the end of the connection to the first node; return the exit code."""
        if self.loss.is_closing():
            return 0
        if not self.loss.has_lost():
            logger.error("the first node is gone: its connection has ended")
        return 1

    def _say_lost(self, words: LastWords) -> None:
        logger.error("%s", words.message)
        self._said = words.message
        with contextlib.suppress(OSError):
            self.link.send(Frame.LOST, msgspec.json.encode(words))
        self.link.say_last()
