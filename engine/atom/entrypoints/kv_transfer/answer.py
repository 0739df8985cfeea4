"""Answers of divided requests: kv_transfer_params of a prefill leg, a header of a decode leg."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from atom.errors import RequestError
from atom.model_engine.transfer_legs import (
    PROTOCOL,
    PullEnd,
    TicketNote,
    TransferOutcome,
    TransferResult,
)


class AtomParams(msgspec.Struct, frozen=True):
    """Hold the part of the object that other servers do not write. layout: digest of the cache's
    layout; ticket: names the kept pages."""

    protocol: int
    layout: str
    ticket: str


class KVTransferParams(msgspec.Struct, frozen=True, kw_only=True):
    """The object that a router sends on with the decode leg, with vLLM's names."""

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_block_ids: list[list[int]] | None
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    tp_size: int
    dcp_size: int = 1
    pp_size: int = 1
    remote_num_tokens: int
    remote_blocks_expiry_time: float | None = None
    transfer_mode: str = "pull"
    remote_dp_rank: int
    dp_rank: int
    atom: AtomParams | None


ShownParams = Annotated[
    KVTransferParams | UnsetType,
    Meta(description="Of a prefill leg: send it on with the decode leg."),
]


def params_of(note: TicketNote | None, request_id: str) -> KVTransferParams | UnsetType:
    """Return the object of a prefill leg's answer; UNSET for every other request."""
    if note is None:
        return UNSET
    kept = bool(note.ticket)
    return KVTransferParams(
        remote_block_ids=note.block_ids if kept else None,
        remote_engine_id=note.engine_id,
        remote_request_id=request_id,
        remote_host=note.host,
        remote_port=note.port,
        tp_size=note.ranks,
        remote_num_tokens=note.num_tokens,
        remote_dp_rank=note.rank,
        dp_rank=note.rank,
        atom=AtomParams(PROTOCOL, note.layout, note.ticket) if kept else None,
    )


def header_of_outcome(outcome: TransferOutcome) -> str:
    """Write the header of a decode leg. Raises `RequestError` (424) if its pages did not come and
    the server's policy is to fail."""
    if outcome.result is TransferResult.FAILED:
        pair = outcome.reason == PullEnd.INCOMPATIBLE
        raise RequestError(
            f"the KV pages of the prompt did not arrive ({outcome.reason}), and "
            "kv_load_failure_policy is fail; send the request again",
            status=424,
            code="kv_pair_incompatible" if pair else "kv_transfer_failed",
        )
    parts = [outcome.result.value]
    if outcome.result is TransferResult.TRANSFERRED:
        parts += [f"tokens={outcome.tokens}", f"ms={round(outcome.seconds * 1000)}"]
    if outcome.reason:
        parts.append(f"reason={outcome.reason}")
    return ";".join(parts)
