"""Greeting: the facts by which two engines decide whether they may exchange KV pages.

The layout digest decides; its fields are compared one by one to name the first that differs. Equal
digests mean equal bytes of a page, so nothing else is compared but the protocol and a transport
that both have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atom.model_engine.kv_transfer.frames import Hello, Refused, Welcome
from atom.model_engine.transfer_legs import PROTOCOL

TRANSPORTS = ("tcp",)
_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Greeting:
    """Describe one engine to others. layout: digest of `facts`, 32 hexadecimal digits; boot_id:
    made when the process started; ranks: that share a copy of the model."""

    engine_id: str
    boot_id: str
    layout: str
    facts: Mapping[str, str]
    ranks: int

    def hello(self, clock: float) -> Hello:
        """Return a consumer's first frame. clock: seconds since 1970."""
        return Hello(
            PROTOCOL, self.layout, dict(self.facts), self.engine_id, list(TRANSPORTS), clock
        )

    def answer(self, hello: Hello, clock: float) -> Welcome | Refused:
        """Return a producer's answer to a consumer."""
        if hello.protocol != PROTOCOL:
            return Refused("protocol", str(hello.protocol), str(PROTOCOL))
        if hello.layout != self.layout:
            return self._difference(hello)
        for transport in TRANSPORTS:
            if transport in hello.transports:
                return Welcome(transport, self.engine_id, self.boot_id, self.ranks, clock)
        return Refused("transports", ", ".join(hello.transports), ", ".join(TRANSPORTS))

    def _difference(self, hello: Hello) -> Refused:
        for name in (*self.facts, *(hello.facts.keys() - self.facts.keys())):
            theirs, mine = hello.facts.get(name, _ABSENT), self.facts.get(name, _ABSENT)
            if theirs != mine:
                return Refused(name, theirs, mine)
        return Refused("layout", hello.layout, self.layout)
