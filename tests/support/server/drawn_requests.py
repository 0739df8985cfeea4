"""Requests that are drawn at random for a server's routes: several fields at once, each with a
value that alone is valid. An answer is compared without its names, times and cached tokens.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from tests.support.covering_draws import covering_draws
from tests.support.pictures import file_of
from tests.support.server.http_app import HttpRig
from tests.support.server.seeing_model import image_part

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}
_TEXTS = (
    "Once upon a time there was",
    "The quick brown fox",
    "0123456789 " * 9,
    "a b a b a b a b ",
)

# Fields of both routes, and then those of one alone.
_OF_BOTH: dict[str, tuple[Any, ...]] = {
    "n": (2, 3),
    "seed+temperature": (7, 8),
    "stop": (["a"], ["e", "zz"]),
    "min_tokens": (3,),
    "include_stop_str_in_output": (True,),
    "stop_token_ids": ([70, 100, 101, 102],),
    "bad_words": (["a", "bc"],),
    "logit_bias": ({"70": 5, "80": -100},),
    "allowed_token_ids": (list(range(60, 120)),),
    "repetition_penalty": (1.3,),
    "frequency_penalty": (0.5,),
    "priority": (-5, 5),
    "cache_salt": ("one", "two"),
    "deadline_ms": (10_000_000,),
    "timeout_seconds": (10_000,),
    "response_format": (
        {"type": "json_schema", "json_schema": {"name": "f", "schema": _SCHEMA}},
        {"type": "regex", "pattern": "(ab|cd){2,3}"},
    ),
    "structured_outputs": ({"choice": ["yes", "no, never"]},),
    "prompt_logprobs": (1,),
    "return_token_ids": (True,),
    "stream": (True,),
    "truncate_prompt_tokens": (9,),
    "skip_special_tokens": (False,),
    "ignore_eos": (True,),
    "model": ("own",),
    "request_id": ("mine",),
    "max_tokens": (1, 20, 40),
    "return_timings": (True,),
    "text": (0, 1, 2, 3),
}
_OF_COMPLETIONS: dict[str, tuple[Any, ...]] = {
    "echo": (True,),
    "logprobs": (0, 2),
    "prompts": (2,),
    "ids": (True,),
}
_OF_CHAT: dict[str, tuple[Any, ...]] = {
    "logprobs+top": (0, 2),
    "tools": ([_TOOL],),
    "tool_choice": ("required", "none"),
    "continued": (True,),
    "image": (1, 2),
    "thinking_token_budget": (4,),
}
OF_ROUTES = {COMPLETIONS: {**_OF_BOTH, **_OF_COMPLETIONS}, CHAT: {**_OF_BOTH, **_OF_CHAT}}


@dataclass(frozen=True)
class DrawnRequest:
    """A request. fields: that are drawn, by their names in OF_ROUTES; body: what is sent."""

    route: str
    fields: Mapping[str, Any]
    body: dict[str, Any] = field(repr=False)

    @property
    def key(self) -> str:
        return json.dumps([self.route, self.fields], sort_keys=True)


def picture(number: int) -> dict[str, Any]:
    """Return the part of a message with a small picture."""
    image = Image.linear_gradient("L").convert("RGB").resize((30 + 7 * number, 40))
    image.paste(("red", "blue")[number % 2], (4, 6, 20, 25 + number))
    return image_part(file_of(image))


def request_of(route: str, fields: Mapping[str, Any]) -> DrawnRequest:
    """Return the request with these fields."""
    values = copy.deepcopy(dict(fields))
    text = _TEXTS[values.pop("text", 0)]
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    if seed := values.pop("seed+temperature", None):
        body |= {"seed": seed, "temperature": 0.8}
    if route == COMPLETIONS:
        prompt: Any = [3 + ord(letter) for letter in text] if values.pop("ids", False) else text
        count = values.pop("prompts", 1)
        body["prompt"] = prompt if count == 1 else [prompt, "Another one"]
    else:
        top = values.pop("logprobs+top", None)
        if top is not None:
            body |= {"logprobs": True, "top_logprobs": top}
        shown = [picture(number) for number in range(values.pop("image", 0))]
        body["messages"] = [
            {"role": "user", "content": [*shown, {"type": "text", "text": text}]},
        ]
        if values.pop("continued", False):
            body["messages"].append({"role": "assistant", "content": "It is "})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if "tool_choice" in values:
            values.setdefault("tools", [_TOOL])
    if values.get("stream"):
        body["stream_options"] = {"include_usage": True}
    return DrawnRequest(route, fields, {**body, **values})


def covering_requests(seed: int, most: int = 4) -> list[DrawnRequest]:
    """Return requests with up to `most` fields, so that any two fields of a route are together in
    at least one of them, in any order."""
    draw, found = random.Random(seed), []
    for route, known in OF_ROUTES.items():
        for names in covering_draws(list(known), most, draw):
            found.append(request_of(route, {name: draw.choice(known[name]) for name in names}))
    draw.shuffle(found)
    return found


async def said(rig: HttpRig, request: DrawnRequest) -> tuple[int, Any]:
    """Return the status and the content of the answer."""
    answer = await rig.post(request.route, **request.body)
    if answer.status_code != 200:
        return answer.status_code, answer.json()["error"]["message"]
    if request.body.get("stream"):
        return _joined(answer.text)
    return 200, _plain(answer.json())


def _joined(stream: str) -> tuple[int, Any]:
    """Return the status and the whole answer of a stream, put together by its choices."""
    choices: dict[int, dict[str, Any]] = {}
    usage: Any = None
    for line in stream.split("\n"):
        if not line or line == "data: [DONE]":
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            return 500, event["error"]["message"]
        usage = event.get("usage") or usage
        for part in event["choices"]:
            _join(choices.setdefault(part["index"], {}), part)
    found = [{"index": at, **choices[at]} for at in sorted(choices)]
    return 200, {"choices": found, "usage": _tokens(usage)}


def _join(known: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in {**part, **(part.get("delta") or {})}.items():
        if name in ("index", "delta", "role") or value is None:
            continue
        if name == "logprobs":
            for kind, entries in value.items():
                if entries and kind != "text_offset":
                    known.setdefault("logprobs", {}).setdefault(kind, []).extend(_rounded(entries))
        elif isinstance(value, str) and name not in ("finish_reason", "stop_reason"):
            known[name] = known.get(name, "") + value
        elif name == "tool_calls":
            for call in value:
                text = call.get("function", {})
                known["calls"] = known.get("calls", "") + json.dumps(text)
        elif isinstance(value, list):
            known[name] = known.get(name, []) + _rounded(value)
        else:
            known[name] = value


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    choices = []
    for choice in body["choices"]:
        found = {name: value for name, value in choice.items() if value is not None}
        for call in (found.get("message") or {}).get("tool_calls") or ():
            call.pop("id")
        choices.append(_rounded(found))
    kept = {name: _rounded(body[name]) for name in ("prompt_logprobs",) if body.get(name)}
    return {"choices": choices, "usage": _tokens(body["usage"]), **kept}


def _tokens(usage: Mapping[str, Any] | None) -> dict[str, int]:
    counted = usage or {}
    return {name: counted.get(name, -1) for name in ("prompt_tokens", "completion_tokens")}


def _rounded(value: Any) -> Any:
    """Return a value whose numbers are rounded to a share that no order of sums changes."""
    if isinstance(value, float):
        return round(value, 2) + 0.0
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items() if name != "rank"}
    return value
