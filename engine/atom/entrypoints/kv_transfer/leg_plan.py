"""LegPlan: which leg of a divided request a body asks for, by its kv_transfer_params.

The object is vLLM's, as routers send it: `do_remote_decode` marks a prefill leg; the object in its
answer comes back with the decode leg, perhaps with keys that routers add, which are ignored. Pure;
called once per request that generates.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from atom.entrypoints.request_fields.generation_fields import AnswerFields, TransferFields
from atom.errors import RequestError
from atom.kv_transfer_config.values import FLAG, KVRole, KVTransferConfig
from atom.model_engine.transfer_legs import PROTOCOL, DecodeLeg, Leg, PrefillLeg
from atom.sampling_params import SamplingParams

FIELD = "kv_transfer_params"
_RECOMPUTED = "recomputed;reason={}"
_DIVIDING = {"n", "echo", "prompt_logprobs", "prompt"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a body that decide about its legs. params: its kv_transfer_params; most_tokens:
    of the answer; undividable: the field by which it cannot be divided over engines, None if it
    can."""

    params: dict[str, Any] | None
    streams: bool = False
    most_tokens: int | None = None
    undividable: str | None = None

    @staticmethod
    def of(body: TransferFields) -> Asked:
        """Read a body of any endpoint that generates."""
        inner: dict[str, Any] = getattr(body, "sampling_params", None) or {}
        return Asked(
            body.kv_transfer_params,
            streams=bool(getattr(body, "stream", None)),
            most_tokens=(
                body.most_tokens(None)
                if isinstance(body, AnswerFields)
                else inner.get("max_tokens")
            ),
            undividable=_undividable({**inner, **body.model_dump(include=_DIVIDING)}),
        )


@dataclass(frozen=True, slots=True)
class LegPlan:
    """The leg that the engine computes, None for a whole request. header: of the answer, if it is
    known before the engine has begun."""

    leg: Leg | None = None
    header: str | None = None

    @property
    def is_decode(self) -> bool:
        """Return whether the answer reports where its prompt came from."""
        return self.header is not None or isinstance(self.leg, DecodeLeg)


class _Ours(msgspec.Struct):
    """The object `atom`, which other engines do not write."""

    protocol: int
    layout: str
    ticket: str


_WHOLE = LegPlan()


def plan_leg(asked: Asked, config: KVTransferConfig | None) -> LegPlan:
    """Read the leg of a request. config: None if the server exchanges no pages. Raises
    `RequestError` (400) for a leg that cannot be computed, naming the field."""
    params = asked.params
    if config is None:
        if params:
            raise _refused(
                "", f"this server exchanges no KV pages; start it with {FLAG}, or leave it out"
            )
        return _WHOLE
    if not params:
        return _unnamed_leg(asked, config)
    prefills, decodes = _flag(params, "do_remote_decode"), _flag(params, "do_remote_prefill")
    if prefills and decodes:
        raise _refused(
            "", "do_remote_decode and do_remote_prefill are both true; send one leg at a time"
        )
    if prefills:
        return _prefill_leg(asked, config)
    return _decode_leg(asked, params, config) if decodes else _WHOLE


def params_of_leg(params: SamplingParams, leg: Leg | None) -> SamplingParams:
    """Return the sampling parameters of a leg. A prefill leg ends with one token, which is thrown
    away, so nothing that shapes or lengthens an answer is needed."""
    if not isinstance(leg, PrefillLeg):
        return params
    return msgspec.structs.replace(
        params, max_tokens=1, min_tokens=0, structured_outputs=None, thinking=None, stop_strings=()
    )


def _unnamed_leg(asked: Asked, config: KVTransferConfig) -> LegPlan:
    """Take a request for one token for a prefill leg, if this engine computes prompts for others:
    some routers send no params with it."""
    is_leg = config.role is KVRole.PRODUCER and asked.most_tokens == 1
    if not is_leg or asked.streams or asked.undividable is not None:
        return _WHOLE
    return LegPlan(PrefillLeg())


def _prefill_leg(asked: Asked, config: KVTransferConfig) -> LegPlan:
    if not config.role.produces:
        raise _refused(
            ".do_remote_decode",
            f"the kv_role of this server is {config.role}; send the leg to a kv_producer or a "
            "kv_both",
        )
    if asked.streams:
        raise _refused(".do_remote_decode", "a prefill leg has no stream; send stream false")
    field = asked.undividable
    if field is not None:
        raise RequestError(
            f"{field}: a prefill leg has one prompt and one answer, of which only the pages are "
            f"used; send the whole request to one server, without {FIELD}",
            param=field,
        )
    return LegPlan(PrefillLeg())


def _decode_leg(asked: Asked, params: Mapping[str, Any], config: KVTransferConfig) -> LegPlan:
    if not config.role.consumes:
        return LegPlan(header=_RECOMPUTED.format("role"))
    field = asked.undividable
    if field is not None:
        return LegPlan(header=_RECOMPUTED.format(field))
    if not params.get("remote_block_ids"):
        return LegPlan(header=_RECOMPUTED.format("nothing_kept"))
    ours = params.get("atom")
    if ours is None:
        _warn_of_foreign(str(params.get("remote_engine_id"))[:64])
        return LegPlan(header=_RECOMPUTED.format("foreign"))
    try:
        atom = msgspec.convert(ours, _Ours)
    except msgspec.ValidationError as error:
        raise _refused(
            ".atom", f"{error}; send the object as the prefill leg answered it"
        ) from None
    if atom.protocol != PROTOCOL:
        return LegPlan(header=_RECOMPUTED.format("protocol"))
    told = {
        "host": params.get("remote_host"),
        "port": params.get("remote_port"),
        "engine_id": params.get("remote_engine_id"),
        "num_tokens": params.get("remote_num_tokens"),
        "ticket": atom.ticket,
        "layout": atom.layout,
    }
    try:
        return LegPlan(msgspec.convert({"type": "decode", **told}, DecodeLeg))
    except msgspec.ValidationError as error:
        raise _refused("", f"{error}; send the object as the prefill leg answered it") from None


def _undividable(fields: Mapping[str, Any]) -> str | None:
    """Return the field by which a request cannot be divided over engines, or None."""
    if (fields.get("n") or 1) != 1:
        return "n"
    if fields.get("echo"):
        return "echo"
    if fields.get("prompt_logprobs") is not None:
        return "prompt_logprobs"
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        return "prompt"
    return None


def _flag(params: Mapping[str, Any], name: str) -> bool:
    value = params.get(name)
    if value is not None and not isinstance(value, bool):
        raise _refused(f".{name}", "must be true or false")
    return bool(value)


def _refused(path: str, why: str) -> RequestError:
    return RequestError(f"{FIELD}{path}: {why}", param=FIELD)


@lru_cache(maxsize=256)
def _warn_of_foreign(engine_id: str) -> None:
    """Log an engine of another kind once."""
    logger.warning(
        "the engine %s is of another kind: its pages cannot be read, and prompts are computed "
        "here; run this version as the kv_producer too",
        engine_id,
    )
