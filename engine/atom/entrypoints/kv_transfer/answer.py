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

    protocol: Annotated[int, Meta(description="Version of the frames between engines.")]
    layout: Annotated[
        str, Meta(description="Digest of the cache's layout, which both engines must share.")
    ]
    ticket: Annotated[str, Meta(description="Names the kept pages; it is good for one reading.")]


class KVTransferParams(msgspec.Struct, frozen=True, kw_only=True):
    """The object that a router sends on with the decode leg, with vLLM's names."""

    do_remote_prefill: Annotated[
        bool, Meta(description="True: the prompt was computed by the server that answers.")
    ] = True
    do_remote_decode: Annotated[bool, Meta(description="False, in an answer.")] = False
    remote_block_ids: Annotated[
        list[list[int]] | None,
        Meta(description="Kept blocks by cache group; null if none are kept."),
    ]
    remote_engine_id: Annotated[str, Meta(description="The engine that keeps the pages.")]
    remote_request_id: Annotated[str, Meta(description="The request there.")]
    remote_host: Annotated[str, Meta(description="Host of its side channel.")]
    remote_port: Annotated[int, Meta(description="Port of its side channel.")]
    tp_size: Annotated[int, Meta(description="Ranks that share its copy of the model.")]
    dcp_size: Annotated[int, Meta(description="Always 1: contexts are not divided over ranks.")] = 1
    pp_size: Annotated[int, Meta(description="Always 1: layers are not divided over ranks.")] = 1
    remote_num_tokens: Annotated[
        int, Meta(description="Tokens of the prompt whose pages are kept.")
    ]
    remote_blocks_expiry_time: Annotated[
        float | None, Meta(description="Null: a lease is renewed while the consumer waits.")
    ] = None
    transfer_mode: Annotated[str, Meta(description="pull: the consumer asks for pages.")] = "pull"
    remote_dp_rank: Annotated[int, Meta(description="Copy of the model that computed the prompt.")]
    dp_rank: Annotated[int, Meta(description="The same copy, by another name.")]
    atom: Annotated[
        AtomParams | None, Meta(description="Of this engine; null if no pages are kept.")
    ]


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
