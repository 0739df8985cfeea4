"""Greeting: the facts by which two engines decide whether they may exchange KV pages.

The layout digest decides; its fields are compared one by one to name the first that differs. Equal
digests mean equal bytes of a page, so nothing else is compared but the protocol and a transport
that both have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from atom.kv_transfer_config.values import TRANSPORTS
from atom.model_engine.kv_transfer.frames import Hello, Refused, Welcome
from atom.model_engine.transfer_legs import PROTOCOL

IPC, SHM, NIXL, TCP = "ipc", "shm", "nixl", "tcp"
_ABSENT = "absent"
# Of the fields of the layout; every other one is a fact of the model or of its code.
_REMEDIES = {
    "protocol": "run one version of this engine on both sides",
    "dtype": "give both the same --dtype",
    "kv_cache_dtype": "give both the same --kv-cache-dtype",
    "quantization": "give both the same checkpoint and --quantization",
    "block_size": "give both the same --block-size",
    "block_order": "choose the same attention backend for both (--backend)",
    "reproducible": "give --reproducible to both or to neither",
    "order_of_sums": "give both the same --tensor-parallel-size and kind of device, or "
    "neither --reproducible",
    "transports": "allow tcp on both, or run both on one host (transport of --kv-transfer-config)",
}
_SAME_MODEL = "serve the same model, revision and weights on both sides"


def remedy_of(field: str) -> str:
    """Return the remedy for two engines that differ in a field of their layouts."""
    return _REMEDIES.get(field, _SAME_MODEL)


@dataclass(frozen=True, slots=True)
class Greeting:
    """Describe one engine to others. layout: digest of `facts`, 32 hexadecimal digits; boot_id:
    made when the process started; ranks: that share a copy of the model; transports: that may be
    used, fastest first; host: see page_ring.host_identity; device: see DeviceMemory.kind."""

    engine_id: str
    boot_id: str
    layout: str
    facts: Mapping[str, str]
    ranks: int
    transports: tuple[str, ...] = TRANSPORTS["auto"]
    host: str = ""
    device: str = ""

    def hello(self, clock: float) -> Hello:
        """Return a consumer's first frame. clock: seconds since 1970."""
        facts, transports = dict(self.facts), list(self.transports)
        own = self.engine_id, transports, clock, self.host, self.device
        return Hello(PROTOCOL, self.layout, facts, *own)

    def answer(
        self, hello: Hello, clock: float, *, offers: Collection[str] = ()
    ) -> Welcome | Refused:
        """Return a producer's answer to a consumer. offers: the transports by which memory for
        pages may be offered now."""
        if hello.protocol != PROTOCOL:
            return Refused("protocol", str(hello.protocol), str(PROTOCOL))
        if hello.layout != self.layout:
            return self._difference(hello)
        usable = {TCP, *offers}
        if not self.host or self.host != hello.host:
            usable -= {SHM, IPC}
        if not self.device or self.device != hello.device:
            usable.discard(IPC)
        for transport in self.transports:
            if transport in hello.transports and transport in usable:
                return Welcome(transport, self.engine_id, self.boot_id, self.ranks, clock)
        theirs, mine = ", ".join(hello.transports), ", ".join(self.transports)
        return Refused("transports", theirs, mine)

    def _difference(self, hello: Hello) -> Refused:
        for name in (*self.facts, *(hello.facts.keys() - self.facts.keys())):
            theirs, mine = hello.facts.get(name, _ABSENT), self.facts.get(name, _ABSENT)
            if theirs != mine:
                return Refused(name, theirs, mine)
        return Refused("layout", hello.layout, self.layout)
