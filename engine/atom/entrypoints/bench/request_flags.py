"""Flags of `vllm bench serve` about each request: how it is sampled, sent, named and let ready.

Names and values are vLLM's. Torch-free and light to import.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

from atom.errors import ConfigError
from atom.sizing.options.flag_values import json_object, number, whole_number

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_PATHS = {"openai": COMPLETIONS, "vllm": COMPLETIONS, "openai-chat": CHAT}
_SAMPLING = {
    "--temperature": (number, "how freely tokens are drawn; 0 takes the likeliest"),
    "--top-p": (number, "draw from the likeliest tokens with this share of the odds"),
    "--top-k": (whole_number, "draw from this number of the likeliest tokens"),
    "--min-p": (number, "leave out tokens below this share of the likeliest one's odds"),
    "--repetition-penalty": (number, "above 1: repeated tokens are less likely"),
    "--frequency-penalty": (number, "above 0: tokens are less likely with each use"),
    "--presence-penalty": (number, "above 0: used tokens are less likely"),
}


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags in two groups, sampling and requests."""
    add = parser.add_argument_group("sampling (default: the server's own)").add_argument
    for flag, (read, text) in _SAMPLING.items():
        add(flag, type=read, default=None, help=text)
    add("--logprobs", type=whole_number, default=None, help="log-probabilities of so many tokens")
    add(
        "--chat-template-kwargs",
        type=json_object,
        default=None,
        metavar="JSON",
        help="variables of the chat template, with --endpoint /v1/chat/completions",
    )
    add = parser.add_argument_group("how requests are sent").add_argument
    add(
        "--backend",
        type=_backend,
        default=None,
        metavar=f"{{{','.join(_PATHS)}}}",
        help="openai-chat sends chats, the others prompts (default: as --endpoint says)",
    )
    add("--header", nargs="*", type=key_value, default=[], metavar="KEY=VALUE", help="more headers")
    add("--request-id-prefix", default="", metavar="TEXT", help="of the header X-Request-Id")
    add("--served-model-name", default=None, help="name in requests, if --model is another")
    add("--lora-modules", nargs="+", default=[], metavar="NAME", help="adapters to ask instead")
    add(
        "--lora-assignment",
        choices=("random", "round-robin"),
        default="random",
        help="which of --lora-modules a request asks",
    )
    add("--insecure", action="store_true", help="accept any certificate of the server")
    add(
        "--ready-check-timeout-sec",
        type=whole_number,
        default=0,
        help="seconds to wait until the server is ready",
    )
    add("--profile", action="store_true", help="let the server profile the measured requests")


def endpoint_of(args: argparse.Namespace) -> str:
    """Return the path that requests are sent to. Raises `ConfigError` if --backend and --endpoint
    contradict each other."""
    wanted = None if args.backend is None else _PATHS[args.backend]
    if args.endpoint and wanted and args.endpoint != wanted:
        raise ConfigError(
            f"--backend {args.backend} asks {wanted}, and --endpoint is {args.endpoint}; leave one "
            "of them out"
        )
    return str(args.endpoint or wanted or COMPLETIONS)


def fields_of(args: argparse.Namespace, endpoint: str) -> dict[str, Any]:
    """Return the further fields of every request's body; those of --extra-body win. Raises
    `ConfigError`."""
    names = (flag.removeprefix("--").replace("-", "_") for flag in _SAMPLING)
    fields = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.logprobs is not None:
        count = args.logprobs
        fields |= {"logprobs": True, "top_logprobs": count} if endpoint == CHAT else {
            "logprobs": count
        }  # fmt: skip
    if args.chat_template_kwargs is not None:
        if endpoint != CHAT:
            raise ConfigError("--chat-template-kwargs is for chats; add --backend openai-chat")
        fields["chat_template_kwargs"] = args.chat_template_kwargs
    return {**fields, **args.extra_body}


def names_of(args: argparse.Namespace, model: str) -> Callable[[int], str]:
    """Return the function from a request's place to the model that it names: the model, or one of
    --lora-modules."""
    adapters = args.lora_modules
    if not adapters:
        return lambda place: model
    if args.lora_assignment == "round-robin":
        return lambda place: str(adapters[place % len(adapters)])
    return lambda place: str(random.Random(f"{args.seed} {place}").choice(adapters))


def key_value(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return name.strip(), value.strip()


def _backend(text: str) -> str:
    if text not in _PATHS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: this benchmark speaks OpenAI's completions and chats; use "
            f"{', '.join(_PATHS)}"
        )
    return text
