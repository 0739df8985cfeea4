"""Which leg a body asks for, by its endpoint, its params and the role of the server."""

from __future__ import annotations

from typing import Any

import pytest

from atom.entrypoints.kv_transfer.leg_plan import Asked, LegPlan, params_of_leg, plan_leg
from atom.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from atom.entrypoints.request_fields.generation_fields import TransferFields
from atom.entrypoints.token_in_token_out.protocol import GenerateRequest
from atom.errors import RequestError
from atom.kv_transfer_config.values import KVRole, KVTransferConfig
from atom.model_engine.transfer_legs import DecodeLeg, PrefillLeg
from atom.sampling_params import SamplingParams
from atom.structured_outputs.params import StructuredOutputsParams

_HEX = "0123456789abcdef" * 2
_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
_DECODE: dict[str, Any] = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]],
    "remote_engine_id": "producer", "remote_request_id": "cmpl-1", "remote_host": "10.0.0.7",
    "remote_port": 5600, "tp_size": 1, "remote_num_tokens": 32, "a_routers_own": {"x": 1},
    "atom": {"protocol": 1, "layout": _HEX, "ticket": _HEX, "later": True},
}  # fmt: skip
_BOTH = KVTransferConfig()
_PRODUCER = KVTransferConfig(role=KVRole.PRODUCER)
_CONSUMER = KVTransferConfig(role=KVRole.CONSUMER)


def body(endpoint: str, params: Any, **fields: Any) -> TransferFields:
    if endpoint == "chat":
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        return ChatCompletionRequest(**asked, kv_transfer_params=params, **fields)
    if endpoint == "completions":
        return CompletionRequest(**{"prompt": "hi", **fields}, kv_transfer_params=params)
    stream = fields.pop("stream", None)
    return GenerateRequest(
        token_ids=[5], sampling_params=fields, stream=stream, kv_transfer_params=params
    )


def plan(asked: TransferFields, config: KVTransferConfig | None = _BOTH) -> LegPlan:
    return plan_leg(Asked.of(asked), config)


_ENDPOINTS = pytest.mark.parametrize("endpoint", ["chat", "completions", "generate"])


@_ENDPOINTS
@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": False}])
def test_a_body_without_a_leg_is_a_whole_request(endpoint: str, params: Any) -> None:
    assert plan(body(endpoint, params)) == LegPlan()


@_ENDPOINTS
def test_both_legs_are_read_on_every_endpoint(endpoint: str) -> None:
    assert plan(body(endpoint, _PREFILL, max_tokens=1)).leg == PrefillLeg()
    assert plan(body(endpoint, _DECODE, max_tokens=9)).leg == DecodeLeg(
        "10.0.0.7", 5600, "producer", _HEX, _HEX, 32
    )


@_ENDPOINTS
@pytest.mark.parametrize(
    ("fields", "is_leg"),
    [({"max_tokens": 1}, True), ({"max_tokens": 2}, False), ({"max_tokens": 1, "n": 2}, False),
     ({"max_tokens": 1, "stream": True}, False)],
)  # fmt: skip
def test_a_producer_takes_one_token_for_a_prefill_leg(
    endpoint: str, fields: dict[str, Any], is_leg: bool
) -> None:
    expected = PrefillLeg() if is_leg else None
    assert plan(body(endpoint, None, **fields), _PRODUCER).leg == expected
    assert plan(body(endpoint, None, **fields), _BOTH).leg is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 2}, "n"), ({"prompt_logprobs": 1}, "prompt_logprobs"), ({"echo": True}, "echo"),
     ({"prompt": ["a", "b"]}, "prompt"), ({"stream": True}, "kv_transfer_params")],
)  # fmt: skip
def test_a_prefill_leg_that_cannot_be_divided_is_refused_by_name(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        plan(body("completions", _PREFILL, max_tokens=1, **fields))
    assert (caught.value.status, caught.value.param) == (400, param)
    if param != "kv_transfer_params":
        told = plan(body("completions", _DECODE, **fields))
        assert told == LegPlan(header=f"recomputed;reason={param}")


@pytest.mark.parametrize(
    ("changed", "header"),
    [
        ({"remote_block_ids": None}, "recomputed;reason=nothing_kept"),
        ({"remote_block_ids": []}, "recomputed;reason=nothing_kept"),
        ({"atom": None}, "recomputed;reason=foreign"),
        ({"atom": {"protocol": 2, "layout": _HEX, "ticket": _HEX}}, "recomputed;reason=protocol"),
    ],
)
def test_pages_that_cannot_be_read_are_computed(changed: dict[str, Any], header: str) -> None:
    assert plan(body("chat", {**_DECODE, **changed})) == LegPlan(header=header)


def test_a_producer_computes_a_decode_leg_itself() -> None:
    told = plan(body("chat", _DECODE), _PRODUCER)
    assert told == LegPlan(header="recomputed;reason=role")


@pytest.mark.parametrize(
    "changed",
    [
        {"remote_port": 0}, {"remote_port": "5600"}, {"remote_host": ""}, {"remote_host": 7},
        {"remote_num_tokens": -1}, {"atom": {}}, {"atom": "text"},
        {"atom": {"protocol": 1, "layout": "x", "ticket": _HEX}},
        {"do_remote_prefill": "yes"}, {"do_remote_decode": True},
    ],
)  # fmt: skip
def test_malformed_params_are_refused_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        plan(body("chat", {**_DECODE, **changed}))
    assert (caught.value.status, caught.value.param) == (400, "kv_transfer_params")


def test_roles_and_servers_that_do_not_take_a_leg_say_so() -> None:
    with pytest.raises(RequestError, match="kv_role of this server is kv_consumer"):
        plan(body("chat", _PREFILL, max_tokens=1), _CONSUMER)
    with pytest.raises(RequestError, match="start it with --kv-transfer-config"):
        plan(body("chat", _PREFILL, max_tokens=1), None)
    assert plan(body("chat", None), None) == LegPlan()


def test_nothing_lengthens_a_prefill_leg() -> None:
    asked = SamplingParams(
        max_tokens=50, min_tokens=9, stop_strings=("x",), structured_outputs=
        StructuredOutputsParams(regex="a+"), seed=4,
    )  # fmt: skip
    leg = params_of_leg(asked, PrefillLeg())
    assert (leg.max_tokens, leg.min_tokens, leg.structured_outputs) == (1, 0, None)
    assert (leg.stop_strings, leg.seed) == ((), 4)
    assert params_of_leg(asked, None) is asked
