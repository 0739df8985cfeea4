"""Options of the scheduler: limits of a step, policies, and shares of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from atom.sizing.options.flag_values import token_count
from atom.sizing.options.option import CrdField, Flag, Range, option

SchedulingPolicy = Literal["mixed", "prefill_first"]
Fairness = Literal["clients", "off"]
DeadlineAction = Literal["refuse", "queue"]

_COUNT = Flag(metavar="N")
_NUMBER = Flag(metavar="NUMBER")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Limits and policies of the scheduler. long_prefill_token_threshold: most prompt tokens of one
    request per step; 0 for no bound. delay_factor: prefill_first waits this many prompt latencies
    to batch prompts; 0 never waits. max_step_seconds: of a step with prompts and decodes; 0 for no
    bound. max_waiting_requests: a server refuses further requests while this many have no token
    yet; 0 for no bound. deadline_ms: milliseconds until the first token of requests that state no
    deadline; None for any time. deadline_action: refuse a request whose first token is expected
    later, or queue it and end it at its deadline. fairness: whose shares order the waiting
    requests; client_weights: of these shares, by the part of `Request.client_id` before or after
    its slash; 1 for every other."""

    max_num_seqs: int = option(
        512,
        "most requests that generate at once",
        flag=_COUNT,
        within=Range(1),
        crd=CrdField(
            "engine.maxNumSeqs",
            "Most sequences that run at once; default: {default}.",
            most=65_536,
            stated=True,
        ),
    )
    max_num_batched_tokens: int = option(
        16_384,
        "most tokens per step, prompts and answers together",
        flag=Flag(metavar="N", read=token_count),
        within=Range(1),
        crd=CrdField(
            "engine.maxNumBatchedTokens",
            "Most tokens in one step; default: {default}.",
            most=1_048_576,
            stated=True,
        ),
    )
    long_prefill_token_threshold: int = option(
        0, "most prompt tokens of one request per step; 0: any", flag=_COUNT, within=Range(0)
    )
    policy: SchedulingPolicy = option(
        "mixed",
        "mixed: chunked prompts together with answers; prefill_first: prompts before answers",
        keyword="scheduling_policy",
        crd=CrdField(
            "engine.schedulingPolicy",
            "mixed puts prefill chunks and decodes in one batch; prefillFirst runs waiting prompts "
            "before decodes. Default: {default}.",
            stated=True,
        ),
    )
    delay_factor: float = option(
        0.0,
        "prefill_first: wait to batch prompts; 0 never",
        keyword="scheduler_delay_factor",
        flag=_NUMBER,
        within=Range(0),
    )
    max_step_seconds: float = option(
        0.3,
        "mixed: of a step with prompts and answers; 0: no bound",
        flag=_NUMBER,
        within=Range(0),
    )
    max_waiting_requests: int = option(
        4096,
        "most requests without a token yet; more get HTTP 429; 0: no bound",
        flag=_COUNT,
        within=Range(0),
    )
    deadline_ms: int | None = option(
        None,
        "milliseconds until a first token, of requests that state no deadline_ms; default: any",
        flag=_COUNT,
        within=Range(1),
        crd=CrdField(
            "engine.deadlineMs",
            "Milliseconds until the first token, of requests that state no deadline_ms of their "
            "own. Default: any time.",
            most=86_400_000,
        ),
    )
    deadline_action: DeadlineAction = option(
        "refuse",
        "refuse: answer 429 if a first token is expected after its deadline; queue: end the "
        "request with 503 once its deadline has passed",
        crd=CrdField(
            "engine.deadlineAction",
            "refuse answers 429 if the first token is expected after the deadline; queue takes the "
            "request and ends it with 503 once the deadline has passed. Default: {default}.",
        ),
    )
    fairness: Fairness = option(
        "clients",
        "clients: waiting clients are served by equal shares of tokens; off: first come, "
        "first served",
    )
    client_weights: Mapping[str, float] = option(
        {},
        'JSON file of clients that get more or less than others, such as {"header:team-a": 4}',
        flag=Flag("--fairness-weights", metavar="FILE", read=Path),
    )
