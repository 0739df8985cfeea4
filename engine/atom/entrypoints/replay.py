"""`atom replay`: sends a recorded request to a server again, and reports the differences.

A record is a JSON file {"request": BODY, "response": ANSWER} of a chat or completion. Equal
fingerprints with different tokens are a fault of the server; different fingerprints name the part
that explains the difference: weights, engine, kernels or options.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atom.entrypoints.http.api_key import read_api_key
from atom.entrypoints.http.client_url import server_url
from atom.errors import AtomError, ConfigError

PARTS = ("weights", "engine", "kernels", "options")
_PATHS = {"chat.completion": "/v1/chat/completions", "text_completion": "/v1/completions"}


class ReplayError(AtomError):
    """The server did not answer the record's request."""


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the record and the server that is asked."""
    parser.add_argument("record", type=Path, help="JSON file with a request and its response")
    parser.add_argument(
        "--base-url",
        type=server_url,
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="server that is asked again, with or without /v1",
    )
    parser.add_argument("--api-key-file", type=Path, default=None, help="file with the API key")


def run_replay(args: argparse.Namespace) -> int:
    """Print the differences; return 0 if there are none. Raises `ConfigError` for an invalid
    record."""
    request, response = _read(args.record)
    found = list(differences(response, _ask(args, request, _PATHS[response["object"]])))
    for line in found or ["equal"]:
        print(line)
    return 1 if found else 0


def differences(recorded: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of two answers that differ: of their fingerprints, then their choices."""
    before, now = (str(each.get("system_fingerprint", "")) for each in (recorded, again))
    parts = [text.split("/") + [""] * len(PARTS) for text in (before, now)]
    for name, one, other in zip(PARTS, *parts, strict=False):
        if one != other:
            yield f"{name}: {one or 'not told'} in the record, {other or 'not told'} here"
    choices = [list(each.get("choices", ())) for each in (recorded, again)]
    if len(choices[0]) != len(choices[1]):
        yield f"choices: {len(choices[0])} in the record, {len(choices[1])} here"
    for number, (one, other) in enumerate(zip(*choices, strict=False)):
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                yield f"choice {number}, {key}: {one.get(key)!r} in the record, {other.get(key)!r}"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        request, response = dict(record["request"]), dict(record["response"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: is no record ({error}); write a JSON file with a request and its response"
        ) from error
    if response.get("object") not in _PATHS:
        raise ConfigError(
            f"{path}: the response is {response.get('object')!r}; record one of "
            f"{', '.join(_PATHS)}, not a stream's events"
        )
    if request.get("seed") is None and request.get("temperature") != 0:
        raise ConfigError(
            f"{path}: the request has neither a seed nor temperature 0, so each answer is drawn "
            "anew; record one that has"
        )
    return request | {"stream": False}, response


def _ask(args: argparse.Namespace, request: Mapping[str, Any], path: str) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    key = read_api_key(args.api_key_file, os.environ)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    asked = urllib.request.Request(args.base_url + path, json.dumps(request).encode(), headers)
    try:
        with urllib.request.urlopen(asked) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ReplayError(f"{args.base_url}: HTTP {error.code}: {error.read()[:500]!r}") from error
    except (OSError, ValueError) as error:
        raise ReplayError(f"{args.base_url}: {error}; is the server there?") from error
    return found
